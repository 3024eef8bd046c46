"""Turns claims into batches on this machine, and passes texts to callbacks while they are made."""

from collections.abc import Callable, Iterator, Sequence

from rlhf_pipeline.completions.attempts import build_local_attempt
from rlhf_pipeline.completions.base import (
    CompletionRequest,
    CompletionResult,
    DirectBackend,
    StreamingBackend,
)
from rlhf_pipeline.completions.drive import CompletionWork, WorkLane
from rlhf_pipeline.errors import CompletionError
from rlhf_pipeline.protocols import Attempt, Claim, Lane
from rlhf_pipeline.records import utc_now

# Receives pieces of an item's text; None: the stream was interrupted, earlier pieces are void.
OnItem = Callable[[int, str | None], None]


class GuardedCallback:
    """Stops calling `on_text` after it raises; generation continues."""

    def __init__(self, on_text: OnItem) -> None:
        self._on_text = on_text
        self.failed: Exception | None = None

    def __call__(self, item_no: int, piece: str | None) -> None:
        if self.failed is not None:
            return
        try:
            self._on_text(item_no, piece)
        except Exception as cause:  # noqa: BLE001  reported with the result
            self.failed = cause


def ignore_text(item_no: int, piece: str | None) -> None:
    """The null callback."""


class LocalLane(WorkLane):
    """Completes claims immediately in the thread of `drive`; an interrupt ends it within a
    batch.
    """

    def __init__(
        self,
        work: CompletionWork,
        key: Lane,
        backend: DirectBackend,
        batch_size: int,
        on_text: OnItem | None = None,
    ) -> None:
        super().__init__(work, key)
        self._batch_size = batch_size
        self._backend = backend
        self._on_text = on_text
        self._attempts: list[Attempt] = []

    @property
    def n_wanted(self) -> int:
        return self._batch_size

    @property
    def is_busy(self) -> bool:
        return bool(self._attempts)

    def add(self, claims: Sequence[Claim], *, is_all: bool) -> None:
        """Raises the errors of the backend; attempts made by then are kept."""
        if not claims:
            return
        self.wake.set()
        item_nos = [claim.item_no for claim in claims]
        requests = [self.work.requests[item_no] for item_no in item_nos]
        started_at = utc_now()
        results = self._complete(requests, item_nos)
        n_before = len(self._attempts)
        for item_no, result in zip(item_nos, results, strict=False):
            self._attempts.append(build_local_attempt(self.work.items[item_no], result, started_at))
        if len(self._attempts) - n_before < len(claims) or next(results, None) is not None:
            raise CompletionError(
                f"Backend {self._backend.name} did not give one result for each of {len(claims)} "
                "requests. Correct its complete()."
            )

    def _complete(
        self, requests: Sequence[CompletionRequest], item_nos: Sequence[int]
    ) -> Iterator[CompletionResult]:
        """Complete requests; the callback receives texts as they are made if the backend
        streams.
        """
        on_text = self._on_text
        if on_text is not None and isinstance(self._backend, StreamingBackend):
            yield from self._backend.stream(
                requests, lambda row, piece: on_text(item_nos[row], piece)
            )
            return
        results = self._backend.complete(requests)
        for item_no, result in zip(item_nos, results, strict=False):
            if on_text is not None and result.text:
                on_text(item_no, result.text)
            yield result
        yield from results  # an extra result is an error

    def take_attempts(self, most: int) -> list[Attempt]:
        taken, self._attempts = self._attempts, []
        return taken

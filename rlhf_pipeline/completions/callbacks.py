"""Who is told of texts while they are made. Knows backends by protocol; knows no ledger and no
provider.
"""

from collections.abc import Callable, Iterator, Sequence

from rlhf_pipeline.completions.base import (
    CompletionRequest,
    CompletionResult,
    DirectBackend,
    StreamingBackend,
)

# told pieces of an item's text; None: its stream broke off, what came does not count
OnItem = Callable[[int, str | None], None]


class GuardedCallback:
    """Tells `on_text` until that fails, and then no more: an error of who watches is no fault of
    who writes, and what is paid for goes on.
    """

    def __init__(self, on_text: OnItem) -> None:
        self._on_text = on_text
        self.failed: Exception | None = None

    def __call__(self, item_no: int, piece: str | None) -> None:
        if self.failed is not None:
            return
        try:
            self._on_text(item_no, piece)
        except Exception as cause:  # noqa: BLE001  whoever asked for the texts is told of it
            self.failed = cause


def ignore_text(item_no: int, piece: str | None) -> None:
    """Streams that nobody watches."""


def complete_with_callback(
    backend: DirectBackend,
    requests: Sequence[CompletionRequest],
    item_nos: Sequence[int],
    on_text: OnItem,
) -> Iterator[CompletionResult]:
    """Results whose texts are told: while they are made by a backend that can, else at once."""
    if isinstance(backend, StreamingBackend):
        yield from backend.stream(requests, lambda row, piece: on_text(item_nos[row], piece))
        return
    for item_no, result in zip(item_nos, results := backend.complete(requests), strict=False):
        if result.text:
            on_text(item_no, result.text)
        yield result
    yield from results  # one too many is for the caller to refuse

"""Completes items in batches on this machine, and passes texts to callbacks while they are made."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import sleep

from rlhf_pipeline.completions.attempts import build_local_attempt
from rlhf_pipeline.completions.base import (
    CompletionRequest,
    CompletionResult,
    DirectBackend,
    StreamingBackend,
)
from rlhf_pipeline.completions.work import LOOK_S, CompletionWork, persist_with_retry
from rlhf_pipeline.errors import CompletionError, StoreError
from rlhf_pipeline.processes import is_dead, make_owner
from rlhf_pipeline.protocols import Attempt, Budget, Claim, Lane, LedgerTransaction
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


def complete_local(
    work: CompletionWork,
    lane: Lane,
    backend: DirectBackend,
    batch_size: int,
    on_text: OnItem | None = None,
) -> None:
    """Complete all of `work` in this thread. Raises the errors of the backend and interrupts, once
    everything made by then is recorded.
    """
    ledger, owner, attempts = work.ledger, make_owner(), list[Attempt]()

    def record_and_claim(wanted: dict[Lane, int]) -> LedgerTransaction:
        turn = persist_with_retry(
            ledger,
            ledger.settle_and_claim,
            work.run_id,
            owner,
            attempts,
            wanted,
            Budget(),
            is_dead=is_dead,
        )
        work.settle_all(attempts, turn)
        attempts.clear()
        return turn

    with _renew_claims(work, owner):
        try:
            while True:
                turn = record_and_claim({lane: batch_size})
                work.report()
                if claims := turn.claimed[lane]:
                    for attempt in _complete(work, lane, backend, claims, on_text):
                        attempts.append(attempt)
                elif turn.n_open == turn.n_leased == 0:
                    return
                else:  # another process works on them
                    sleep(LOOK_S)
        finally:
            record_and_claim({})
            persist_with_retry(ledger, ledger.release, work.run_id, owner)


def _complete(
    work: CompletionWork,
    lane: Lane,
    backend: DirectBackend,
    claims: Sequence[Claim],
    on_text: OnItem | None,
) -> Iterator[Attempt]:
    """The attempts of one batch, as they are made."""
    item_nos = [claim.item_no for claim in claims]
    requests = [work.plan.request(item_no) for item_no in item_nos]
    started_at = utc_now()
    results = _stream(backend, requests, item_nos, on_text)
    n_made = 0
    for item_no, result in zip(item_nos, results, strict=False):
        n_made += 1
        yield build_local_attempt(lane, work.plan.keys[item_no], item_no, result, started_at)
    if n_made < len(claims) or next(results, None) is not None:
        raise CompletionError(
            f"Backend {backend.name} did not give one result for each of {len(claims)} "
            "requests. Correct its complete()."
        )


def _stream(
    backend: DirectBackend,
    requests: Sequence[CompletionRequest],
    item_nos: Sequence[int],
    on_text: OnItem | None,
) -> Iterator[CompletionResult]:
    """The results; the callback receives texts as they are made if the backend streams."""
    if on_text is not None and isinstance(backend, StreamingBackend):
        yield from backend.stream(requests, lambda row, piece: on_text(item_nos[row], piece))
        return
    results = backend.complete(requests)
    for item_no, result in zip(item_nos, results, strict=False):
        if on_text is not None and result.text:
            on_text(item_no, result.text)
        yield result
    yield from results  # an extra result is an error


@contextmanager
def _renew_claims(work: CompletionWork, owner: str) -> Iterator[None]:
    """Renew claims while this thread computes for long."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(work.ledger.renew_s):
            with suppress(StoreError):  # the next renewal is soon enough
                work.ledger.settle_and_claim(work.run_id, owner, [], {}, Budget(), is_dead=is_dead)

    thread = threading.Thread(target=renew, name="leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

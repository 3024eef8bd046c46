"""Completes items in batches on this machine."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import sleep

from rlhf_pipeline.core.errors import CompletionError, StoreError
from rlhf_pipeline.core.processes import is_dead, make_owner
from rlhf_pipeline.core.protocols import Attempt, Budget, Claim, Lane, LedgerTransaction
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions.attempts import build_local_attempt
from rlhf_pipeline.generate.completions.base import DirectBackend
from rlhf_pipeline.generate.completions.request_plan import lane_of
from rlhf_pipeline.generate.completions.work import LOOK_S, CompletionWork, persist_with_retry


def complete_local(work: CompletionWork, backend: DirectBackend, batch_size: int) -> None:
    """Complete all of `work` in this thread. Raises the errors of the backend and interrupts, once
    everything made by then is recorded.
    """
    ledger, owner, attempts = work.ledger, make_owner(), list[Attempt]()
    lane = lane_of(backend)

    def record_and_claim(n_by_lane: dict[Lane, int]) -> LedgerTransaction:
        turn = persist_with_retry(
            ledger,
            ledger.settle_and_claim,
            work.run_id,
            owner,
            attempts,
            n_by_lane,
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
                    for attempt in _complete(work, lane, backend, claims):
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
) -> Iterator[Attempt]:
    """The attempts of one batch, as they are made."""
    item_nos = [claim.item_no for claim in claims]
    requests = [work.plan.request(item_no) for item_no in item_nos]
    started_at = utc_now()
    results = backend.complete(requests)
    n_made = 0
    for item_no, result in zip(item_nos, results, strict=False):
        n_made += 1
        yield build_local_attempt(lane, work.plan.keys[item_no], item_no, result, started_at)
    if n_made < len(claims) or next(results, None) is not None:
        raise CompletionError(
            f"Backend {backend.name} did not give one result for each of {len(claims)} "
            "requests. Correct its complete()."
        )


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

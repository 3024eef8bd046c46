"""Completes requests through a ledger, in rounds until all have succeeded or failed."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from rlhf_pipeline.completions.base import (
    CompletionBackend,
    CompletionRequest,
    CompletionResult,
    HostedBackend,
)
from rlhf_pipeline.completions.drive import CompletionWork
from rlhf_pipeline.completions.lanes import complete_hosted, complete_local
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.request_plan import build_item, cache_key, lane_of
from rlhf_pipeline.errors import BackendUnavailable, CompletionError
from rlhf_pipeline.protocols import LedgerSettlement, Progress, WorkLedger, ignore_progress
from rlhf_pipeline.records import content_id

# Items that the cache lost or that stayed open are requested again in the next round.
ROUNDS = 3
BATCH = 64  # requests per batch of a backend on this machine


class RunResults(Protocol):
    """The results of a run so far."""

    gone: list[int]  # items whose text the store no longer has
    n_unsettled: int  # items that are open or running


R = TypeVar("R", bound=RunResults)


def complete_in_rounds(
    ledger: WorkLedger, run_id: str, total: int, ask: Callable[[], None], read: Callable[[], R]
) -> R:
    """Repeat rounds until every item has succeeded or failed and all texts are stored. Raises
    CompletionError if that fails.
    """
    for _ in range(ROUNDS):
        ask()
        made = read()
        if not made.gone and not made.n_unsettled:
            return made
        if made.gone:
            ledger.reopen(run_id, made.gone)  # pruned or damaged
    if made.n_unsettled:
        raise CompletionError(
            f"{made.n_unsettled:,} of {total:,} completions are neither made nor failed; the "
            f"others are kept. Run again to continue. If this repeats, another process holds "
            f"them, or the store loses writes: check its disk."
        )
    raise CompletionError(
        f"The store loses completions as they are made: {len(made.gone):,} of {total:,} are "
        f"missing. Check its disk."
    )


def unsettled_items(ledger: WorkLedger, run_id: str) -> set[int]:
    """Items of a run that have neither succeeded nor failed."""
    return {one.item_no for one in ledger.item_states(run_id) if one.state in ("open", "leased")}


@dataclass
class _CollectedOutcomes:
    outcomes: list[tuple[LedgerSettlement, CompletionResult | None]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    n_unsettled: int = 0


def complete_requests(
    backend: CompletionBackend,
    requests: Sequence[CompletionRequest],
    *,
    ledger: WorkLedger,
    calls: CallParams | None = None,
    asset: str = "",
    progress: Progress = ignore_progress,
    note: str = "",
) -> list[tuple[LedgerSettlement, CompletionResult | None]]:
    """The final state of each request and, if it succeeded, its result; in the order of the
    requests.

    Raises BackendUnavailable, CompletionError and StoreError as `generate` does.
    """
    calls = calls or CallParams()
    lane, n = lane_of(backend), len(requests)
    keys = [cache_key(backend, request) for request in requests]
    by_length = getattr(backend, "likes_equal_lengths", False)
    items = [
        build_item(
            backend,
            request,
            calls,
            item_no=i,
            position=len(request.prompt) if by_length else i,
            key=keys[i],
        )
        for i, request in enumerate(requests)
    ]
    run_id = content_id("run", asset, keys)
    record = json.dumps(
        {
            "calls": calls.model_dump(exclude_none=True),
            "models": [[backend.name, backend.model_version]],
        }
    )
    ledger.start(run_id, items, asset=asset, record=record)

    def ask() -> None:
        left = unsettled_items(ledger, run_id)
        work = CompletionWork(
            run_id,
            ledger,
            items,
            requests,
            calls,
            left,
            on_settled=lambda: progress(n - len(left), n, note),
        )
        if not left:
            progress(n, n, note)
        elif isinstance(backend, HostedBackend):
            work.budget = calls.budget
            if closed := complete_hosted(work, {lane: backend}):
                if not unsettled_items(ledger, run_id):
                    ledger.end(run_id)  # the same requests retry failed items
                raise BackendUnavailable(str(closed[lane].error))
        else:
            complete_local(work, lane, backend, BATCH)

    def read() -> _CollectedOutcomes:
        made = _CollectedOutcomes()
        settled = list(ledger.item_states(run_id))
        kept = ledger.results([keys[one.item_no] for one in settled if one.state == "succeeded"])
        for one in settled:
            made.n_unsettled += one.state in ("open", "leased")
            text = kept.get(keys[one.item_no]) if one.state == "succeeded" else None
            if one.state == "succeeded" and text is None:
                made.gone.append(one.item_no)
            made.outcomes.append((one, None if text is None else CompletionResult.from_json(text)))
        return made

    made = complete_in_rounds(ledger, run_id, n, ask, read)
    ledger.end(run_id)
    return made.outcomes


def iterate_results(
    backend: CompletionBackend,
    requests: Sequence[CompletionRequest],
    calls: CallParams,
    ledger: WorkLedger,
    asset: str = "",
) -> Iterator[CompletionResult]:
    """One result per request, in their order; a failure is a result with its error."""
    for settled, result in complete_requests(
        backend, requests, calls=calls, ledger=ledger, asset=asset
    ):
        yield result or failure_of(settled)


def failure_of(settled: LedgerSettlement) -> CompletionResult:
    """The result of a permanently failed item."""
    reason = "content_filter" if settled.kind == "content_filter" else "error"
    return CompletionResult.failed(
        settled.error or f"It failed as {settled.kind}.", finish_reason=reason
    )

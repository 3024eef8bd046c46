"""Completes requests through a ledger, in rounds until all have succeeded or failed."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice
from time import perf_counter
from typing import Any, NoReturn

from rlhf_pipeline.core.errors import BackendUnavailable, CompletionError, ProviderParked
from rlhf_pipeline.core.protocols import LedgerSettlement, Progress, WorkLedger, ignore_progress
from rlhf_pipeline.core.records import content_id
from rlhf_pipeline.generate.completions.base import (
    CompletionBackend,
    CompletionRequest,
    CompletionResult,
    HostedBackend,
)
from rlhf_pipeline.generate.completions.hosted_lane import HostedLane, complete_hosted
from rlhf_pipeline.generate.completions.limits import CallParams
from rlhf_pipeline.generate.completions.local_lane import complete_local
from rlhf_pipeline.generate.completions.request_plan import Plan, RequestList
from rlhf_pipeline.generate.completions.work import CompletionWork

# Items that the cache lost or that stayed open are requested again in the next round.
ROUNDS = 3
ROWS_AT_ONCE = 2_000  # texts of the ledger read at once
UNSETTLED = ("open", "leased")


@dataclass(frozen=True)
class LedgerRun:
    """The requests of a plan as a run of the ledger. `note` leads the notes of its progress."""

    asset: str
    plan: Plan
    calls: CallParams
    ledger: WorkLedger
    progress: Progress = ignore_progress
    note: str = ""

    @cached_property
    def run_id(self) -> str:
        return content_id("run", self.asset, self.plan.keys)

    def complete(self, params: Mapping[str, Any], origin: str | None = None) -> None:
        """Complete every item that has neither succeeded nor failed. `params` are recorded, as is
        `origin`, the Dagster run that asks.

        Raises BackendUnavailable if the backend is, ProviderParked if a provider asks for a longer
        wait than a run makes, CompletionError if some items stay unsettled or texts are lost.
        """
        ledger, run_id, total = self.ledger, self.run_id, len(self.plan)
        calls = self.calls.model_dump(exclude_none=True)
        backend = self.plan.backend
        models = [[backend.name, backend.model_version]]
        record = json.dumps({"params": params, "calls": calls, "models": models})
        ledger.start(
            run_id,
            self.plan,
            asset=self.asset,
            record=record,
            origin=origin,
        )
        for _ in range(ROUNDS):
            self._complete_open(origin)
            n_unsettled, pruned_items = 0, list[int]()
            for item, text in self.read():
                n_unsettled += item.state in UNSETTLED
                if item.state == "succeeded" and text is None:
                    pruned_items.append(item.item_no)
            if not pruned_items and not n_unsettled:
                ledger.end(run_id)
                return
            if pruned_items:
                ledger.reopen(run_id, pruned_items)  # pruned
        if n_unsettled:
            raise CompletionError(
                f"{n_unsettled:,} of {total:,} completions are neither made nor failed; the "
                f"others are kept. Run again to continue. If this repeats, another process holds "
                f"them, or the store loses writes: check its disk."
            )
        raise CompletionError(
            f"The store loses completions as they are made: {len(pruned_items):,} of {total:,} are "
            f"missing. Check its disk."
        )

    def read(self) -> Iterator[tuple[LedgerSettlement, str | None]]:
        """Each item's state and the JSON of its CompletionResult if it succeeded, in order; None
        for a result that the store no longer has.
        """
        states = iter(self.ledger.item_states(self.run_id))
        keys = self.plan.keys
        while some := list(islice(states, ROWS_AT_ONCE)):
            result_keys = [keys[item.item_no] for item in some if item.state == "succeeded"]
            texts = self.ledger.results(result_keys)
            for item in some:
                yield (
                    item,
                    texts.get(keys[item.item_no]) if item.state == "succeeded" else None,
                )

    def _complete_open(self, origin: str | None) -> None:
        n_left, lost = 0, Counter[int]()
        for item in self.ledger.item_states(self.run_id):
            n_left += item.state in UNSETTLED
            lost[item.item_no // self.plan.n_of_prompt] += item.state == "failed"
        total, backend = len(self.plan), self.plan.backend
        if not n_left:
            self.progress(total, total, self.note or "made before")
            return
        began = perf_counter()

        def report_progress() -> None:
            notes = [self.note] if self.note else []
            if work.n_failed:
                notes.append(f"{work.n_failed} failed")
            if isinstance(backend, HostedBackend):
                rate = (n_left - work.n_left) / max(perf_counter() - began, 1e-9)
                notes += [f"{rate:.1f}/s", *self._note_spending()]
            self.progress(total - work.n_left, total, ", ".join(notes))

        work = CompletionWork(
            self.run_id, self.ledger, self.plan, self.calls, n_left, report_progress, lost=lost
        )
        if not isinstance(backend, HostedBackend):
            complete_local(work, backend, self.plan.batch_size)
            return
        lane = HostedLane(work, backend)
        complete_hosted(lane)
        if lane.closed is None:
            return
        why = str(lane.closed.error)
        if lane.paused_until:
            self._pause(lane.paused_until, why, origin)
        if not self._n_unsettled():
            self.ledger.end(self.run_id)  # the same requests retry all failed items
        raise BackendUnavailable(why)

    def _n_unsettled(self) -> int:
        return sum(item.state in UNSETTLED for item in self.ledger.item_states(self.run_id))

    def _note_spending(self) -> list[str]:
        if self.calls.prompt_price is None and self.calls.completion_price is None:
            return []
        spent = self.ledger.spending(self.run_id).values()
        return [f"{sum(s.cost + s.cost_unknown for s in spent) / 1e9:.4f} spent"]

    def _pause(self, until: datetime, why: str, origin: str | None) -> NoReturn:
        cure = "Start it again then."
        if origin is not None:  # the sensor asks again for the days of that Dagster run
            self.ledger.pause(self.run_id, until, why)
            cure = "The sensor `paused_runs` then runs the asset again."
        raise ProviderParked(
            f"{why} {self._n_unsettled():,} of {len(self.plan):,} completions wait until "
            f"{until:%Y-%m-%d %H:%M:%S} UTC, the others are kept. {cure}"
        )


def complete_requests(
    backend: CompletionBackend,
    requests: Sequence[CompletionRequest],
    *,
    ledger: WorkLedger,
    calls: CallParams | None = None,
    asset: str = "",
    progress: Progress = ignore_progress,
    note: str = "",
) -> list[tuple[LedgerSettlement, CompletionResult]]:
    """The final state and the result of each request, in order; a failure is a result with its
    error.

    Raises BackendUnavailable, CompletionError and StoreError as `generate` does.
    """
    calls = calls or CallParams()
    run = LedgerRun(asset, RequestList(backend, requests, calls), calls, ledger, progress, note)
    run.complete({})
    return [(item, parse_result(item, text)) for item, text in run.read()]


def parse_result(settled: LedgerSettlement, text: str | None) -> CompletionResult:
    """The result of an item that has succeeded or failed."""
    if text is not None:
        return CompletionResult.from_json(text)
    reason = "content_filter" if settled.kind == "content_filter" else "error"
    return CompletionResult.failed(
        settled.error or f"It failed as {settled.kind}.", finish_reason=reason
    )

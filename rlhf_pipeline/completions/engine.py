"""Completes prompts: k per prompt over a grid of parameters, as items of a work ledger."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from time import perf_counter
from typing import NoReturn

import pandas as pd

from rlhf_pipeline.completions.base import (
    CompletionBackend,
    CompletionResult,
    DirectBackend,
    HostedBackend,
)
from rlhf_pipeline.completions.drive import CompletionWork
from rlhf_pipeline.completions.lanes import complete_hosted, complete_local
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.local_lane import GuardedCallback, OnItem
from rlhf_pipeline.completions.request_plan import CompletionParams, RequestPlan, lane_of
from rlhf_pipeline.completions.results import complete_in_rounds, failure_of, unsettled_items
from rlhf_pipeline.errors import (
    BackendUnavailable,
    CompletionError,
    ConfigurationError,
    ProviderParked,
)
from rlhf_pipeline.frames import COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.protocols import (
    Lane,
    LedgerSettlement,
    Progress,
    Spending,
    WorkLedger,
    ignore_progress,
)
from rlhf_pipeline.records import content_id

ROWS_AT_ONCE = 2_000


@dataclass(frozen=True)
class RequestedBy:
    """The asset or command that asks for completions, and its Dagster run, which is started again
    if a provider asks for a longer wait.
    """

    asset: str = "completions"
    run_id: str | None = None


@dataclass(frozen=True)
class Generation:
    """The completions of a run and what they cost. `kinds` counts failed rows by reason.

    `callback_error` is an error of `on_text`, which was not called again after it.
    """

    run_id: str
    frame: pd.DataFrame
    spent: Mapping[Lane, Spending]
    kinds: Mapping[str, int]
    n_cached: int
    n_attempts: int
    seconds: float
    callback_error: Exception | None = None

    @property
    def cost(self) -> float:
        """Cost of calls with a known bill, in the currency of the prices."""
        return sum(s.cost for s in self.spent.values()) / 1e9

    @property
    def n_unknown(self) -> int:
        """Number of calls whose bill is unknown."""
        return sum(s.n_unknown for s in self.spent.values())

    @property
    def cost_unknown(self) -> float:
        """Upper bound of the cost of calls whose bill is unknown."""
        return sum(s.cost_unknown for s in self.spent.values()) / 1e9


def generate(
    prompts: pd.DataFrame,
    backends: Sequence[CompletionBackend],
    params: CompletionParams,
    *,
    ledger: WorkLedger,
    calls: CallParams | None = None,
    requested_by: RequestedBy = RequestedBy(),
    progress: Progress = ignore_progress,
    on_text: OnItem | None = None,
) -> Generation:
    """Make `params.k` completions of each row of `prompts` (PROMPTS) by each backend; each is an
    item of `ledger`.

    The grid temperatures x top_ps is cycled over the k samples, each with a seed of its own that
    depends on neither the batch nor the order of the prompts. The same prompts, backends and
    parameters are the same run: an interrupted one continues, and a finished one repeats only
    failed items. A request that failed permanently is a row with an empty text and its `error`.

    Raises ConfigurationError for parameters out of range, BackendUnavailable if no backend can work
    at all, ProviderParked if a provider asks for a longer wait than a run makes (missing items
    stay open for the next run of the same job), CompletionError if every request failed or some
    stay unsettled, StoreError if the ledger cannot be written. An error of `on_text` does not end
    the run: it is in the result.
    """
    calls = calls or CallParams()
    asked = RequestPlan(check_frame(prompts, PROMPTS), backends, params, calls)
    run_id = content_id("run", requested_by.asset, list(asked.keys))
    record = json.dumps({
        "params": params.model_dump(),
        "calls": calls.model_dump(exclude_none=True, exclude={"retry_lost"}),
        "models": [[backend.name, backend.model_version] for backend in backends],
    })  # fmt: skip
    began = perf_counter()
    ledger.start(
        run_id,
        asked.items,
        asset=requested_by.asset,
        record=record,
        origin=requested_by.run_id,
        retry_lost=calls.retry_lost,
    )
    n = len(asked.items)
    watcher = None if on_text is None else GuardedCallback(on_text)
    run = _Run(run_id, asked, ledger, calls, progress, watcher)

    def ask() -> None:
        left, lost = set[int](), Counter[int]()
        for one in ledger.item_states(run_id):
            if one.state in ("open", "leased"):
                left.add(one.item_no)
            elif one.state == "failed":
                lost[one.item_no // asked.n_of_prompt] += 1
        if left:
            run.complete(left, lost)
        else:
            progress(n, n, "made before")

    made = complete_in_rounds(ledger, run_id, n, ask, lambda: _read_results(asked, ledger, run_id))
    ledger.end(run_id)
    if n and made.kinds.total() == n:
        named = ", ".join(f"{backend.name} ({backend.model_version})" for backend in backends)
        raise CompletionError(
            f"All {n} completions by {named} failed; the first: {made.first_error}"
        )
    return Generation(
        run_id=run_id,
        frame=made.frame,
        spent=ledger.spending(run_id),
        kinds=dict(made.kinds.most_common()),
        n_cached=made.n_cached,
        n_attempts=made.n_attempts,
        seconds=perf_counter() - began,
        callback_error=None if watcher is None else watcher.failed,
    )


@dataclass(frozen=True)
class _Run:
    """A run of the ledger and what completes it."""

    run_id: str
    asked: RequestPlan
    ledger: WorkLedger
    calls: CallParams
    progress: Progress
    on_text: OnItem | None

    def complete(self, left: set[int], lost: Counter[int]) -> None:
        """Complete what is left, providers first. `lost` counts failed items by prompt.

        Raises BackendUnavailable if every backend is, ProviderParked as `generate`.
        """
        hosted, local = self._lanes()
        n_before, began = len(left), perf_counter()
        parts = {lane: self._work({lane}, left) for lane in local}
        network = self._work(set(hosted), left)
        if network.left:
            network.budget = self.calls.budget
        if not self.calls.batch:  # all samples of a prompt are in one batch
            network.least, network.n_of_prompt = self.asked.least, self.asked.n_of_prompt
            network.lost = lost
        left.clear()  # the parts hold the same; saves memory with a hundred thousand prompts
        works = [network, *parts.values()]

        def report_progress() -> None:
            total = len(self.asked.items)
            n_left = sum(len(work.left) + len(work.parked) for work in works)
            note = _progress_note(
                n_before - n_left,
                sum(work.n_failed for work in works),
                perf_counter() - began,
                network if hosted else None,
            )
            self.progress(total - n_left, total, note)

        for work in works:
            work.on_settled = report_progress
        closed = complete_hosted(network, hosted, on_text=self.on_text)
        unavailable = {lane: str(reply.error) for lane, reply in closed.items()}
        for lane, backend in local.items():
            complete_local(parts[lane], lane, backend, self.asked.params.batch_size, self.on_text)
        if network.parked_until is not None:
            self._park(network.parked, network.parked_until, _join_reasons(unavailable))
        if unavailable and len(unavailable) == len(self.asked.backends):
            if not unsettled_items(self.ledger, self.run_id):
                self.ledger.end(
                    self.run_id
                )  # once the cause is fixed, all failed items are open again
            raise BackendUnavailable(_join_reasons(unavailable))

    def _lanes(self) -> tuple[dict[Lane, HostedBackend], dict[Lane, DirectBackend]]:
        """Backends of providers and of this machine, by lane."""
        hosted: dict[Lane, HostedBackend] = {}
        local: dict[Lane, DirectBackend] = {}
        for backend in self.asked.backends:
            if isinstance(backend, HostedBackend):
                hosted[lane_of(backend)] = backend
            else:
                local[lane_of(backend)] = backend
        if len(hosted) + len(local) < len(self.asked.backends):
            raise ConfigurationError(
                "Two backends are the same provider and model, so their completions would be mixed "
                "up. Name each once."
            )
        return hosted, local

    def _work(self, lanes: set[Lane], left: set[int]) -> CompletionWork:
        """The work left in some lanes."""
        asked = self.asked
        mine = {i for i in left if lane_of(asked.backend(i)) in lanes}
        return CompletionWork(
            self.run_id, self.ledger, asked.items, asked.requests, self.calls, mine
        )

    def _park(self, parked: set[int], until: datetime, why: str) -> NoReturn:
        self.ledger.pause(self.run_id, until, why)
        raise ProviderParked(
            f"{why} {len(parked):,} of {len(self.asked.items):,} completions wait until "
            f"{until:%Y-%m-%d %H:%M:%S} UTC, the others are kept. The sensor `paused_runs` then "
            f"runs the asset again; other runs continue when they are started again."
        )


def _join_reasons(unavailable: Mapping[Lane, str]) -> str:
    """Each reason once, because a reason that closes a provider closes all its models."""
    return " ".join(dict.fromkeys(unavailable.values()))


def _progress_note(
    n_made: int, n_failed: int, seconds: float, network: CompletionWork | None
) -> str:
    """Failures and, for providers, rate and spending."""
    parts = [f"{n_failed} failed"] if n_failed else []
    if network is not None:
        parts.append(f"{n_made / max(seconds, 1e-9):.1f}/s")
        if network.params.prompt_price is not None or network.params.completion_price is not None:
            spent = sum(
                s.cost + s.cost_unknown for s in network.ledger.spending(network.run_id).values()
            )
            parts.append(f"{spent / 1e9:.4f} spent")
    return ", ".join(parts)


@dataclass
class _RunFrame:
    """COMPLETIONS of a run and counts. The frame is incomplete if an item is open or its text is
    missing from the store.
    """

    frame: pd.DataFrame = field(default_factory=COMPLETIONS.empty_frame)
    gone: list[int] = field(default_factory=list)
    n_unsettled: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    first_error: str | None = None
    n_cached: int = 0
    n_attempts: int = 0


def _read_results(asked: RequestPlan, ledger: WorkLedger, run_id: str) -> _RunFrame:
    """Read a run from the ledger, piece by piece: rows of a hundred thousand prompts as Python
    objects would fill a gigabyte.
    """
    read = _RunFrame()
    pieces = list[pd.DataFrame]()
    items = iter(ledger.item_states(run_id))
    while some := list(islice(items, ROWS_AT_ONCE)):
        for one in some:
            read.n_cached += one.is_cached
            read.n_attempts += one.n_attempts
            read.n_unsettled += one.state in ("open", "leased")
            if one.state == "failed":
                read.kinds[one.kind or "unknown"] += 1
                read.first_error = read.first_error or one.error
        kept = ledger.results([asked.keys[one.item_no] for one in some if one.state == "succeeded"])
        read.gone += [
            one.item_no
            for one in some
            if one.state == "succeeded" and asked.keys[one.item_no] not in kept
        ]
        if not read.gone and not read.n_unsettled:  # an open item has no row
            texts = (
                CompletionResult.from_json(kept[asked.keys[one.item_no]])
                if one.state == "succeeded"
                else None
                for one in some
            )
            rows = [_row(asked, one, text) for one, text in zip(some, texts, strict=True)]
            frame = pd.DataFrame(rows, columns=list(COMPLETIONS.columns))
            pieces.append(check_frame(frame, COMPLETIONS))
    if pieces:
        read.frame = check_frame(pd.concat(pieces, ignore_index=True), COMPLETIONS)
    return read


def _row(
    asked: RequestPlan, settled: LedgerSettlement, result: CompletionResult | None
) -> dict[str, object]:
    request, backend = asked.requests[settled.item_no], asked.backend(settled.item_no)
    result = result or failure_of(settled)
    text = (result.text or "") if result.error is None else ""
    sampling: tuple[object, ...] = (
        request.temperature,
        request.top_p,
        request.seed,
        request.max_tokens,
    )
    if request.system is not None:
        sampling = (*sampling, request.system)
    return {
        "day": asked.day(settled.item_no),
        "completion_id": content_id(
            request.prompt_id,
            backend.model_version,
            asked.maker(settled.item_no),
            sampling,
            request.sample_index,
            text,
        ),
        "prompt_id": request.prompt_id,
        "text": text,
        "backend": backend.name,
        "model_version": backend.model_version,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "sample_index": request.sample_index,
        "seed": request.seed,
        "n_prompt_tokens": result.n_prompt_tokens,
        "n_tokens": result.n_tokens,
        "latency_ms": result.latency_ms,
        "finish_reason": result.finish_reason,
        "error": result.error,
    }

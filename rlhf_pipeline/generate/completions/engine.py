"""Completes prompts: k per prompt over a grid of parameters, as items of a work ledger."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import pandas as pd

from rlhf_pipeline.core.errors import CompletionError
from rlhf_pipeline.core.frames import COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.core.protocols import Lane, Progress, Spending, WorkLedger, ignore_progress
from rlhf_pipeline.core.records import content_id
from rlhf_pipeline.generate.completions.answers import ModelAnswer
from rlhf_pipeline.generate.completions.base import CompletionBackend, CompletionResult
from rlhf_pipeline.generate.completions.limits import CallParams
from rlhf_pipeline.generate.completions.request_plan import CompletionParams, RequestPlan
from rlhf_pipeline.generate.completions.results import ROWS_AT_ONCE, LedgerRun, parse_result


@dataclass(frozen=True)
class RequestedBy:
    """The asset or command that asks for completions, and its Dagster run, which is started again
    if a provider asks for a longer wait.
    """

    asset: str = "completions"
    run_id: str | None = None


@dataclass(frozen=True)
class Generation:
    """The completions of a run and what they cost. `kinds` counts failed rows by reason,
    `n_with_reasoning` completions before which the model reasoned.
    """

    run_id: str
    frame: pd.DataFrame
    spent: Mapping[Lane, Spending]
    kinds: Mapping[str, int]
    n_cached: int
    n_with_reasoning: int
    n_attempts: int
    seconds: float

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
    backend: CompletionBackend,
    params: CompletionParams,
    *,
    ledger: WorkLedger,
    calls: CallParams | None = None,
    requested_by: RequestedBy = RequestedBy(),
    progress: Progress = ignore_progress,
) -> Generation:
    """Make `params.k` completions of each row of `prompts` (PROMPTS); each is an item of `ledger`.

    The grid temperatures x top_ps is cycled over the k samples, each with a seed of its own that
    depends on neither the batch nor the order of the prompts. The same prompts, backend and
    parameters are the same run: an interrupted one continues, and a finished one repeats only
    failed items. A request that failed permanently is a row with an empty text and its `error`.

    Raises ConfigurationError for parameters out of range, BackendUnavailable if the backend cannot
    work at all, ProviderParked if a provider asks for a longer wait than a run makes (missing items
    stay open for the next run of the same job), CompletionError if every request failed or some
    stay unsettled, StoreError if the ledger cannot be written.
    """
    calls = calls or CallParams()
    plan = RequestPlan(check_frame(prompts, PROMPTS), backend, params, calls)
    run = LedgerRun(requested_by.asset, plan, calls, ledger, progress)
    began = perf_counter()
    run.complete(params.model_dump(), requested_by.run_id)
    kinds, n_cached, n_attempts, first_error = Counter[str](), 0, 0, None
    n_with_reasoning = 0
    pieces, outcomes = list[pd.DataFrame](), run.read()
    # Piece by piece: rows of a hundred thousand prompts as Python objects would fill a gigabyte.
    while some := list(islice(outcomes, ROWS_AT_ONCE)):
        for item, _ in some:
            n_cached += item.is_cached
            n_attempts += item.n_attempts
            if item.state == "failed":
                kinds[item.kind or "unknown"] += 1
                first_error = first_error or item.error
        results = [(item.item_no, parse_result(item, text)) for item, text in some]
        n_with_reasoning += sum(bool(result.reasoning) for _, result in results)
        rows = [_row(plan, item_no, result, params) for item_no, result in results]
        pieces.append(
            check_frame(pd.DataFrame(rows, columns=list(COMPLETIONS.columns)), COMPLETIONS)
        )
    n = len(plan)
    if n and kinds.total() == n:
        label = f"{backend.name} ({backend.model_version})"
        raise CompletionError(f"All {n} completions by {label} failed; the first: {first_error}")
    frame = pd.concat(pieces, ignore_index=True) if pieces else COMPLETIONS.empty_frame()
    return Generation(
        run_id=run.run_id,
        frame=check_frame(frame, COMPLETIONS),
        spent=ledger.spending(run.run_id),
        kinds=dict(kinds.most_common()),
        n_cached=n_cached,
        n_with_reasoning=n_with_reasoning,
        n_attempts=n_attempts,
        seconds=perf_counter() - began,
    )


def _row(
    plan: RequestPlan, item_no: int, result: CompletionResult, params: CompletionParams
) -> dict[str, object]:
    request, backend = plan.request(item_no), plan.backend
    answer = ModelAnswer(result.text or "", result.reasoning)
    text = answer.render(params.reasoning) if result.error is None else ""
    sampling: tuple[object, ...] = (
        request.temperature,
        request.top_p,
        request.seed,
        request.max_tokens,
    )
    if request.system is not None:
        sampling = (*sampling, request.system)
    return {
        "day": plan.day(item_no),
        "completion_id": content_id(
            request.prompt_id,
            backend.model_version,
            backend.name,
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

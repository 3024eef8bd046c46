"""Completions of a day's prompts by the champion policy."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    daily_asset,
    deliver,
    expect_usually,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.generate.completions import Generation, RequestedBy, generate
from rlhf_pipeline.improve.loop_settings import CompletionsParams
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store


class CompletionsConfig(CompletionsParams, dg.Config):
    """Parameters of a day's completions."""


@daily_asset(
    "completions",
    "generate",
    "parquet",
    "transformers",
    checks={
        "finish_reason": "Half of the completions end by themselves, nearly all without a fault.",
        "completion_length": "Completions have two tokens or more on average.",
    },
)
def completions(
    context: dg.AssetExecutionContext,
    config: CompletionsConfig,
    prompts: pd.DataFrame,
    settings: dg.ResourceParam[Settings],
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """k completions of every prompt over a grid of temperature and top_p. Each is a row of the work
    ledger, so an interrupted run resumes without repeating calls.
    """
    backend = champions.backend(settings, timeout_s=config.timeout_s)
    made_of = generate(
        prompts,
        backend,
        config,
        ledger=store.generation,
        calls=config,
        requested_by=RequestedBy(run_id=context.run_id),
        progress=progress("completions"),
    )
    frame = made_of.frame
    texts = frame[frame["error"].isna()]
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{format_count(len(texts), 'completion')} by {backend.model_version}, "
            f"{len(frame) - len(texts)} failed{_describe_failures(made_of)}",
            metrics={
                "n_completions": len(texts),
                "n_failed": len(frame) - len(texts),
                "mean_tokens": texts["n_tokens"].mean() if len(texts) else None,
                "share_stopped": (texts["finish_reason"] == "stop").mean() if len(texts) else None,
                **_collect_costs(made_of),
            },
            rows=frame[["text", "temperature", "top_p", "n_tokens", "finish_reason"]],
        ),
        usual=[
            expect_usually(
                "finish_reason",
                "expect_column_values_to_be_in_set",
                column="finish_reason",
                value_set=["stop", "length"],
                mostly=0.95,
            ),
            expect_usually(
                "finish_reason",
                "expect_column_values_to_be_in_set",
                column="finish_reason",
                value_set=["stop"],
                mostly=0.5,
            ),
            expect_usually(
                "completion_length",
                "expect_column_mean_to_be_between",
                column="n_tokens",
                min_value=2,
            ),
        ],
    )


def _collect_costs(generation: Generation) -> dict[str, float]:
    """Costs of all attempts of this ledger run, failures by kind, and calls with unknown
    billing.
    """
    return {
        "n_cached": generation.n_cached,
        "n_with_reasoning": generation.n_with_reasoning,
        "n_attempts": generation.n_attempts,
        "tokens_paid": sum(s.n_prompt_tokens + s.n_tokens for s in generation.spent.values()),
        "cost": generation.cost,
        "n_bill_unknown": generation.n_unknown,
        "cost_unknown_at_worst": generation.cost_unknown,
        **{f"failed_{kind}": n for kind, n in generation.kinds.items()},
    }


def _describe_failures(generation: Generation) -> str:
    """` (3 refusal, 1 timeout)`; empty without failures."""
    return (
        f" ({', '.join(f'{n} {kind}' for kind, n in generation.kinds.items())})"
        if generation.kinds
        else ""
    )

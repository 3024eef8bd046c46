"""Completions of a day's prompts: k per prompt over a grid of temperature and top_p, by the champion policy."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from assets.delivery import daily, deliver, schema_checked, usually, with_bounds
from rlhf_pipeline.champions import Champions
from rlhf_pipeline.completions import CompletionParams, complete_prompts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store


@with_bounds
class CompletionsConfig(CompletionParams, dg.Config):
    """How many completions per prompt, sampled how."""


@dg.asset(**daily("completions", "generate", "parquet", "transformers"))
@schema_checked
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
    """k completions of every prompt. The same prompt, parameters and policy are completed once: the store caches by content."""
    backend = champions.backend(settings)
    frame = complete_prompts(prompts, backend, config, cache=store.completions_cache, progress=progress("completions"))
    made = frame[frame["error"].isna()]
    yield from deliver(
        context,
        registry,
        frame,
        metrics={
            "n_completions": len(made),
            "n_failed": len(frame) - len(made),
            "mean_tokens": made["n_tokens"].mean() if len(made) else None,
            "share_stopped": (made["finish_reason"] == "stop").mean() if len(made) else None,
        },
        usual=[
            usually("expect_column_values_to_be_in_set", column="finish_reason", value_set=["stop", "length"], mostly=0.95),
            usually("expect_column_values_to_be_in_set", column="finish_reason", value_set=["stop"], mostly=0.5),
            usually("expect_column_mean_to_be_between", column="n_tokens", min_value=2),
        ],
        headline=f"{len(made)} completions by {backend.model_version}, {len(frame) - len(made)} failed",
        rows=frame[["text", "temperature", "top_p", "n_tokens", "finish_reason"]],
    )

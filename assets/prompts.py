"""Prompts of a day: exact quotas per category from templates, a data set or free-form instructions."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from assets.delivery import daily, deliver, schema_checked, usually, with_bounds
from rlhf_pipeline.config import Settings
from rlhf_pipeline.evaluation import frozen_prompt_ids, frozen_prompts
from rlhf_pipeline.frames import PROMPTS, concat
from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.registry import Registry


@with_bounds
class PromptsConfig(PromptParams, dg.Config):
    """How many prompts a day, of which categories and difficulties, from which source."""

    source: str = Field(default="", description="templates, dataset, freeform or an installed generator; empty = the setting prompt_source")


@dg.asset(**daily("prompts", "generate", "parquet"))
@schema_checked
def prompts(
    context: dg.AssetExecutionContext,
    config: PromptsConfig,
    settings: dg.ResourceParam[Settings],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """What the policy is asked today. Prompts of the frozen evaluation set are never among them."""
    frozen = frozen_prompt_ids(frozen_prompts())
    params = PromptParams(**config.model_dump() | {"source": config.source or settings.prompt_source})
    frame = concat(
        (generate(params, day=day, source_file=settings.prompts_file, exclude=frozen) for day in context.partition_keys),
        PROMPTS,
    )
    per_category = frame["category"].value_counts()
    yield from deliver(
        context,
        registry,
        frame,
        metrics={"n_prompts": len(frame), "n_categories": len(per_category), "share_checkable": frame["reference"].notna().mean()},
        usual=[
            usually("expect_column_value_lengths_to_be_between", column="text", min_value=8, max_value=4000, mostly=0.99),
            usually("expect_column_unique_value_count_to_be_between", column="category", min_value=2),
        ],
        headline=f"{len(frame)} prompts in {len(per_category)} categories",
        rows=frame[["category", "difficulty", "text", "reference"]],
    )

"""Prompts of a day from the configured source, with exact quotas per category and difficulty."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    daily_asset,
    deliver,
    expect_usually,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.frames import PROMPTS, concat
from rlhf_pipeline.generate.completions.text_generator import BackendTextGenerator
from rlhf_pipeline.generate.prompts import Report, generate
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.improve.evaluation import frozen_prompt_ids
from rlhf_pipeline.improve.evaluation_sets import PromptSource, freeze
from rlhf_pipeline.improve.loop_settings import LoopSettings, PromptsParams
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.learn.reward_model import Encoder
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.words import format_count

MAX_LISTED_REJECTIONS = 20


class PromptsConfig(PromptsParams, dg.Config):
    """Parameters of a day's prompts."""


@daily_asset(
    "prompts",
    "generate",
    "parquet",
    checks={
        "text_length": "99 % of prompts have 8 to 4,000 characters.",
        "several_categories": "The prompts are of two categories or more.",
    },
)
def prompts(
    context: dg.AssetExecutionContext,
    config: PromptsConfig,
    settings: dg.ResourceParam[Settings],
    champions: dg.ResourceParam[Champions],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """The prompts of a day, without those of the frozen evaluation set."""
    values = config.model_dump(exclude={"uses_backend"}) | {
        "source": config.source or settings.prompt_source
    }
    params, report = SourceParams(**values), Report()
    embed = Encoder(settings.encoder).encode if params.topic else None
    ledger = champions.store.generation
    calls = LoopSettings.read(settings, only="completions").calls()
    writer = (
        BackendTextGenerator(champions.backend(settings), ledger=ledger, calls=calls)
        if config.uses_backend
        else None
    )
    here, loop_source = PromptSource(params, writer, embed), PromptSource.of_loop(settings, writer)
    source = loop_source if loop_source.is_named else here
    if here.describe(settings) != source.describe(settings):
        context.log.warning(
            f"These prompts are from {here.describe(settings)}. The evaluation set is drawn from "
            f"{source.describe(settings)}, as the settings say: change them if the project's "
            "source has changed."
        )
    held_out = freeze(settings, champions.store, source)
    frozen = champions.store.evaluation_sets.prompts(held_out.version) if held_out else None
    if frozen is None:
        context.log.warning(
            "The source has too few prompts for an evaluation set, so no candidate can be judged. "
            "Add prompts, or name a file of others (RLHF_EVALUATION_FILE)."
        )
    try:
        frame = concat(
            (
                generate(
                    params,
                    day=day,
                    source_file=settings.prompts_file,
                    text_generator=writer,
                    exclude=frozenset() if frozen is None else frozen_prompt_ids(frozen),
                    report=report,
                    embed=embed,
                )
                for day in context.partition_keys
            ),
            PROMPTS,
        )
    finally:  # log why texts are missing
        for reason, n in sorted(writer.failures_.items()) if writer is not None else ():
            context.log.warning(f"{n:,} not written: {reason}")
    for rejection in report.rejections[:MAX_LISTED_REJECTIONS]:
        context.log.warning(f"Rejected by {rejection.rule}: {rejection}.")
    per_category = frame["category"].value_counts()
    counts = {
        f"n_{name.replace('-', '_')}": n for name, n in report.counts.items() if name != "kept"
    }
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{format_count(len(frame), 'prompt')} in {len(per_category)} categories",
            metrics={
                "n_prompts": len(frame),
                "n_categories": len(per_category),
                "share_checkable": frame["reference"].notna().mean(),
            }
            | counts
            | ({"n_not_written": sum(writer.failures_.values())} if writer is not None else {}),
            rows=frame[["category", "difficulty", "text", "reference"]],
            texts={"rejected_prompts.txt": "".join(f"{r.rule}: {r}\n" for r in report.rejections)}
            if report.rejections
            else {},
        ),
        usual=[
            expect_usually(
                "text_length",
                "expect_column_value_lengths_to_be_between",
                column="text",
                min_value=8,
                max_value=4000,
                mostly=0.99,
            ),
            expect_usually(
                "several_categories",
                "expect_column_unique_value_count_to_be_between",
                column="category",
                min_value=2,
            ),
        ],
    )

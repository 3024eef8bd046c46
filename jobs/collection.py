"""Collection: makes a day's prompts, completions and comparisons before people start to vote."""

import dagster as dg

from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.application.jobs.loop import RETRIED, daily_schedule
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.improve.loop_settings import LoopSettings

collection = dg.define_asset_job(
    "collection",
    selection=["prompts", "completions", "comparisons"],
    description="Prompts → completions → comparisons of a day, published for voting with the "
    "champion's predictions.",
    executor_def=light_executor,
    tags=RETRIED,
)


def collection_schedule(
    settings: Settings, loop: LoopSettings, status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    return daily_schedule(
        "collection_morning",
        collection,
        loop.schedules.cron("collection"),
        lambda day: dg.RunRequest(run_key=f"collection:{day}", partition_key=f"{day}"),
        description="Today's comparisons, before people start to vote.",
        settings=settings,
        status=status,
    )

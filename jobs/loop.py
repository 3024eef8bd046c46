"""What jobs and sensors share: store, loop settings of a tick, schedules of one run a day."""

from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import Any

import dagster as dg

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store import Store

# Retries by Dagster of a killed run. A retraining is tried again by its decision, a step of a
# replay by the replay.
RETRIES_TAG = "dagster/max_retries"
RETRIED = {RETRIES_TAG: "2"}
ENDED_STATUSES = [
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
]


@lru_cache(maxsize=4)
def open_store(settings: Settings) -> Store:
    """Open the store once per process and database, because sensors tick every few seconds."""
    return Store.of_home(settings)


def read_loop(settings: Settings) -> LoopSettings | dg.SkipReason:
    """The loop settings as the file has them now, or why this tick is skipped: a run could not use
    an invalid file.
    """
    try:
        return LoopSettings.read(settings)
    except ConfigurationError as cause:
        return dg.SkipReason(f"The settings cannot be used. {cause}")


def daily_schedule(
    name: str,
    job: Any,  # a JobDefinition, or what define_asset_job returns
    cron: str,
    request: Callable[[date], dg.RunRequest | dg.SkipReason],
    *,
    description: str,
    settings: Settings,
    status: dg.DefaultScheduleStatus,
) -> dg.ScheduleDefinition:
    """A schedule that makes at most one request for each day, in UTC."""

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=status,
        description=description,
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        loop = read_loop(settings)
        if isinstance(loop, dg.SkipReason):
            return loop
        return request(context.scheduled_execution_time.date())

    return evaluate

"""Housekeeping: old runs are purged, because event logs grow without bound."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from jobs.executors import light_executor
from rlhf_pipeline.config import Settings

RUNS_PER_NIGHT = 2000


@dg.op(description="Deletes runs, with their events, that ended before the setting `keep_days`.")
def purge_runs(context: dg.OpExecutionContext, settings: dg.ResourceParam[Settings]) -> None:
    before = datetime.now(UTC) - timedelta(days=settings.keep_days)
    old = context.instance.get_run_records(
        dg.RunsFilter(
            created_before=before, statuses=[dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
        ),
        limit=RUNS_PER_NIGHT,
    )
    for record in old:
        context.instance.delete_run(record.dagster_run.run_id)
    context.log.info(f"Purged {len(old)} runs that were created before {before.date()}.")


@dg.job(description="Purges old runs.", executor_def=light_executor)
def housekeeping() -> None:
    purge_runs()


def housekeeping_schedule(status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name="housekeeping_nightly", job=housekeeping, cron_schedule="15 3 * * *", execution_timezone="UTC", default_status=status
    )

"""Housekeeping: old runs are purged, because event logs grow without bound, and the audit chain gets its anchor of the day."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from jobs.executors import light_executor
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store, anchors

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


@dg.op(description="Writes down where the audit chain stands, so that a tail that is cut off later is missed.")
def anchor_audit_chain(context: dg.OpExecutionContext, store: dg.ResourceParam[Store], settings: dg.ResourceParam[Settings]) -> None:
    path = settings.home / anchors.FILE
    dropped = anchors.drop_anchor(path, store.audit, settings.organization, settings.project, datetime.now(UTC))
    context.log.info(
        f"Anchored seq {dropped.seq} in {path}." if dropped else f"Nothing to anchor: the chain is empty, or {path} has today's."
    )


@dg.job(description="Purges old runs and anchors the audit chain.", executor_def=light_executor)
def housekeeping() -> None:
    purge_runs()
    anchor_audit_chain()


def housekeeping_schedule(status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name="housekeeping_nightly", job=housekeeping, cron_schedule="15 3 * * *", execution_timezone="UTC", default_status=status
    )

"""Housekeeping: deletes expired data every night and anchors the audit chain."""

from collections import Counter
from datetime import UTC, datetime

import dagster as dg

from jobs.executors import light_executor
from jobs.retention import Retention
from rlhf_pipeline.config import Settings
from rlhf_pipeline.loop_settings import LoopSettings
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store, anchors


@dg.op(description="Deletes what the settings `keep_…` no longer keep.")
def retain(
    context: dg.OpExecutionContext,
    settings: dg.ResourceParam[Settings],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> None:
    deleted = Counter[str]()
    for item in Retention(settings, store, registry, context.instance, datetime.now(UTC)).retain():
        deleted[item.kind] += item.n
    context.log.info(
        f"Deleted {', '.join(f'{n} {kind}' for kind, n in deleted.items()) or 'nothing'}."
    )


@dg.op(
    description="Records the end of the audit chain, so that a tail that is cut off later is "
    "noticed."
)
def anchor_audit_chain(
    context: dg.OpExecutionContext,
    store: dg.ResourceParam[Store],
    settings: dg.ResourceParam[Settings],
) -> None:
    path = settings.home / anchors.FILE
    dropped = anchors.add_daily_anchor(
        path, store.audit, settings.organization, settings.project, datetime.now(UTC)
    )
    context.log.info(
        f"Anchored seq {dropped.seq} in {path}."
        if dropped
        else f"Nothing to anchor: the chain is empty, or {path} has today's."
    )


@dg.job(
    description="Deletes what is no longer kept and anchors the audit chain.",
    executor_def=light_executor,
)
def housekeeping() -> None:
    retain()
    anchor_audit_chain()


def housekeeping_schedule(
    loop: LoopSettings, status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name="housekeeping_nightly",
        job=housekeeping,
        cron_schedule=loop.schedules.cron("housekeeping"),
        execution_timezone="UTC",
        default_status=status,
    )

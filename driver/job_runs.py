"""Reads the runs of training jobs from Dagster, and waits while others run them."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from time import sleep

import dagster as dg

from assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.retraining.jobs import JobRun
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.decisions import OPEN_STATES
from sensors.run_health import ALIVE, is_dead
from sensors.runs import ENDED_STATUSES, describe_failure

WAIT_S = 2.0


def find_job_runs(instance: dg.DagsterInstance, decision_ids: Sequence[str]) -> dict[str, JobRun]:
    """The last run of each of these decisions that has one."""
    if not decision_ids:
        return {}
    wanted = dg.RunsFilter(tags={DECISION_TAG: list(decision_ids)})
    records = instance.get_run_records(wanted, ascending=True)
    return {
        record.dagster_run.tags[DECISION_TAG]: _describe_run(instance, record) for record in records
    }


def _describe_run(instance: dg.DagsterInstance, record: dg.RunRecord) -> JobRun:
    run = record.dagster_run
    has_failed = run.status == dg.DagsterRunStatus.FAILURE
    return JobRun(
        run_id=run.run_id,
        status=run.status.value,
        updated_at=record.update_timestamp,
        started_at=_to_time(record.start_time),
        ended_at=_to_time(record.end_time),
        error=describe_failure(instance, run.run_id) if has_failed else None,
    )


def _to_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def wait_for_end(
    instance: dg.DagsterInstance,
    store: Store,
    decision_id: int,
    dead_after: timedelta,
    pause: Callable[[float], None] = sleep,
) -> bool:
    """Wait while another process runs a job. True if none runs it yet; False once it has ended, was
    cancelled, or its process is gone.
    """
    wanted = dg.RunsFilter(tags={DECISION_TAG: str(decision_id)})
    while True:
        pause(WAIT_S)
        record = next(iter(instance.get_run_records(wanted, limit=1)), None)
        status = None if record is None else record.dagster_run.status
        if status in ENDED_STATUSES:
            return False
        if record is None or status not in ALIVE:
            return store.decisions.get(decision_id).state in OPEN_STATES
        if is_dead(record, store, datetime.now(UTC), dead_after):
            return False

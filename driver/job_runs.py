"""Reads the runs of training jobs from Dagster."""

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.sensors.runs import describe_failure
from rlhf_pipeline.improve.retraining.jobs import JobRun


def find_job_runs(instance: dg.DagsterInstance, decision_ids: Sequence[str]) -> dict[str, JobRun]:
    """The last run of each of these decisions that has one."""
    if not decision_ids:
        return {}
    job_filter = dg.RunsFilter(tags={DECISION_TAG: list(decision_ids)})
    records = instance.get_run_records(job_filter, ascending=True)
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

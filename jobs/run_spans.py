"""Describes a run that ended, with its steps, to the tracer."""

import logging
import time

import dagster as dg

from rlhf_pipeline.config import Settings
from rlhf_pipeline.telemetry.spans import EndedRun, EndedStep
from rlhf_pipeline.telemetry.tracing import open_tracer

log = logging.getLogger(__name__)
# Dagster's own tags; its public API has no names for them
PARTITION_TAGS = ("dagster/partition", "dagster/asset_partition_range_start")


def record_run(settings: Settings, instance: dg.DagsterInstance, run_id: str) -> None:
    """Does nothing without a tracer. Called at the end of a run, before or after Dagster marks it
    as ended; an error here is logged, because the run's own work is done.
    """
    tracer = open_tracer(settings)
    if tracer is None:
        return
    try:
        ended = _read_run(instance, run_id)
    except Exception:
        log.exception("The run %s has no span: Dagster's record of it could not be read.", run_id)
    else:
        tracer.record_run(ended)


def _read_run(instance: dg.DagsterInstance, run_id: str) -> EndedRun:
    record = instance.get_run_record_by_id(run_id)
    assert record is not None  # it has just ended
    run, now = record.dagster_run, time.time()
    steps = [
        EndedStep(
            key=step.step_key,
            started_at=step.start_time,
            ended_at=step.end_time or now,
            has_failed=step.status is not None and step.status.value != "SUCCESS",
            n_attempts=len(step.attempts_list),
        )
        for step in instance.get_run_step_stats(run_id)
        if step.start_time is not None
    ]
    began = record.start_time or record.create_timestamp.timestamp()
    return EndedRun(
        run_id=run_id,
        job=run.job_name,
        started_at=began,
        ended_at=record.end_time or now,
        has_failed=run.status == dg.DagsterRunStatus.FAILURE
        or any(step.has_failed for step in steps),
        partition=next((run.tags[tag] for tag in PARTITION_TAGS if tag in run.tags), ""),
        steps=steps,
    )

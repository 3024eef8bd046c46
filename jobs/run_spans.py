"""Describes a run that ended, with its steps, to the tracer."""

import logging
import time
from typing import TYPE_CHECKING

import dagster as dg

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.watch.telemetry.tracing import open_tracer

if TYPE_CHECKING:
    from rlhf_pipeline.watch.telemetry.otlp import Tracer

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
        _record(tracer, instance, run_id)
    except Exception:
        log.exception("The run %s has no span: Dagster's record of it could not be read.", run_id)


def _record(tracer: "Tracer", instance: dg.DagsterInstance, run_id: str) -> None:
    record = instance.get_run_record_by_id(run_id)
    assert record is not None  # it has just ended
    run, now, has_failed = record.dagster_run, time.time(), False
    shared = {"rlhf.run_id": run_id, "rlhf.job": run.job_name}
    if partition := next((run.tags[tag] for tag in PARTITION_TAGS if tag in run.tags), ""):
        shared["rlhf.partition"] = partition
    for step in instance.get_run_step_stats(run_id):
        if step.start_time is None:
            continue
        failed = step.status is not None and step.status.value != "SUCCESS"
        has_failed |= failed
        tracer.record_step(
            run_id,
            step.step_key,
            (step.start_time, step.end_time or now),
            shared | {"rlhf.step": step.step_key, "rlhf.attempts": len(step.attempts_list)},
            name=f"step {step.step_key}",
            error="step_failed" if failed else None,
        )
    has_failed |= run.status == dg.DagsterRunStatus.FAILURE
    began = record.start_time or record.create_timestamp.timestamp()
    tracer.record_step(
        run_id,
        "",
        (began, record.end_time or now),
        shared,
        name=f"run {run.job_name}",
        error="run_failed" if has_failed else None,
    )

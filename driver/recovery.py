"""Ends runs whose process is gone."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from rlhf_pipeline.application.driver.run_launcher import is_dead
from rlhf_pipeline.application.jobs.loop import RETRIES_TAG
from rlhf_pipeline.application.sensors.runs import release_request
from rlhf_pipeline.store import Store


def fail_dead_runs(instance: dg.DagsterInstance, store: Store, limit: timedelta) -> list[str]:
    """Fail unfinished runs whose process is gone and return their ids."""
    statuses = [
        dg.DagsterRunStatus.NOT_STARTED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
    dead = [
        r.dagster_run
        for r in instance.get_run_records(dg.RunsFilter(statuses=statuses))
        if _is_dead(r, store, limit)
    ]
    for run in dead:
        if run.remote_job_origin is None:  # a daemon would request it too
            instance.add_run_tags(run.run_id, {RETRIES_TAG: "0"})
        instance.report_run_failed(run, "The process of this run is gone.")
        release_request(instance, run.run_id)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        store.heartbeats.clear(run.run_id)
    return [run.run_id for run in dead]


def _is_dead(record: dg.RunRecord, store: Store, limit: timedelta) -> bool:
    run = record.dagster_run
    beat = store.heartbeats.get(run.run_id)
    # without a beat: run in a command that was killed before its first one
    never_began = beat is None and run.remote_job_origin is None
    return never_began or is_dead(record.update_timestamp, beat, datetime.now(UTC), 2 * limit)

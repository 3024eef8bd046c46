"""Ends runs whose process is gone and frees the run keys that they block."""

import os
from datetime import UTC, datetime, timedelta

import dagster as dg

from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.run_health import ALIVE, fail_run, is_dead, works_here
from sensors.runs import RUN_KEY_TAG, SCHEDULE_NAME_TAG, SENSOR_NAME_TAG

# A retraining decision counts its own attempts; the other sensors request each key once.
ASK_ONCE_SENSORS = ("votes", "learning", "paused_runs")


def recover(instance: dg.DagsterInstance, store: Store, settings: Settings) -> None:
    """End what a dead process left, so that it is requested again."""
    fail_dead_runs(instance, store, timedelta(seconds=settings.dead_after_seconds))
    release_run_keys(instance)


def fail_dead_runs(instance: dg.DagsterInstance, store: Store, limit: timedelta) -> list[str]:
    """Fail unfinished runs whose process is gone and return their ids.

    Unlike the run health sensor this does not wait for a process of this machine to stay silent.
    """
    statuses = [*ALIVE, dg.DagsterRunStatus.NOT_STARTED]
    dead = [
        r.dagster_run
        for r in instance.get_run_records(dg.RunsFilter(statuses=statuses))
        if _is_dead(r, store, limit)
    ]
    for run in dead:
        fail_run(instance, store, run, "The process of this run is gone.")
    return [run.run_id for run in dead]


def _is_dead(record: dg.RunRecord, store: Store, limit: timedelta) -> bool:
    run = record.dagster_run
    beat = store.heartbeats.get(run.run_id)
    if beat is not None and beat.host == os.uname().nodename:
        return not works_here(beat)
    if beat is None and run.remote_job_origin is None:
        return True  # run in process, killed before its first beat
    # the retraining sensor fails runs that a dead daemon never launched
    is_launched = run.status != dg.DagsterRunStatus.NOT_STARTED
    return is_launched and is_dead(record, store, datetime.now(UTC), 2 * limit)


def release_run_keys(instance: dg.DagsterInstance) -> None:
    """Let sensors and schedules request again what failed or was killed in process: nothing else
    retries it.
    """
    ended = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    for run in instance.get_runs(dg.RunsFilter(statuses=ended)):
        asked_once = (
            SCHEDULE_NAME_TAG in run.tags or run.tags.get(SENSOR_NAME_TAG) in ASK_ONCE_SENSORS
        )
        key = run.tags.get(RUN_KEY_TAG, "")
        if asked_once and run.remote_job_origin is None and not key.endswith(run.run_id):
            instance.add_run_tags(run.run_id, {RUN_KEY_TAG: f"{key}:failed:{run.run_id}"})

"""What an earlier demo's dead process left behind: runs that nobody ends, run keys that block.
Knows runs; judges no living one.
"""

import os
from datetime import UTC, datetime, timedelta

import dagster as dg

# the public API has no names for these tags
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG

from rlhf_pipeline.store import Store
from sensors.run_health import ALIVE, fail_run, release_run, works_here

# A decision counts its own attempts; the other sensors ask once per key.
ASK_ONCE_SENSORS = ("votes", "learning")


def fail_dead_runs(instance: dg.DagsterInstance, store: Store, limit: timedelta) -> list[str]:
    """Fail unfinished runs whose process is gone, without the wait of the run health sensor, and
    return their ids.
    """
    statuses = [*ALIVE, dg.DagsterRunStatus.NOT_STARTED]
    dead = [
        r.dagster_run
        for r in instance.get_run_records(dg.RunsFilter(statuses=statuses))
        if _is_dead(r, store, limit)
    ]
    for run in dead:
        fail_run(instance, store, run, "The process of this run is gone.")
    for beat in store.heartbeats.find_stale(datetime.now(UTC)):
        ended = instance.get_run_by_id(beat.run_id)
        if ended is not None and ended.is_finished and ended.remote_job_origin is None:
            # interrupted; a daemon would run it again beside the demo
            release_run(instance, store, beat.run_id)
    return [run.run_id for run in dead]


def _is_dead(record: dg.RunRecord, store: Store, limit: timedelta) -> bool:
    run = record.dagster_run
    beat = store.heartbeats.get(run.run_id)
    if beat is not None and beat.host == os.uname().nodename:
        return not works_here(beat)
    is_by_daemon = run.remote_job_origin is not None
    if beat is None and not is_by_daemon:
        return True  # a demo's, killed before its first beat
    if run.status == dg.DagsterRunStatus.NOT_STARTED:
        return False  # the retraining sensor fails those of a dead daemon
    return datetime.now(UTC) - (beat.at if beat else record.update_timestamp) > 2 * limit


def release_run_keys(instance: dg.DagsterInstance) -> None:
    """Let the sensors ask again for what failed or was killed: a demo has no retry but its next
    call.
    """
    ended = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    for run in instance.get_runs(
        dg.RunsFilter(statuses=ended, tags={SENSOR_NAME_TAG: list(ASK_ONCE_SENSORS)})
    ):
        key = run.tags.get(RUN_KEY_TAG, "")
        if run.remote_job_origin is None and not key.endswith(run.run_id):
            instance.add_run_tags(run.run_id, {RUN_KEY_TAG: f"{key}:failed:{run.run_id}"})

"""The run health sensor: fails runs whose heartbeat stopped, because Dagster's default launcher
does not notice a killed run.

A failed run frees its pool slots. Dagster executes a killed run of the daily jobs again
(`run_retries` in dagster.yaml), but none that a command ran in its own process: such a run is
requested again here. A killed retraining is retried by its decision (sensors/retraining.py), a
killed step of a replay by the replay.
"""

import os
from datetime import UTC, datetime, timedelta

import dagster as dg
import psutil

from jobs.collection import collection
from jobs.feedback import feedback, learning
from jobs.loop import RETRIES_TAG
from jobs.run_spans import record_run
from rlhf_pipeline.config import Settings
from rlhf_pipeline.retraining.jobs import START_SECONDS, longest_start
from rlhf_pipeline.store import Heartbeat, Store
from sensors.runs import PARTITION_TAG, RANGE_END_TAG, RANGE_START_TAG, is_ours, store_of

# how many times longer to wait for a silent process that is alive on this host
PATIENCE = 5
ALIVE = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def run_health_sensor(
    settings: Settings, status: dg.DefaultSensorStatus, *, start_seconds: float = START_SECONDS
) -> dg.SensorDefinition:
    limit = timedelta(seconds=settings.dead_after_seconds)

    @dg.sensor(
        name="run_health",
        jobs=[collection, feedback, learning],
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def run_health(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Fails runs that have been silent for longer than `dead_after_seconds`, and requests again
        those of daily jobs that Dagster cannot repeat.
        """
        store = store_of(context, settings)
        now = datetime.now(UTC)
        alive = [
            r
            for r in context.instance.get_run_records(dg.RunsFilter(statuses=list(ALIVE)))
            if is_ours(context, r.dagster_run)
        ]
        dead = [r.dagster_run for r in alive if is_dead(r, store, now, limit, start_seconds)]
        for run in dead:
            fail_run(
                context.instance,
                store,
                run,
                f"No heartbeat for {limit.total_seconds():.0f} s: the process of this run is gone.",
            )
            record_run(settings, context.instance, run.run_id)
        _release_ended_runs(context.instance, store, now - limit)
        again = [
            _request_again(run)
            for run in dead
            if run.remote_job_origin is None and run.tags.get(RETRIES_TAG, "0") != "0"
        ]
        return dg.SensorResult(
            run_requests=again, skip_reason=None if again else f"{len(dead)} dead runs"
        )

    return run_health


def is_dead(
    record: dg.RunRecord,
    store: Store,
    now: datetime,
    limit: timedelta,
    start_seconds: float = START_SECONDS,
) -> bool:
    """Whether the process of a run has been silent for so long that it is gone."""
    beat = store.heartbeats.get(record.dagster_run.run_id)
    if beat is None:
        # A run without a beat may still import and open the store. If it were failed while it
        # starts, it could go on beside the run that is requested in its place.
        return now - record.update_timestamp > longest_start(limit, start_seconds)
    # After a suspended machine wakes, this sensor may tick before the run's process beats again.
    return now - beat.at > (PATIENCE * limit if works_here(beat) else limit)


def works_here(beat: Heartbeat) -> bool:
    """Whether the process of this heartbeat is alive on this host."""
    if beat.host != os.uname().nodename:
        return False
    try:
        process = psutil.Process(beat.pid)
        return bool(
            process.status() != psutil.STATUS_ZOMBIE
            and process.create_time() <= beat.at.timestamp()
        )
    except psutil.NoSuchProcess:
        return False


def _request_again(run: dg.DagsterRun) -> dg.RunRequest:
    """A request for what a killed command ran. If that run is killed too, Dagster repeats it."""
    kept = ("rlhf/", RANGE_START_TAG, RANGE_END_TAG)
    return dg.RunRequest(
        run_key=f"killed:{run.run_id}",
        job_name=run.job_name,
        partition_key=run.tags.get(PARTITION_TAG),
        run_config=run.run_config,
        tags={name: value for name, value in run.tags.items() if name.startswith(kept)},
    )


def _release_ended_runs(instance: dg.DagsterInstance, store: Store, silent: datetime) -> None:
    """Free what killed runs held that Dagster's code server has failed."""
    for beat in store.heartbeats.find_stale(silent):
        run = instance.get_run_by_id(beat.run_id)
        if run is None or run.is_finished:
            release_run(instance, store, beat.run_id)


def fail_run(instance: dg.DagsterInstance, store: Store, run: dg.DagsterRun, why: str) -> None:
    """Mark a killed run as failed and free what it held."""
    instance.report_run_failed(run, why)
    release_run(instance, store, run.run_id)


def release_run(instance: dg.DagsterInstance, store: Store, run_id: str) -> None:
    """Free what an ended run held."""
    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    store.heartbeats.clear(run_id)

"""The run health sensor: the default launcher does not notice a killed run, so runs that stop beating are failed here.

A failed run frees its pool slots; a killed run of the daily jobs is requested again, a killed retraining is retried by
its decision (sensors/retraining.py).
"""

from datetime import UTC, datetime, timedelta

import dagster as dg

from jobs.collection import collection
from jobs.feedback import feedback, learning
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.runs import unseen

RETRIED_JOBS = (collection, feedback, learning)
RETRY_TAG = "rlhf/retry_of"
MAX_RETRIES = 2
ALIVE = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def run_health_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    limit = timedelta(seconds=settings.dead_after_seconds)

    @dg.sensor(name="run_health", jobs=list(RETRIED_JOBS), minimum_interval_seconds=15, default_status=status)
    def run_health(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult | dg.SkipReason:
        """Fails runs that have been silent for longer than `dead_after_seconds` and asks for the daily ones again."""
        now = datetime.now(UTC)
        dead = [r for r in context.instance.get_run_records(dg.RunsFilter(statuses=list(ALIVE))) if _is_dead(r, store, now, limit)]
        for record in dead:
            bury(context.instance, store, record.dagster_run, limit)
        requests = unseen(context.instance, [r for record in dead if (r := _again(record.dagster_run))])
        return dg.SensorResult(run_requests=requests, skip_reason=None if requests else f"{len(dead)} dead runs")

    return run_health


def _is_dead(record: dg.RunRecord, store: Store, now: datetime, limit: timedelta) -> bool:
    beat = store.heartbeats.get(record.dagster_run.run_id)
    # A run that never beat is given the time to import and to open the store.
    last = beat.at if beat else datetime.fromtimestamp(record.start_time or record.create_timestamp.timestamp(), UTC) + limit
    return now - last > limit


def bury(instance: dg.DagsterInstance, store: Store, run: dg.DagsterRun, limit: timedelta) -> None:
    """Mark a killed run as failed and free what it held."""
    instance.report_run_failed(run, f"No heartbeat for {limit.total_seconds():.0f} s: the process of this run is gone.")
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    store.heartbeats.clear(run.run_id)


def _again(run: dg.DagsterRun) -> dg.RunRequest | None:
    if run.job_name not in {job.name for job in RETRIED_JOBS}:
        return None
    n = int(run.tags.get("rlhf/retries", "0")) + 1
    if n > MAX_RETRIES:
        return None
    kept = {k: v for k, v in run.tags.items() if k.startswith("dagster/asset_partition_range")}
    return dg.RunRequest(
        run_key=f"retry:{run.run_id}",
        job_name=run.job_name,
        partition_key=run.tags.get("dagster/partition"),
        run_config=run.run_config,
        tags=kept | {RETRY_TAG: run.run_id, "rlhf/retries": str(n)},
    )

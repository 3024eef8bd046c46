"""The paused runs sensor: a run that waits for a provider is requested again once the wait is over.

The work ledger knows until when a run waits and which run of Dagster made it. The days that the run
had not made are requested again under the same configuration; calls that were answered are in the
ledger and are not repeated.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.partitions import DAYS
from jobs.collection import collection
from jobs.loop import read_loop
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation_reports import RunRow
from sensors.runs import PARTITION_TAG, RANGE_END_TAG, RANGE_START_TAG, find_run, store_of
from sensors.votes import group_neighbouring_days

COMPLETIONS = dg.AssetKey("completions")
RESUMED = (COMPLETIONS, dg.AssetKey("comparisons"))  # the prompts are made: a run pauses after them


def paused_runs_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="paused_runs",
        job=collection,
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def paused_runs(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests again what waited for a provider, once its wait is over."""
        store, loop = store_of(context, settings), read_loop(settings)
        if isinstance(loop, dg.SkipReason):
            return loop
        paused = [run for run in store.generation.paused_runs() if run.parked_until is not None]
        requests = [request for run in paused for request in _resume(context.instance, store, run)]
        if requests:
            return dg.SensorResult(run_requests=requests)
        return dg.SkipReason(
            f"{len(paused)} runs are paused, until {paused[0].parked_until} the first"
            if paused
            else "no run is paused"
        )

    return paused_runs


def _resume(instance: dg.DagsterInstance, store: Store, paused: RunRow) -> Sequence[dg.RunRequest]:
    """Requests for the days of a paused run that were not made since. Once a run for each of them
    has ended, the paused one leaves the ledger's list: those pause, fail or end on their own.
    """
    if paused.parked_until is None or paused.parked_until > datetime.now(UTC):
        return []
    record = instance.get_run_record_by_id(paused.origin) if paused.origin else None
    if record is None or not record.dagster_run.is_finished:
        return []
    key = f"parked:{paused.run_id}:{paused.parked_until}"
    stretches = group_neighbouring_days(_missing_days(instance, record))
    asked = [
        _request_again(record.dagster_run, f"{key}:{days[0]}...{days[-1]}", days)
        for days in stretches
    ]
    started = [find_run(instance, request.run_key or "") for request in asked]
    # A run that makes the same requests takes the paused one over as it starts. If that had ended
    # while the new run is queued, what was refused for good would be asked for and paid again.
    if all(run is not None and run.is_finished for run in started):
        store.generation.end(paused.run_id)
    return [request for request, run in zip(asked, started, strict=True) if run is None]


def _missing_days(instance: dg.DagsterInstance, record: dg.RunRecord) -> list[str]:
    """The days of a run without completions of a later run, which another one would overwrite."""
    tags = record.dagster_run.tags
    day = tags.get(PARTITION_TAG)
    first, last = tags.get(RANGE_START_TAG, day), tags.get(RANGE_END_TAG, day)
    if first is None or last is None:
        return []
    days = DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(first, last))
    made = dg.AssetRecordsFilter(
        asset_key=COMPLETIONS,
        asset_partitions=days,
        after_timestamp=record.create_timestamp.timestamp(),
    )
    events = instance.fetch_materializations(made, limit=1_000).records
    return sorted(set(days) - {event.partition_key for event in events if event.partition_key})


def _request_again(run: dg.DagsterRun, run_key: str, days: Sequence[str]) -> dg.RunRequest:
    """A request for what `run` was to make of these days from the completions on."""
    left = [key for key in RESUMED if key in (run.asset_selection or RESUMED)]
    config: dict[str, Any] = dict(run.run_config)
    names = {key.to_user_string() for key in left}
    config["ops"] = {name: own for name, own in config.get("ops", {}).items() if name in names}
    span = {RANGE_START_TAG: days[0], RANGE_END_TAG: days[-1]} if len(days) > 1 else {}
    return dg.RunRequest(
        run_key=run_key,
        job_name=collection.name,
        partition_key=days[0] if len(days) == 1 else None,
        run_config=config,
        asset_selection=left,
        tags=span,
    )

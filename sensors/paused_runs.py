"""The paused runs sensor: a run that waits for a provider is requested again once the wait is over.

The work ledger knows until when a run waits and which run of Dagster made it. What that run had not
made is requested again under the same configuration; calls that were answered are in the ledger and
are not repeated.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import dagster as dg

from assets.partitions import DAYS
from jobs.collection import collection
from jobs.loop import read_loop
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation_reports import RunRow
from sensors.run_health import RETRY_TAG
from sensors.runs import PARTITION_TAG, RANGE_END_TAG, RANGE_START_TAG, RUN_KEY_TAG, store_of
from sensors.votes import group_neighbouring_days

# after a run that failed before it reached the ledger; doubles up to a day
FIRST_WAIT = timedelta(minutes=10)
COMPLETIONS = dg.AssetKey("completions")


def paused_runs_sensor(
    settings: Settings, status: dg.DefaultSensorStatus, *, first_wait: timedelta = FIRST_WAIT
) -> dg.SensorDefinition:
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
        requests = [
            request
            for run in paused
            for request in _resume(context, store, run, first_wait=first_wait)
        ]
        if requests:
            return dg.SensorResult(run_requests=requests)
        return dg.SkipReason(
            f"{len(paused)} runs are paused, until {paused[0].parked_until} the first"
            if paused
            else "no run is paused"
        )

    return paused_runs


def _resume(
    context: dg.SensorEvaluationContext, store: Store, paused: RunRow, *, first_wait: timedelta
) -> Iterator[dg.RunRequest]:
    """Requests for the days of a paused run that were not made since. A run with none left leaves
    the ledger's list of paused ones.
    """
    instance = context.instance
    if paused.parked_until is None or paused.parked_until > datetime.now(UTC):
        return
    record = instance.get_run_record_by_id(paused.origin) if paused.origin else None
    if record is None or not record.dagster_run.is_finished:
        return
    days = _requested_days(record.dagster_run)
    missing = _missing_days(instance, store, paused, record, days)
    if not missing:
        store.generation.end(paused.run_id)
        context.log.info(
            f"{paused.run_id} waits no more: its days' completions were made again since, or "
            "another run has taken them over."
        )
    if days not in missing.values() and json.loads(paused.record).get("calls", {}).get("batch"):
        context.log.warning(
            f"No run reads the batches of {paused.run_id} any more: its remaining days are paid "
            "for again."
        )
    for first_key, of in missing.items():
        if (key := _next_run_key(instance, first_key, first_wait)) is not None:
            yield _request_again(instance, record.dagster_run, key, of)


def _next_run_key(instance: dg.DagsterInstance, first_key: str, wait: timedelta) -> str | None:
    """The key for the next request; None while a run under an earlier one works, or failed less
    than `wait` ago, which doubles each time.

    A run that reached the ledger is not paused any more, or until another time: so those that are
    met here ended before they reached it.
    """
    for key, record in _requested_runs(instance, first_key):
        if record is None:
            return key
        if not record.dagster_run.is_finished or datetime.now(UTC) - record.update_timestamp < wait:
            return None
        wait = min(2 * wait, timedelta(days=1))
    return None


def _requested_runs(
    instance: dg.DagsterInstance, first_key: str
) -> Iterator[tuple[str, dg.RunRecord | None]]:
    """The runs under `first_key` and the keys after it; the last key has none."""
    for n in count():
        key = f"{first_key}:{n}" if n else first_key
        records = instance.get_run_records(dg.RunsFilter(tags={RUN_KEY_TAG: key}), limit=1)
        yield key, records[0] if records else None
        if not records:
            return


def _missing_days(
    instance: dg.DagsterInstance,
    store: Store,
    paused: RunRow,
    record: dg.RunRecord,
    days: list[str],
) -> dict[str, list[str]]:
    """By first run key, the days to request: all of a paused run, or the stretches of them that
    were not made since.
    """
    # persisted: earlier requests are found by this key
    key = f"parked:{paused.run_id}:{paused.parked_until}"
    made = _days_made_since(instance, record, days)
    if not made:
        return {key: days}
    stretches = {
        f"{key}:{of[0]}...{of[-1]}": of
        for of in group_neighbouring_days([day for day in days if day not in made])
    }
    return {
        first_key: of
        for first_key, of in stretches.items()
        if not _has_reached_ledger(instance, store, first_key)
    }


def _has_reached_ledger(instance: dg.DagsterInstance, store: Store, first_key: str) -> bool:
    """Whether a run that was requested under this key reached the ledger: from there on it waits,
    fails or ends on its own.
    """
    requested = {
        record.dagster_run.run_id
        for _, record in _requested_runs(instance, first_key)
        if record is not None
    }
    return bool(requested) and any(run.origin in requested for run in store.generation.list_runs())


def _requested_days(run: dg.DagsterRun) -> list[str]:
    """The days of which a run was to make completions."""
    day = run.tags.get(PARTITION_TAG)
    first, last = run.tags.get(RANGE_START_TAG, day), run.tags.get(RANGE_END_TAG, day)
    if first is None or last is None:
        return []
    return list(DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(first, last)))


def _days_made_since(
    instance: dg.DagsterInstance, record: dg.RunRecord, days: Sequence[str]
) -> set[str | None]:
    """Days whose completions were made after the run was: requesting them again would overwrite
    them.
    """
    if not days:
        return set()
    made = dg.AssetRecordsFilter(
        asset_key=COMPLETIONS,
        asset_partitions=days,
        after_timestamp=record.create_timestamp.timestamp(),
    )
    return {
        event.partition_key for event in instance.fetch_materializations(made, limit=1_000).records
    }


def _request_again(
    instance: dg.DagsterInstance, run: dg.DagsterRun, run_key: str, days: Sequence[str]
) -> dg.RunRequest:
    """A request for what `run` was to make of these days and did not."""
    stages = {dg.AssetKey(name) for name in ("prompts", "completions", "comparisons")}
    selected = {key for key in run.asset_selection or stages if key in stages}
    records = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
    ).records
    made = {
        event.asset_key
        for record in records
        if (event := record.event_log_entry.dagster_event) is not None
    }
    left = sorted(selected - made, key=str)
    config: dict[str, Any] = dict(run.run_config)
    ops = {
        name: values for name, values in config.get("ops", {}).items() if dg.AssetKey(name) in left
    }
    span = {RANGE_START_TAG: days[0], RANGE_END_TAG: days[-1]} if len(days) > 1 else {}
    return dg.RunRequest(
        run_key=run_key,
        job_name=collection.name,
        partition_key=days[0] if len(days) == 1 else None,
        run_config=config | ({"ops": ops} if ops else {}),
        asset_selection=left,
        tags=span | {RETRY_TAG: run.run_id},
    )

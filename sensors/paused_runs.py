"""The parked sensor: a run whose provider asked to be left alone for long goes on when it may.

The ledger says until when and which run of Dagster asked; what that run had not made by then is
asked for again, under the same configuration. What was made is not called for again: the ledger has
it.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import dagster as dg

from assets.partitions import DAYS
from jobs.collection import collection
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import RunRow
from sensors.run_health import RETRY_TAG
from sensors.runs import RUN_KEY_TAG, store_of
from sensors.votes import group_neighbouring_days

RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
# after a run that failed before it came to the ledger; doubles up to a day
FIRST_WAIT = timedelta(minutes=10)
COMPLETIONS = dg.AssetKey("completions")


def paused_runs_sensor(
    settings: Settings, status: dg.DefaultSensorStatus, *, first_wait: timedelta = FIRST_WAIT
) -> dg.SensorDefinition:
    @dg.sensor(
        name="parked",
        job=collection,
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def parked(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Asks again for what waited for a provider, once its time is over."""
        store = store_of(context, settings)
        waiting = [run for run in store.generation.paused_runs() if run.parked_until is not None]
        requests: list[dg.RunRequest] = []
        for run in waiting:
            if run.parked_until is None or run.parked_until > datetime.now(UTC):
                continue
            asked_by = context.instance.get_run_record_by_id(run.origin) if run.origin else None
            if asked_by is None or not asked_by.dagster_run.is_finished:
                continue
            days = _requested_days(asked_by.dagster_run)
            asked = _missing_days(context.instance, store, run, asked_by, days)
            if not asked:
                store.generation.end(run.run_id)
                context.log.info(
                    f"{run.run_id} waits no more: its days' completions were made anew since, or "
                    "another run has taken them over."
                )
            if days not in asked.values() and json.loads(run.record).get("calls", {}).get("batch"):
                context.log.warning(
                    f"What batches of {run.run_id} make is read by nobody else: the days left of "
                    "it are paid for again."
                )
            for first, of in asked.items():
                if (key := _next_run_key(context.instance, first, first_wait)) is not None:
                    requests.append(_request_again(context.instance, asked_by.dagster_run, key, of))
        if requests:
            return dg.SensorResult(run_requests=requests)
        return dg.SkipReason(
            f"{len(waiting)} runs are parked, until {waiting[0].parked_until} the first"
            if waiting
            else "no run is parked"
        )

    return parked


def _next_run_key(instance: dg.DagsterInstance, first: str, wait: timedelta) -> str | None:
    """Under which to ask now; None while a run under an earlier one is at it, or failed less than
    `wait` ago, which doubles each time.

    A run that got as far as the ledger is parked no more, or until another time: so those found
    here ended before they came to it.
    """
    for key, record in _requested_runs(instance, first):
        if record is None:
            return key
        if not record.dagster_run.is_finished or datetime.now(UTC) - record.update_timestamp < wait:
            return None
        wait = min(2 * wait, timedelta(days=1))
    return None


def _requested_runs(
    instance: dg.DagsterInstance, first: str
) -> Iterator[tuple[str, dg.RunRecord | None]]:
    """What was asked under `first` and the keys after it; the last is free."""
    for n in count():
        key = f"{first}:{n}" if n else first
        records = instance.get_run_records(dg.RunsFilter(tags={RUN_KEY_TAG: key}), limit=1)
        yield key, records[0] if records else None
        if not records:
            return


def _missing_days(
    instance: dg.DagsterInstance, store: Store, run: RunRow, asked_by: dg.RunRecord, days: list[str]
) -> dict[str, list[str]]:
    """What a parked run is to be asked for: all its days, or those stretches of them that were not
    made since, by their first keys.
    """
    key, made = (
        f"parked:{run.run_id}:{run.parked_until}",
        _days_made_since(instance, asked_by, days),
    )
    if not made:
        return {key: days}
    parts = {
        f"{key}:{of[0]}...{of[-1]}": of
        for of in group_neighbouring_days([day for day in days if day not in made])
    }
    return {
        first: of for first, of in parts.items() if not _has_reached_ledger(instance, store, first)
    }


def _has_reached_ledger(instance: dg.DagsterInstance, store: Store, first: str) -> bool:
    """Whether one of the runs that were asked for a part of the days got that far: from there on it
    waits, fails or ends on its own.
    """
    asked = {
        record.dagster_run.run_id
        for _, record in _requested_runs(instance, first)
        if record is not None
    }
    return bool(asked) and any(run.origin in asked for run in store.generation.list_runs())


def _requested_days(run: dg.DagsterRun) -> list[str]:
    """What a run was to make completions of."""
    first, last = (run.tags.get(tag, run.tags.get("dagster/partition")) for tag in RANGE_TAGS)
    return (
        []
        if first is None or last is None
        else list(DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(first, last)))
    )


def _days_made_since(
    instance: dg.DagsterInstance, asked_by: dg.RunRecord, days: Sequence[str]
) -> set[str | None]:
    """Days whose completions were made since it was asked for them: asking for the old ones would
    overwrite them.
    """
    since = asked_by.create_timestamp.timestamp()
    made = dg.AssetRecordsFilter(
        asset_key=COMPLETIONS, asset_partitions=days, after_timestamp=since
    )
    return (
        {
            record.partition_key
            for record in instance.fetch_materializations(made, limit=1_000).records
        }
        if days
        else set()
    )


def _request_again(
    instance: dg.DagsterInstance, run: dg.DagsterRun, run_key: str, days: Sequence[str]
) -> dg.RunRequest:
    """What `run` was to make of these days and did not."""
    known = {dg.AssetKey(name) for name in ("prompts", "completions", "comparisons")}
    asked = {key for key in run.asset_selection or known if key in known}
    records = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
    ).records
    made = {
        event.asset_key
        for record in records
        if (event := record.event_log_entry.dagster_event) is not None
    }
    config = dict(run.run_config)
    left = sorted(asked - made, key=str)
    ops = {
        name: given for name, given in config.get("ops", {}).items() if dg.AssetKey(name) in left
    }
    span = dict(zip(RANGE_TAGS, (days[0], days[-1]), strict=True)) if len(days) > 1 else {}
    return dg.RunRequest(
        run_key=run_key,
        job_name=collection.name,
        partition_key=days[0] if len(days) == 1 else None,
        run_config=config | ({"ops": ops} if ops else {}),
        asset_selection=left,
        tags=span | {RETRY_TAG: run.run_id},
    )

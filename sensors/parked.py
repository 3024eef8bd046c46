"""The parked sensor: a run whose provider asked to be left alone for long goes on when it may.

The ledger says until when and which run of Dagster asked; what that run had not made by then is asked for again, under the same
configuration. What was made is not called for again: the ledger has it.
"""

from datetime import UTC, datetime, timedelta

import dagster as dg

from jobs.collection import collection
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.run_health import RETRY_TAG
from sensors.runs import RUN_KEY_TAG

RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
FIRST_WAIT = timedelta(minutes=10)  # after a run that failed before it came to the ledger; doubles up to a day
COMPLETIONS = dg.AssetKey("completions")


def parked_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(name="parked", job=collection, minimum_interval_seconds=settings.sensor_seconds, default_status=status)
    def parked(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult | dg.SkipReason:
        """Asks again for what waited for a provider, once its time is over."""
        waiting = [run for run in store.generation.parked() if run.parked_until is not None]
        requests: list[dg.RunRequest] = []
        for run in waiting:
            if run.parked_until is None or run.parked_until > datetime.now(UTC):
                continue
            asked_by = context.instance.get_run_record_by_id(run.origin) if run.origin else None
            if asked_by is None or not asked_by.dagster_run.is_finished:
                continue
            if _is_superseded(context.instance, asked_by):
                store.generation.end(run.run_id)
                context.log.info(f"{run.run_id} waits no more: its days' completions were made anew since, under another configuration.")
            elif (key := _key(context.instance, f"parked:{run.run_id}:{run.parked_until}")) is not None:
                requests.append(_again(context.instance, asked_by.dagster_run, key))
        if requests:
            return dg.SensorResult(run_requests=requests)
        return dg.SkipReason(
            f"{len(waiting)} runs are parked, until {waiting[0].parked_until} the first" if waiting else "no run is parked"
        )

    return parked


def _key(instance: dg.DagsterInstance, first: str) -> str | None:
    """Under which to ask now; None while a run under an earlier one is at it, or failed a short while ago.

    A run that got as far as the ledger is parked no more, or until another time: so those found here ended before they came to it.
    """
    n, key, wait = 0, first, FIRST_WAIT
    while records := instance.get_run_records(dg.RunsFilter(tags={RUN_KEY_TAG: key}), limit=1):
        if not records[0].dagster_run.is_finished or datetime.now(UTC) - records[0].update_timestamp < wait:
            return None
        n, wait = n + 1, min(2 * wait, timedelta(days=1))
        key = f"{first}:{n}"
    return key


def _is_superseded(instance: dg.DagsterInstance, asked_by: dg.RunRecord) -> bool:
    """Whether completions of the same days were made since: asking for the old ones would overwrite them."""
    tags = asked_by.dagster_run.tags
    first, last = (tags.get(tag, tags.get("dagster/partition")) for tag in RANGE_TAGS)
    since = dg.AssetRecordsFilter(asset_key=COMPLETIONS, after_timestamp=asked_by.create_timestamp.timestamp())
    made = instance.fetch_materializations(since, limit=1_000).records
    return any(first is not None and last is not None and first <= (record.partition_key or "") <= last for record in made)


def _again(instance: dg.DagsterInstance, run: dg.DagsterRun, run_key: str) -> dg.RunRequest:
    """What `run` was to make and did not."""
    known = {dg.AssetKey(name) for name in ("prompts", "completions", "comparisons")}
    asked = {key for key in run.asset_selection or known if key in known}
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    made = {event.asset_key for record in records if (event := record.event_log_entry.dagster_event) is not None}
    config = dict(run.run_config)
    left = sorted(asked - made, key=str)
    ops = {name: given for name, given in config.get("ops", {}).items() if dg.AssetKey(name) in left}
    kept = {k: v for k, v in run.tags.items() if k in RANGE_TAGS}
    return dg.RunRequest(
        run_key=run_key,
        job_name=collection.name,
        partition_key=run.tags.get("dagster/partition"),
        run_config=config | ({"ops": ops} if ops else {}),
        asset_selection=left,
        tags=kept | {RETRY_TAG: run.run_id},
    )

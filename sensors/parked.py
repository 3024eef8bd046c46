"""The parked sensor: a run whose provider asked to be left alone for long goes on when it may.

The ledger says until when and which run of Dagster asked; what that run had not made by then is asked for again, under the same
configuration. What was made is not called for again: the ledger has it.
"""

from datetime import UTC, datetime

import dagster as dg

from jobs.collection import collection
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from sensors.run_health import RETRY_TAG
from sensors.runs import unseen


def parked_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(name="parked", job=collection, minimum_interval_seconds=settings.sensor_seconds, default_status=status)
    def parked(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult | dg.SkipReason:
        """Asks again for what waited for a provider, once its time is over."""
        waiting = [run for run in store.generation.parked() if run.parked_until is not None]
        due = [run for run in waiting if run.parked_until <= datetime.now(UTC)]
        requests = [request for run in due if (request := _again(context.instance, run.origin, f"parked:{run.run_id}:{run.parked_until}"))]
        requests = unseen(context.instance, requests)
        if requests:
            return dg.SensorResult(run_requests=requests)
        return dg.SkipReason(
            f"{len(waiting)} runs are parked, until {waiting[0].parked_until} the first" if waiting else "no run is parked"
        )

    return parked


def _again(instance: dg.DagsterInstance, origin: str | None, run_key: str) -> dg.RunRequest | None:
    """What the run `origin` was to make and did not; None where no run of Dagster asked, or another one is at it."""
    run = instance.get_run_by_id(origin) if origin else None
    if run is None or not run.is_finished:
        return None
    known = {dg.AssetKey(name) for name in ("prompts", "completions", "comparisons")}
    asked = {key for key in run.asset_selection or known if key in known}
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    made = {event.asset_key for record in records if (event := record.event_log_entry.dagster_event) is not None}
    config = dict(run.run_config)
    left = sorted(asked - made, key=str)
    ops = {name: given for name, given in config.get("ops", {}).items() if dg.AssetKey(name) in left}
    kept = {k: v for k, v in run.tags.items() if k.startswith("dagster/asset_partition_range")}
    return dg.RunRequest(
        run_key=run_key,
        job_name=collection.name,
        partition_key=run.tags.get("dagster/partition"),
        run_config=config | ({"ops": ops} if ops else {}),
        asset_selection=left,
        tags=kept | {RETRY_TAG: run.run_id},
    )

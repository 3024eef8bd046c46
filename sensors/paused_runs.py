"""The paused runs sensor: requests again what waited for a provider, and what was killed with the
command that ran it.

The work ledger knows until when a run waits and which run of Dagster made it. Its days are
requested again under the same configuration, unless all of them were made since; calls that were
answered are in the ledger and are not repeated. Dagster repeats killed runs by itself, but not
those that a command ran in its own process.
"""

from datetime import UTC, datetime

import dagster as dg

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.jobs.collection import collection
from rlhf_pipeline.application.jobs.feedback import feedback, learning
from rlhf_pipeline.application.jobs.loop import RETRIED
from rlhf_pipeline.application.sensors.runs import (
    PARTITION_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    SensorTick,
    drop_started,
    find_run,
    has_failed_here,
    loop_sensor,
    request_again,
)
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation_reports import RunRow

REASON_TAG = "dagster/failure_reason"  # Dagster's public API has no name for it
COMPLETIONS = dg.AssetKey("completions")
RESUMED = (COMPLETIONS, dg.AssetKey("comparisons"))  # the prompts are made: a run pauses after them


@loop_sensor("paused_runs", collection, feedback, learning)
def paused_runs_sensor(tick: SensorTick) -> dg.SensorResult | dg.SkipReason:
    """Requests again what waited for a provider, once its wait is over, and daily runs of
    killed commands.
    """
    paused = [run for run in tick.store.generation.paused_runs() if run.paused_until is not None]
    resumed = (_resume(tick.instance, tick.store, run) for run in paused)
    requests = [
        *(request for request in resumed if request is not None),
        *_request_killed(tick.instance),
    ]
    if requests:
        return dg.SensorResult(run_requests=requests)
    return dg.SkipReason(
        f"{len(paused)} runs are paused, until {paused[0].paused_until} the first"
        if paused
        else "no run is paused"
    )


def _request_killed(instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """Requests for the daily runs of killed commands, whatever became of an earlier request that
    made no run. A run that failed by an error has a reason.
    """
    failed = instance.get_runs(dg.RunsFilter(tags=RETRIED, statuses=[dg.DagsterRunStatus.FAILURE]))
    killed = [r for r in failed if r.remote_job_origin is None and REASON_TAG not in r.tags]
    return drop_started(instance, [request_again(r, f"killed:{r.run_id}") for r in killed])


def _resume(instance: dg.DagsterInstance, store: Store, paused: RunRow) -> dg.RunRequest | None:
    """A request for what a paused run was to make from the completions on. Once a run of it has
    ended, the paused one leaves the ledger's list: that one pauses, fails or ends on its own.
    """
    if paused.paused_until is None or paused.paused_until > datetime.now(UTC):
        return None
    record = instance.get_run_record_by_id(paused.origin) if paused.origin else None
    if record is None or not record.dagster_run.is_finished:
        return None
    run = record.dagster_run
    stages = [key for key in RESUMED if key in (run.asset_selection or RESUMED)]
    request = request_again(run, f"paused:{paused.run_id}:{paused.paused_until}", stages)
    resumed = find_run(instance, request.run_key or "")
    # A run that makes the same requests takes the paused one over as it starts. If that had ended
    # while the new run is queued, what was refused for good would be asked for and paid again.
    if resumed and has_failed_here(resumed):
        resumed = None
    if resumed.is_finished if resumed else _is_made_since(instance, record):
        store.generation.end(paused.run_id)
    elif resumed is None:
        return request._replace(job_name=collection.name)
    return None


def _is_made_since(instance: dg.DagsterInstance, record: dg.RunRecord) -> bool:
    """Whether a later run made the completions of all days of a run, which another one would
    overwrite.
    """
    tags = record.dagster_run.tags
    day = tags.get(PARTITION_TAG)
    first, last = tags.get(RANGE_START_TAG, day), tags.get(RANGE_END_TAG, day)
    if first is None or last is None:
        return True
    days = DAYS.get_partition_keys_in_range(dg.PartitionKeyRange(first, last))
    later_records = dg.AssetRecordsFilter(
        asset_key=COMPLETIONS,
        asset_partitions=days,
        after_timestamp=record.create_timestamp.timestamp(),
    )
    events = instance.fetch_materializations(later_records, limit=1_000).records
    return set(days) <= {event.partition_key for event in events}

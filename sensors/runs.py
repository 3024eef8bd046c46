"""Finds runs by their run key and tags, so that each is requested once; describes how they ended.

The daemon remembers run keys per sensor and location. Runs started by hand, by the demo or by
another daemon carry the same key as a tag, so a look-up by tag covers them all.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import dagster as dg

from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store

Resource = TypeVar("Resource")
# Dagster's own tags; its public API has no names for them
RUN_KEY_TAG = "dagster/run_key"
SENSOR_NAME_TAG = "dagster/sensor_name"
SCHEDULE_NAME_TAG = "dagster/schedule_name"
PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
UP_TO_SEQ_TAG = "rlhf/up_to_seq"  # last vote of a feedback of several days, or of a replay
RANGE_PROJECT_TAG = "rlhf/range_of_project"  # beside it, the project's name
STEP_TAG = "rlhf/replay"  # replay:<project>:<day>:<seq>:<step>, on every run of a replay
# a second daemon leaves alone what the first one is submitting
SUBMISSION_LEASE = timedelta(seconds=60)
ENDED_STATUSES = frozenset(
    (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
)


def store_of(context: dg.SensorEvaluationContext, settings: Settings) -> Store:
    """The store in the context's resources, else this process's own.

    Sensors declare no resources: for each tick of a sensor that does, Dagster opens its instance,
    which is half the CPU of a tick.
    """
    return resource_of(context, "store", partial(_open_store, settings))


def resource_of(
    context: dg.SensorEvaluationContext, name: str, default: Callable[[], Resource]
) -> Resource:
    """The resource that the driver or a test put into the context, else `default()`."""
    return (
        cast(Resource, getattr(context.resources, name))
        if name in (context.resource_defs or {})
        else default()
    )


@lru_cache(maxsize=4)
def _open_store(settings: Settings) -> Store:
    return Store.of_home(settings)


def skip_during_replay(store: Store) -> dg.SkipReason | None:
    """The reason to skip, for sensors that act on the whole history, while imported days wait for
    their replay.
    """
    days = store.replays.pending_days()
    return (
        dg.SkipReason(f"{len(days)} imported days wait for their replay, {days[0]} is next")
        if days
        else None
    )


def is_ours(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    """Whether a run is of this code location: those of others beat elsewhere or not at all."""
    here, there = context.code_location_origin, run.remote_job_origin
    return here is None or there is None or there.location_name == here.location_name


def find_run(instance: dg.DagsterInstance, run_key: str) -> dg.DagsterRun | None:
    """The run that was started under `run_key`, if any."""
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: run_key}), limit=1)
    return runs[0] if runs else None


def started_keys(instance: dg.DagsterInstance, run_keys: Sequence[str]) -> set[str]:
    """Those of `run_keys` under which a run was started."""
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: list(run_keys)})) if run_keys else []
    return {run.tags[RUN_KEY_TAG] for run in runs}


def drop_started(
    instance: dg.DagsterInstance, requests: Sequence[dg.RunRequest]
) -> list[dg.RunRequest]:
    """`requests` without those whose run exists."""
    known = started_keys(instance, [request.run_key for request in requests if request.run_key])
    return [request for request in requests if request.run_key not in known]


def status_of(instance: dg.DagsterInstance, run_id: str | None) -> dg.DagsterRunStatus:
    """The status of a run. A deleted run counts as failed; one that a killed daemon made and never
    launched is failed here.
    """
    record = instance.get_run_record_by_id(run_id) if run_id else None
    if record is None:
        return dg.DagsterRunStatus.FAILURE
    status = record.dagster_run.status
    if (
        status == dg.DagsterRunStatus.NOT_STARTED
        and datetime.now(UTC) - record.create_timestamp > SUBMISSION_LEASE
    ):
        instance.report_run_failed(
            record.dagster_run, "The daemon that made this run ended before it was launched."
        )
        return dg.DagsterRunStatus.FAILURE
    return status


def failures_of(instance: dg.DagsterInstance, run_id: str) -> dict[str, Any]:
    """Error by failed step of a run."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    events = [record.event_log_entry.dagster_event for record in records]
    return {e.step_key or "": e.step_failure_data.error for e in events if e is not None}


def error_chain(error: Any) -> Iterator[Any]:
    """An error and its causes, outermost first."""
    while error is not None:
        yield error
        error = error.cause


def error_message(error: Any) -> str:
    """The message of the first of our own errors in the chain, which names cause and cure; else of
    the innermost one.
    """
    chain = list(error_chain(error))
    chosen = next(
        (e for e in chain if str(e.message).startswith("rlhf_pipeline.")),
        chain[-1] if chain else None,
    )
    return str(chosen.message).strip().splitlines()[0] if chosen else "unknown"


def describe_failure(instance: dg.DagsterInstance, run_id: str) -> str:
    """`step: cause` of every failed step."""
    failures = failures_of(instance, run_id)
    return (
        "; ".join(f"{step}: {error_message(error)}" for step, error in failures.items())
        or "no step failed; it could not begin, or its process was ended"
    )

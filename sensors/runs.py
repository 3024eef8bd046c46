"""Builds sensors; finds runs by run key and tags, so that each is requested once.

The daemon remembers run keys per sensor and location. Runs started by hand, by the demo or by
another daemon carry the same key as a tag, so a look-up by tag covers them all.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

import dagster as dg

from rlhf_pipeline.application.jobs.loop import open_store, read_loop
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store import Store

Resource = TypeVar("Resource")
Evaluate = Callable[["SensorTick"], dg.SensorResult | dg.SkipReason]
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
IN_A_COMMAND = ", in a command"  # after the sensor's name, on runs that failed there
# a second daemon leaves alone what the first one is submitting
SUBMISSION_LEASE = timedelta(seconds=60)


@dataclass(frozen=True)
class SensorTick:
    """What a sensor reads in one tick."""

    context: dg.SensorEvaluationContext
    settings: Settings
    store: Store
    loop: LoopSettings

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.context.instance

    @property
    def now(self) -> datetime:
        return now_of(self.context)


def loop_sensor(
    name: str, *jobs: Any, is_quick: bool = False
) -> Callable[[Evaluate], Callable[[Settings, dg.DefaultSensorStatus], dg.SensorDefinition]]:
    """Build a sensor from what one tick does. While the loop settings are invalid, ticks are
    skipped.
    """

    def decorate(
        evaluate: Evaluate,
    ) -> Callable[[Settings, dg.DefaultSensorStatus], dg.SensorDefinition]:
        def build(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
            @dg.sensor(
                name=name,
                jobs=jobs,
                minimum_interval_seconds=settings.sensor_seconds
                if is_quick
                else settings.slow_sensor_seconds,
                default_status=status,
                description=evaluate.__doc__,
            )
            def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
                loop = read_loop(settings)
                if isinstance(loop, dg.SkipReason):
                    return loop
                return evaluate(SensorTick(context, settings, store_of(context, settings), loop))

            return sensor

        return build

    return decorate


def now_of(context: dg.SensorEvaluationContext) -> datetime:
    """The time of the driver or the test that ticks, else of this machine."""
    return resource_of(context, "now", lambda: utc_now)()


def store_of(context: dg.SensorEvaluationContext, settings: Settings) -> Store:
    """The store in the context's resources, else this process's own.

    Sensors declare no resources: for each tick of a sensor that does, Dagster opens its instance,
    which is half the CPU of a tick.
    """
    return resource_of(context, "store", partial(open_store, settings))


def resource_of(
    context: dg.SensorEvaluationContext, name: str, default: Callable[[], Resource]
) -> Resource:
    """The resource that the driver or a test put into the context, else `default()`."""
    return (
        cast(Resource, getattr(context.resources, name))
        if name in (context.resource_defs or {})
        else default()
    )


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


def find_run(instance: dg.DagsterInstance, run_key: str) -> dg.DagsterRun | None:
    """The run that was started under `run_key`, if any."""
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: run_key}), limit=1)
    return runs[0] if runs else None


def started_keys(instance: dg.DagsterInstance, run_keys: Sequence[str]) -> set[str]:
    """Those of `run_keys` under which a run was started. One that failed in a command does not
    count: nothing else retries it.
    """
    runs = instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: list(run_keys)})) if run_keys else []
    return {run.tags[RUN_KEY_TAG] for run in runs if not has_failed_here(run)}


def has_failed_here(run: dg.DagsterRun) -> bool:
    """Whether a run in the process of a command failed or was interrupted."""
    ended = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    return run.status in ended and run.remote_job_origin is None


def release_request(instance: dg.DagsterInstance, run_id: str) -> None:
    """Let Dagster's daemon request again what failed in the process of a command: it skips a run
    key under which a run of the same sensor exists.
    """
    run = instance.get_run_by_id(run_id)
    if run is not None and has_failed_here(run) and SENSOR_NAME_TAG in run.tags:
        sensor = run.tags[SENSOR_NAME_TAG].removesuffix(IN_A_COMMAND)
        instance.add_run_tags(run_id, {SENSOR_NAME_TAG: f"{sensor}{IN_A_COMMAND}"})


def drop_started(
    instance: dg.DagsterInstance, requests: Sequence[dg.RunRequest]
) -> list[dg.RunRequest]:
    """`requests` without those whose run exists."""
    keys = started_keys(instance, [request.run_key for request in requests if request.run_key])
    return [request for request in requests if request.run_key not in keys]


def request_again(
    run: dg.DagsterRun, run_key: str, selection: Collection[dg.AssetKey] | None = None
) -> dg.RunRequest:
    """A request for what `run` was to make, or for those of its assets in `selection`."""
    chosen = run.asset_selection if selection is None else selection
    config: dict[str, Any] = dict(run.run_config)
    if chosen:
        names = {key.to_user_string() for key in chosen}
        config["ops"] = {name: own for name, own in config.get("ops", {}).items() if name in names}
    prefixes = ("rlhf/", RANGE_START_TAG, RANGE_END_TAG)
    return dg.RunRequest(
        run_key=run_key,
        job_name=run.job_name,
        partition_key=run.tags.get(PARTITION_TAG),
        run_config=config,
        asset_selection=list(chosen) if chosen else None,
        tags={name: value for name, value in run.tags.items() if name.startswith(prefixes)},
    )


def status_of(instance: dg.DagsterInstance, run_id: str | None) -> dg.DagsterRunStatus:
    """The status of a run; a deleted one counts as failed."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None:
        return dg.DagsterRunStatus.FAILURE
    return run.status


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

"""Runs jobs and evaluates sensors in this process, as the daemon would."""

import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import Any
from uuid import uuid4

import dagster as dg

# the public API has no names for these classes
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.driver.run_launcher import LOCATION
from rlhf_pipeline.application.jobs.cancellation import stop_when_cancelled
from rlhf_pipeline.application.jobs.retraining import policy_training
from rlhf_pipeline.application.jobs.run_spans import record_run
from rlhf_pipeline.application.sensors.runs import (
    PARTITION_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    describe_failure,
    release_request,
)
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store import Store, homes

# Everything is in the run's own log; the terminal shows one line per stage.
QUIET_LOGGERS = {"console": {"config": {"log_level": "CRITICAL"}}}


class RunCancelled(PipelineError):
    """A person cancelled the training job while its run was going on."""


@dataclass(frozen=True)
class StageRun:
    """What one stage made in one run."""

    day: str
    stage: str
    seconds: float
    headline: str


@dataclass
class Runner:
    """The application of one home in this process. Sensors read the time from `clock`."""

    settings: Settings
    defs: dg.Definitions
    instance: dg.DagsterInstance
    store: Store
    clock: Callable[[], datetime] = utc_now
    on_stage: Callable[[StageRun], None] | None = None
    write: Callable[[str], None] = print
    retry_command: str = "run it again"
    # by stage, fields of its parameters that every run gets; a run's own values win
    stage_config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    history: list[StageRun] = field(default_factory=list)
    # builds the definitions anew after a change of the loop settings; without it they stay
    build: Callable[[], dg.Definitions] | None = None
    _loop: LoopSettings | None = None
    _repository: dg.RepositoryDefinition | None = None

    @property
    def repository(self) -> dg.RepositoryDefinition:
        """The definitions under the loop settings as the file has them now. Raises as `refresh`."""
        self.refresh()
        return self.latest_repository

    @property
    def latest_repository(self) -> dg.RepositoryDefinition:
        """The definitions under the loop settings that were valid last."""
        if self._repository is None:
            self._repository = self.defs.get_repository_def()
        return self._repository

    def refresh(self) -> None:
        """Build the definitions anew if the loop settings have changed. Raises ConfigurationError
        for an invalid file.
        """
        loop = LoopSettings.read(self.settings)
        if self._loop is not None and loop != self._loop and self.build is not None:
            self.defs, self._repository = self.build(), None
        self._loop = loop

    def run(self, job: str, day: str, **arguments: Any) -> None:
        """Run one job, or the assets of it in `asset_selection`; `arguments` are those of
        `execute_in_process`.

        Raises PipelineError, naming the failed stages, if it fails; RunCancelled if it was stopped.
        """
        definition = self.repository.get_job(job)
        selection = arguments.get("asset_selection") or ()
        stages = {key.to_user_string() for key in selection} or {n.name for n in definition.nodes}
        arguments["run_config"] = {
            **self._add_stage_config(stages, arguments.get("run_config", {})),
            "loggers": QUIET_LOGGERS,
        }
        run_id = str(uuid4())
        tags = arguments.get("tags", {})
        result: dg.ExecuteInProcessResult | None = None
        on_interrupt = signal.getsignal(signal.SIGINT)
        cancelled = Event()  # an interrupt may come before the run is watched
        try:
            with (
                self.store.heartbeats.keep_beating(
                    run_id, job=job, seconds=self.settings.heartbeat_seconds
                ),
                stop_when_cancelled(self.store, self.instance, run_id, tags) as cancelled,
            ):
                result = definition.execute_in_process(
                    instance=self.instance, raise_on_error=False, run_id=run_id, **arguments
                )
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
            if not cancelled.is_set():
                raise
        finally:
            homes.record_end(self.settings, self.store.database)
            release_request(self.instance, run_id)
        stopped = RunCancelled(
            f"Job {tags.get(DECISION_TAG)} was cancelled; its run {run_id[:8]} has ended."
        )
        if cancelled.is_set():  # the command's handler takes one interrupt only
            signal.signal(signal.SIGINT, on_interrupt)
        if result is None:  # interrupted before its first step
            run = self.instance.get_run_by_id(run_id)
            if run is not None and not run.is_finished:
                self.instance.report_run_canceled(run)
            raise stopped
        record_run(self.settings, self.instance, result.run_id)
        if result.success:
            self._show_in_timeline(result.run_id)
        for stage in _stage_runs(result, day):
            self.history.append(stage)
            if self.on_stage is not None:
                self.on_stage(stage)
        if cancelled.is_set() and not result.success:
            raise stopped
        if not result.success and _was_interrupted(result):
            raise KeyboardInterrupt
        if not result.success:
            failure = describe_failure(self.instance, result.run_id)
            cure = "order it again" if job == policy_training.name else self.retry_command
            raise PipelineError(
                f"{job} of {day} failed: {failure.removesuffix('.')}. "
                f"`make dev` shows the run {result.run_id[:8]}; {cure} to go on."
            )

    def _show_in_timeline(self, run_id: str) -> None:
        """Give a finished run the code location that `rlhf dev` serves: Dagster's timeline shows no
        other runs.
        """
        run = self.instance.get_run_by_id(run_id)
        assert run is not None  # it was just executed
        location = ManagedGrpcPythonEnvCodeLocationOrigin(
            LoadableTargetOrigin(module_name="rlhf_pipeline.application.definitions"), LOCATION
        )
        repository = RemoteRepositoryOrigin(location, self.repository.name)
        self.instance.run_storage.replace_job_origin(run, repository.get_job_origin(run.job_name))

    def _add_stage_config(
        self, stages: Collection[str], run_config: Mapping[str, Any]
    ) -> dict[str, Any]:
        ops = dict(run_config.get("ops", {}))
        for stage in self.stage_config.keys() & set(stages):
            own = ops.get(stage, {}).get("config", {})
            ops[stage] = {"config": {**self.stage_config[stage], **own}}
        return {**run_config, "ops": ops} if ops else dict(run_config)

    def run_request(self, request: dg.RunRequest, sensor: str, day: str) -> None:
        """Run what a sensor requested, under the run key and tags that the daemon would give it."""
        job = request.job_name or self.repository.get_sensor_def(sensor).job_name or ""
        self.run_scheduled(request, job, {SENSOR_NAME_TAG: sensor}, day)

    def run_scheduled(
        self, request: dg.RunRequest, job: str, origin: Mapping[str, str], day: str
    ) -> None:
        """Run a request under its run key; `origin` is the tag of the sensor or schedule."""
        tags = {**request.tags, RUN_KEY_TAG: request.run_key or "", **origin}
        tags.pop(PARTITION_TAG, None)
        partition = {"partition_key": request.partition_key} if request.partition_key else {}
        self.run(
            job,
            day,
            tags=tags,
            run_config=request.run_config or {},
            asset_selection=request.asset_selection,
            **partition,
        )

    def tick(self, sensor: str, cursor: str | None = None) -> SensorExecutionData:
        """Evaluate one sensor, under the loop settings that were valid last: the runs that it
        requests and its next cursor.
        """
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=cursor,
            resources={"store": self.store, "now": self.clock},
            repository_def=self.latest_repository,
        ) as context:
            data = self.latest_repository.get_sensor_def(sensor).evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return data

    def run_tick(self, sensor: str, day: str, cursors: dict[str, str]) -> int:
        """Tick a sensor, run what it requests, then move its cursor; the number of runs."""
        data = self.tick(sensor, cursors.get(sensor))
        requests = data.run_requests or []
        for request in requests:
            self.run_request(request, sensor, day)
        if data.cursor is not None:
            cursors[sensor] = data.cursor
        return len(requests)


def _was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    """Whether Ctrl-C came while Dagster made the resources of a run: a failure to Dagster, which
    raises nothing then.
    """
    errors = [
        event.job_failure_data.error
        for event in result.all_events
        if event.is_job_failure and event.job_failure_data.error is not None
    ]
    return any(error.cls_name == dg.DagsterExecutionInterruptedError.__name__ for error in errors)


def _stage_runs(result: dg.ExecuteInProcessResult, day: str) -> Iterator[StageRun]:
    """One per materialised stage, with the headline that it reported: of several days, on the
    last.
    """
    seconds = {
        event.step_key: event.step_success_data.duration_ms / 1000
        for event in result.all_events
        if event.event_type_value == "STEP_SUCCESS"
    }
    materializations = {
        event.asset_key: event for event in result.get_asset_materialization_events()
    }
    for key, event in materializations.items():
        metadata = event.materialization.metadata
        yield StageRun(
            day=event.materialization.partition or day,
            stage=key.to_user_string() if key else "",
            seconds=seconds.get(event.step_key or "", 0.0),
            headline=str(metadata["headline"].value) if "headline" in metadata else "",
        )

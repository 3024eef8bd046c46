"""One simulated day through the real jobs and sensors. Knows Dagster; the stages and the truth are elsewhere."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from typing import Any

import dagster as dg

from demo.recovery import bury_dead, release_keys
from demo.state import DemoState
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.store import Store

# Everything is in the run's own log; the terminal is for the demo's lines.
QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}
SENSORS = ("votes", "learning", "retraining")


@dataclass(frozen=True)
class StageRun:
    """What one stage did in one run."""

    day: str
    job: str
    stage: str
    seconds: float
    headline: str
    metrics: dict[str, float]
    mlflow_url: str | None = None


@dataclass
class Loop:
    """Runs jobs in process and ticks sensors as the daemon would; how far it came survives in `settings.demo_state`."""

    settings: Settings
    defs: dg.Definitions
    instance: dg.DagsterInstance
    store: Store
    told: Callable[[StageRun], None]
    history: list[StageRun] = field(default_factory=list)

    @cached_property
    def _repository(self) -> dg.RepositoryDefinition:
        return self.defs.get_repository_def()

    def day(self, day: str) -> None:
        """Collection, voting, then every sensor until none asks for more; of a day that was cut short, what is left of it."""
        if self.state.collected != day:  # else a champion that learnt from the day would complete and predict it again
            self.run("collection", day, partition_key=day)
            self._save(collected=day)
        self.run("simulated_voting", day, run_config={"ops": {"cast_simulated_votes": {"config": {"day": day}}}})
        for sensor in SENSORS:
            self._drain(sensor, day)
            if sensor == "votes" and day not in Artefacts(self.settings.frames).days("drift_report"):
                self.run("feedback", day, partition_key=day)  # too few votes for the sensor, or another daemon was asked
        self._save(finished=day)

    def resume(self) -> None:
        """End what a dead process left; retry what it left of finished days. A day that was cut short goes on in `day`."""
        bury_dead(self.instance, self.store, timedelta(seconds=self.settings.dead_after_seconds))
        release_keys(self.instance)
        last = self.state.finished
        if last is not None and last == self.state.collected:
            for sensor in SENSORS:
                self._drain(sensor, last)

    @property
    def state(self) -> DemoState:
        return DemoState.read(self.settings.demo_state)

    def _save(self, **changed: Any) -> None:
        self.state.model_copy(update=changed).write(self.settings.demo_state)

    def _drain(self, sensor: str, day: str) -> None:
        """Tick until nothing is asked for. The cursor moves after the runs: a process killed in between is asked again."""
        while True:
            data = self.tick(sensor, day)
            requests = list(data.run_requests or [])
            for request in requests:
                self.run(request.job_name or self._job_of(sensor), day, **self._arguments(request, sensor))
            if data.cursor is not None:
                self._save(cursors=self.state.cursors | {sensor: data.cursor})
            if not requests:
                return

    def run(self, job: str, day: str, **arguments: Any) -> None:
        """One job in this process. Raises PipelineError, naming the failed stages, if it fails."""
        arguments["run_config"] = {**arguments.get("run_config", {}), "loggers": QUIET}
        result = self.defs.resolve_job_def(job).execute_in_process(instance=self.instance, raise_on_error=False, **arguments)
        for stage in stage_runs(result, job, day):
            self.history.append(stage)
            self.told(stage)
        if not result.success:
            raise PipelineError(
                f"{job} of {day} failed: {_failures(result)}. `make dev` shows the run {result.run_id[:8]}; run the demo again to go on."
            )

    def tick(self, name: str, day: str) -> Any:
        """Evaluate one sensor on its cursor, as the daemon does: the runs it asks for and its next cursor."""
        sensor = self.defs.get_sensor_def(name)
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.state.cursors.get(name),
            resources={"store": self.store, "now": lambda: end_of(day)},
            repository_def=self._repository,
        ) as context:
            data = sensor.evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return data

    def _arguments(self, request: dg.RunRequest, sensor: str) -> dict[str, Any]:
        tags = dict(request.tags) | {"dagster/run_key": request.run_key or "", "dagster/sensor_name": sensor}
        tags.pop("dagster/partition", None)
        arguments: dict[str, Any] = {"tags": tags, "run_config": request.run_config or {}}
        return arguments | ({"partition_key": request.partition_key} if request.partition_key else {})

    def _job_of(self, sensor: str) -> str:
        return {"votes": "feedback", "learning": "learning", "retraining": "retraining"}[sensor]


def end_of(day: str) -> datetime:
    """The moment a simulated day's sensors tick: cool-downs are counted in simulated days."""
    return datetime.combine(date.fromisoformat(day), time(23), UTC)


def stage_runs(result: dg.ExecuteInProcessResult, job: str, day: str) -> Iterator[StageRun]:
    """One row per materialised stage, with the headline and the numbers it reported."""
    seconds = {
        event.step_key: event.step_success_data.duration_ms / 1000
        for event in result.all_events
        if event.event_type_value == "STEP_SUCCESS"
    }
    for event in result.get_asset_materialization_events():
        found = event.materialization.metadata
        yield StageRun(
            day=day,
            job=job,
            stage=event.materialization.asset_key.to_user_string(),
            seconds=seconds.get(event.step_key, 0.0),
            headline=str(found["headline"].value) if "headline" in found else "",
            metrics={
                k: float(v.value)
                for k, v in found.items()
                if isinstance(v, dg.FloatMetadataValue | dg.IntMetadataValue) and v.value is not None
            },
            mlflow_url=str(found["mlflow_run"].value) if "mlflow_run" in found else None,
        )


def _failures(result: dg.ExecuteInProcessResult) -> str:
    failed = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    return "; ".join(f"{e.step_key}: {_root(e.step_failure_data.error)}" for e in failed) or "the run itself"


def _root(error: Any) -> str:
    """The first of our own errors in the chain, which names cause and cure; else what is at its end."""
    while error is not None and error.cause is not None and not str(error.message).startswith("rlhf_pipeline."):
        error = error.cause
    return str(error.message).strip().splitlines()[0] if error else "unknown"

"""Jobs in this process, under the run keys the daemon would give them. Knows Dagster; knows neither
days nor what is simulated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.store import Store
from sensors.runs import describe_failure

# Everything is in the run's own log; the terminal is for the demo's lines.
QUIET_LOGGERS = {"console": {"config": {"log_level": "CRITICAL"}}}


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
class InProcessRunner:
    """Runs jobs one after another and tells what every stage made."""

    settings: Settings
    defs: dg.Definitions
    instance: dg.DagsterInstance
    store: Store
    told: Callable[[StageRun], None]
    history: list[StageRun] = field(default_factory=list)
    to_go_on = "run it again"

    @cached_property
    def repository(self) -> dg.RepositoryDefinition:
        return self.defs.get_repository_def()

    def run(self, job: str, day: str, **arguments: Any) -> None:
        """One job in this process. Raises PipelineError, naming the failed stages, if it fails."""
        arguments["run_config"] = {**arguments.get("run_config", {}), "loggers": QUIET_LOGGERS}
        result = self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance, raise_on_error=False, **arguments
        )
        for stage in stage_runs(result, job, day):
            self.history.append(stage)
            self.told(stage)
        if not result.success:
            raise PipelineError(
                f"{job} of {day} failed: {describe_failure(self.instance, result.run_id)}. "
                f"`make dev` shows the run {result.run_id[:8]}; {self.to_go_on} to go on."
            )

    @staticmethod
    def run_arguments(request: dg.RunRequest, sensor: str) -> dict[str, Any]:
        """What `run` is to be given for a sensor's request, besides job and day."""
        tags = dict(request.tags) | {
            "dagster/run_key": request.run_key or "",
            "dagster/sensor_name": sensor,
        }
        tags.pop("dagster/partition", None)
        arguments: dict[str, Any] = {"tags": tags, "run_config": request.run_config or {}}
        return arguments | (
            {"partition_key": request.partition_key} if request.partition_key else {}
        )


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
                if isinstance(v, dg.FloatMetadataValue | dg.IntMetadataValue)
                and v.value is not None
            },
            mlflow_url=str(found["mlflow_run"].value) if "mlflow_run" in found else None,
        )

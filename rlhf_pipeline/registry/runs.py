"""Writes metrics, parameters, tags and files of one MLflow run."""

import json
import math
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlhf_pipeline.core.config import code_commit
from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.records import Record, content_id
from rlhf_pipeline.registry.tracking import COMMIT, Tracking

RUN_KEY = "rlhf.run_key"
PARENT_TAG = "rlhf.is_parent"  # on the run above the stages of a day or of a retraining
STAGE_TAG = "dagster.asset"  # on the run of each materialisation: the stage
PIPELINE_RUN_TAG = "dagster.run_id"
# tag and value of a run or version that has an accuracy but no noise ceiling
CEILING, UNKNOWN_CEILING = "noise_ceiling", "unknown"
# Metrics that are shares of votes predicted correctly or wrongly; `of` is the suffix of the group
# of votes.
ACCURACY_METRIC = re.compile(r".*(?:accuracy|error_rate)(?P<of>.*?)(?:_low|_high)?")
PARAM_LENGTH, DIGEST_LENGTH = 6000, 36
# MLflow's limits per batch: 1000 entries, at most 100 parameters and 100 tags.
BATCH_METRICS = 800
BATCH_PARAMS = 100
BATCH_TAGS = 100

Status = Literal["FINISHED", "FAILED", "KILLED"]


class TrackedRun(Record):
    """A run as stored in MLflow."""

    run_id: str
    name: str
    status: str
    started_at: datetime
    ended_at: datetime | None = None
    metrics: dict[str, float] = Field(description="last value of each metric")
    tags: dict[str, str]
    params: dict[str, str] = {}
    url: str


class Run:
    """One open MLflow run. Buffers metrics, parameters and tags, and writes them in batches when it
    closes.

    Writes files immediately. Not thread-safe.
    """

    def __init__(
        self, tracking: Tracking, run_id: str, name: str, known_params: Mapping[str, str]
    ) -> None:
        self.run_id = run_id
        self.name = name
        self.url = tracking.run_url(run_id)
        self._tracking = tracking
        self._known_params = dict(known_params)
        self._metrics: list[tuple[str, float, int, int]] = []
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        # names of all metrics, including those of a re-opened run
        self._logged: set[str] = set()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Buffer `metrics`. Raises InvalidScores for NaN or infinity.

        A finished run with an accuracy but without its noise ceiling gets the tag
        `noise_ceiling: unknown`.
        """
        now = int(time.time() * 1000)
        self._logged |= set(metrics)
        self._metrics += [
            (key, value, now, step or 0)
            for key, value in require_finite(metrics, f"Run {self.name}").items()
        ]

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Buffer `params`. MLflow parameters cannot change, so a new value in a re-opened run
        becomes a tag `changed.<name>`.
        """
        for key, value in params.items():
            text = str(value)[:PARAM_LENGTH]
            if self._known_params.get(key, text) != text:
                self._tags[f"changed.{key}"] = text
            elif key not in self._known_params:
                self._params[key] = text

    def log_dataset(self, name: str, *, digest: str, source: str, **profile: Any) -> None:
        """Record an input of this run: its content hash, where it lies, and figures of it."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name,
            digest[:DIGEST_LENGTH],
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps(profile),
        )
        dataset_input = DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])
        self._tracking.write(
            partial(self._tracking.client.log_inputs, self.run_id, datasets=[dataset_input])
        )

    def set_tags(self, tags: Mapping[str, object | None]) -> None:
        """Buffer the `tags` that are not None."""
        self._tags |= lineage_tags(tags)

    def log_file(self, content: bytes, path: str) -> None:
        """Write `content` as the run's file `path`, such as `reports/drift.json`."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / Path(path).name
            file.write_bytes(content)
            parent = Path(path).parent.as_posix()
            self._tracking.client.log_artifact(
                self.run_id, str(file), None if parent == "." else parent
            )

    def log_folder(self, folder: Path, name: str) -> None:
        """Copy all files below `folder` into the run's folder `name`."""
        self._tracking.client.log_artifacts(self.run_id, str(folder), name)

    def flush(self) -> None:
        """Write the buffered entries. `close` does this too; call it earlier to show the progress
        of a long run.
        """
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(*entry) for entry in self._metrics]
        params = [Param(key, value) for key, value in self._params.items()]
        tags = [RunTag(key, value) for key, value in self._tags.items()]
        while metrics or params or tags:
            part = metrics[:BATCH_METRICS], params[:BATCH_PARAMS], tags[:BATCH_TAGS]
            self._tracking.write(partial(self._tracking.client.log_batch, self.run_id, *part))
            metrics = metrics[BATCH_METRICS:]
            params = params[BATCH_PARAMS:]
            tags = tags[BATCH_TAGS:]
        self._known_params |= self._params
        self._metrics = []
        self._params = {}
        self._tags = {}

    def close(self, status: Status) -> None:
        """Write the buffered entries and end the run."""
        if status == "FINISHED":  # a retry of a failed one may still measure it
            self.set_tags(dict.fromkeys(missing_ceilings(self._logged), UNKNOWN_CEILING))
        self.flush()
        self._tracking.write(lambda: self._tracking.client.set_terminated(self.run_id, status))


def open_run(
    tracking: Tracking, name: str, tags: Mapping[str, object | None], run_key: str | None
) -> Run:
    """A running MLflow run: the one opened with the same `run_key`, else a new one."""
    return tracking.write(
        lambda: _find_or_create(
            tracking, name, lineage_tags({**tags, COMMIT: code_commit()}), run_key
        )
    )


def latest_runs(
    tracking: Tracking, limit: int, *, stage: str | None = None, pipeline_run: str | None = None
) -> list[TrackedRun]:
    """The `limit` most recently started runs, newest first: of the project, or of one stage, of one
    run of the pipeline, or of both.
    """
    client, experiment_id = tracking.open()
    tags = {
        name: value
        for name, value in ((STAGE_TAG, stage), (PIPELINE_RUN_TAG, pipeline_run))
        if value is not None
    }
    runs = client.search_runs(
        [experiment_id],
        filter_string=" AND ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items()),
        # a parent has at least one run below it
        max_results=limit if tags else 2 * limit,
        order_by=["attributes.start_time DESC"],
    )
    stages = [run for run in runs if PARENT_TAG not in run.data.tags]
    return [
        TrackedRun(
            run_id=run.info.run_id,
            name=run.info.run_name,
            status=run.info.status,
            started_at=datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            ended_at=datetime.fromtimestamp(run.info.end_time / 1000, UTC)
            if run.info.end_time
            else None,
            metrics=run.data.metrics,
            tags=run.data.tags,
            params=run.data.params,
            url=tracking.run_url(run.info.run_id),
        )
        for run in stages[:limit]
    ]


def open_parent_run(tracking: Tracking, name: str, key: str) -> str:
    """The id of the run above those of one day or one retraining, made once per `key`."""

    def find_or_create() -> str:
        parent = _find_or_create(tracking, name, {PARENT_TAG: "true"}, key)
        tracking.client.set_terminated(parent.run_id)
        return parent.run_id

    return tracking.write(find_or_create)


def is_accuracy(metric: str) -> bool:
    """Whether a metric is a share of votes predicted correctly or wrongly, so that its noise
    ceiling must be shown beside it.
    """
    # token accuracies are not about votes
    return ACCURACY_METRIC.fullmatch(metric) is not None and not metric.startswith("token_")


def ceiling_metric(metric: str) -> str:
    """Name of the noise ceiling of an accuracy or error rate; it has the same suffix."""
    match = ACCURACY_METRIC.fullmatch(metric)
    return CEILING + (match["of"] if match else "")


def missing_ceilings(metrics: Iterable[str]) -> list[str]:
    """Names of the noise ceilings that `metrics` lack for their accuracies and error rates."""
    names = set(metrics)
    return sorted({ceiling_metric(name) for name in names if is_accuracy(name)} - names)


def require_finite(metrics: Mapping[str, float], owner: str) -> dict[str, float]:
    """`metrics` as floats. Raises InvalidScores, which names `owner`, for NaN or infinity."""
    broken = {key: value for key, value in metrics.items() if not math.isfinite(value)}
    if broken:
        raise InvalidScores(
            f"{owner}: metrics must be finite, not {broken}. Leave out metrics that could not be "
            "computed."
        )
    return {key: float(value) for key, value in metrics.items()}


def _find_or_create(
    tracking: Tracking, name: str, tags: dict[str, str], run_key: str | None
) -> Run:
    client, experiment_id = tracking.open()
    if run_key is not None:
        tags[RUN_KEY] = content_id(
            run_key
        )  # hashed, because a filter string cannot contain every quote
        runs = client.search_runs(
            [experiment_id], f"tags.`{RUN_KEY}` = '{tags[RUN_KEY]}'", max_results=1
        )
        if runs:
            run = Run(tracking, runs[0].info.run_id, name, runs[0].data.params)
            run._logged = set(runs[0].data.metrics)
            client.update_run(run.run_id, status="RUNNING")
            run.set_tags(tags)
            return run
    return Run(
        tracking, client.create_run(experiment_id, run_name=name, tags=tags).info.run_id, name, {}
    )


def lineage_tags(values: Mapping[str, object | None]) -> dict[str, str]:
    """`values` as string tags for MLflow and Dagster, without missing values."""
    return {key: str(value) for key, value in values.items() if value is not None}

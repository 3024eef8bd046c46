"""Small real projects to run the pipeline on: a policy of a few seconds' training, a home below the
test's folder, no mocks.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel, SecretStr

from examples.embedded_policy import CorpusParams, PretrainingParams, pretrain
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import ENV_PREFIX, Settings, silence_telemetry
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from tests.once import build_once

ROOT = Path(__file__).resolve().parents[1]
QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
# The smallest policy whose completions differ in what simulated annotators care about: 3 s of
# training.
SMALL_POLICY = PretrainingParams(
    corpus=CorpusParams(n_texts=1500),
    n_vocabulary=512,
    hidden=48,
    layers=1,
    intermediate=96,
    steps=90,
    batch_size=16,
)

# Settings that put what `rlhf init` makes somewhere else than below the home.
ELSEWHERE = {
    "project",
    "server_url",
    "database_url",
    "mlflow_url",
    "frames_url",
}

# Before definitions load: a developer's own settings do not reach the tests, and no library reports
# home.
for key in [k for k in os.environ if k.startswith(ENV_PREFIX) or k == "DAGSTER_HOME"]:
    del os.environ[key]
silence_telemetry()
# Models this small gain nothing from a second thread, and lose seconds where two wait for one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from rlhf_pipeline.application.definitions import definitions_for  # noqa: E402


def op_config(**by_asset: Mapping[str, Any]) -> dict[str, Any]:
    """Run configuration from `asset={"parameter": value}`."""
    return {"ops": {name: {"config": dict(config)} for name, config in by_asset.items()}}


@dataclass
class Project:
    """One initialised project, and its jobs and sensors as the daemon would run them, in this
    process.
    """

    settings: Settings
    instance: dg.DagsterInstance
    overrides: dict[str, Any] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)

    @cached_property
    def defs(self) -> dg.Definitions:
        return definitions_for(self.settings, **self.overrides)

    @cached_property
    def store(self) -> Store:
        return Store.open(
            self.settings.store_url,
        )

    @cached_property
    def registry(self) -> Registry:
        return self.champions.registry

    @cached_property
    def champions(self) -> Champions:
        return Workspace(self.settings).champions

    @property
    def judge(self) -> str:
        """Label of the champion reward model."""
        champion = self.champions.champion("reward_model")
        assert champion is not None
        return champion.label

    @property
    def files(self) -> Artefacts:
        return Artefacts(self.settings.frames)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a process that works on this project."""
        names = self.settings.model_fields_set - {"api_key", "alert_targets"} | {"home"}
        values = {name: getattr(self.settings, name) for name in names}
        targets = {
            target.name: {
                key: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
                for key, value in target.model_dump(exclude={"name"}, exclude_none=True).items()
            }
            for target in self.settings.alert_targets
        }
        own = {f"{ENV_PREFIX}ALERT_TARGETS": json.dumps(targets)} | {
            f"{ENV_PREFIX}{name.upper()}": value.get_secret_value()
            if isinstance(value, SecretStr)
            else value.model_dump_json()
            if isinstance(value, BaseModel)
            else str(value)
            for name, value in values.items()
            if value is not None
        }
        return os.environ | own | self.settings.dagster_environ | {"PYTHONPATH": str(ROOT)}

    def day(self, index: int) -> str:
        """Day `index` of the project, the first is 0."""
        return (self.settings.start_day + timedelta(days=index)).isoformat()

    def run(
        self,
        job: str,
        day: str | None = None,
        until: str | None = None,
        *,
        ok: bool = True,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """One job, for a day or for the days `day` to `until` in one run; fails the test unless it
        ends as `ok` says.
        """
        arguments: dict[str, Any] = {"tags": dict(tags or {})}
        if until is not None:
            assert day is not None
            arguments["tags"] |= {RANGE_START: day, RANGE_END: until}
        elif day is not None:
            arguments["partition_key"] = day
        result = self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            run_config={**(config or {}), "loggers": QUIET},
            **arguments,
        )
        assert result.success is ok, self.errors(result)
        return result

    def materialise(
        self,
        stages: list[str],
        day: str | None = None,
        until: str | None = None,
        *,
        ok: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Only these stages, as a person would in the UI."""
        from rlhf_pipeline.application.assets import STAGES
        from rlhf_pipeline.application.resources import resources_for

        range_tags = {RANGE_START: day, RANGE_END: until} if day and until else {}
        result = dg.materialize(
            STAGES,
            selection=stages,
            resources=resources_for(self.settings) | self.overrides,
            instance=self.instance,
            tags=range_tags,
            partition_key=None if until else day,
            run_config={**(config or {}), "loggers": QUIET},
            raise_on_error=False,
        )
        assert result.success is ok, self.errors(result)
        return result

    def collect(
        self, day: str, *, n: int = 30, ok: bool = True, **config: Any
    ) -> dg.ExecuteInProcessResult:
        """A small day's collection: `n` prompts, six pairs of each."""
        small = {
            "prompts": {"n": n},
            "completions": {"max_new_tokens": 20},
            "comparisons": {"pairs_per_prompt": 6},
        }
        return self.run("collection", day, ok=ok, config=op_config(**small | config))

    def vote(self, day: str) -> dg.ExecuteInProcessResult:
        return self.run("simulated_voting", config=op_config(cast_simulated_votes={"day": day}))

    def tick(self, sensor: str, *, keep_cursor: bool = True) -> Any:
        """Evaluate a sensor on its cursor, keep the new one and report its asset events, as the
        daemon does.
        """
        definition = self.defs.get_repository_def().get_sensor_def(sensor)
        resources = {"store": self.store, "now": (self.defs.resources or {}).get("now", utc_now)}
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursors.get(sensor), resources=resources,
            repository_def=self.defs.get_repository_def(),
        ) as context:  # fmt: skip
            data = definition.evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        if keep_cursor and data.cursor is not None:
            self.cursors[sensor] = data.cursor
        return data

    def run_request(
        self,
        request: dg.RunRequest,
        sensor: str,
        *,
        ok: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """The run that a sensor asked for, under its run key; `config` is merged into the requested
        one, stage by stage.
        """
        job = request.job_name or {"votes": "feedback"}.get(sensor, sensor)
        tags = {k: v for k, v in request.tags.items() if k != "dagster/partition"} | {
            "dagster/run_key": request.run_key or ""
        }
        merged = json.loads(json.dumps(request.run_config or {}))
        for stage, more in (config or {}).get("ops", {}).items():
            merged.setdefault("ops", {}).setdefault(stage, {}).setdefault("config", {}).update(
                more["config"]
            )
        return self.run(job, request.partition_key, ok=ok, tags=tags, config=merged)

    def close(self) -> None:
        self.store.close()
        self.instance.dispose()

    @staticmethod
    def errors(result: dg.ExecuteInProcessResult) -> str:
        """`step: Error: message` of every failed step, each with its chain of causes."""
        lines = []
        for event in result.all_events:
            error = (
                event.step_failure_data.error if event.event_type_value == "STEP_FAILURE" else None
            )
            while error is not None:
                lines.append(f"{event.step_key}: {str(error.message).strip()}")
                error = error.cause
        return "\n".join(lines)


@pytest.fixture(autouse=True)
def quiet_libraries() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=dg.BetaWarning)
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)
        yield


@pytest.fixture(scope="session")
def small_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy folder for tests, trained once per test run."""
    return build_once(
        tmp_path_factory, "small-policy", lambda folder: pretrain(folder, SMALL_POLICY)
    )


@pytest.fixture(scope="session")
def initialised_home(tmp_path_factory: pytest.TempPathFactory, small_policy: Path) -> Path:
    """A home as `rlhf init` leaves it, made once per test run, to be copied."""
    return build_once(
        tmp_path_factory,
        "initialised",
        lambda home: initialise(Workspace(settings_of(home, small_policy))),
    )


@pytest.fixture(scope="session")
def make_project(
    tmp_path_factory: pytest.TempPathFactory, small_policy: Path, initialised_home: Path
) -> Iterator[Callable[..., Project]]:
    """`make_project(persistent=False, overrides={}, **settings)`: a fresh initialised project.

    Simulated annotators and the small policy by default; `completion_backend="template"` makes no
    use of it. A persistent one keeps Dagster's runs below its home, where other processes find
    them.
    """
    opened: list[Project] = []

    def make(
        *, persistent: bool = False, overrides: dict[str, Any] | None = None, **settings: Any
    ) -> Project:
        project_settings = settings_of(tmp_path_factory.mktemp("home"), small_policy, **settings)
        if not settings.keys() & ELSEWHERE:
            shutil.copytree(initialised_home, project_settings.home, dirs_exist_ok=True)
        # a copy only has its configuration of Dagster written anew
        initialise(Workspace(project_settings))
        opened.append(open_project(project_settings, overrides, persistent=persistent))
        return opened[-1]

    yield make
    for project in opened:
        project.close()


def settings_of(home: Path, policy: Path, **settings: Any) -> Settings:
    from rlhf_pipeline.application.assets.partitions import DAYS

    first = date.fromisoformat(DAYS.get_first_partition_key() or "")
    values: dict[str, Any] = {
        "home": home,
        "start_day": first,
        "annotators": "simulated",
        "policy": str(policy),
    }
    return Settings(**values | settings)


def open_project(
    settings: Settings, overrides: dict[str, Any] | None = None, *, persistent: bool = False
) -> Project:
    home = settings.home
    instance = (
        dg.DagsterInstance.from_config(str(home / "dagster"))
        if persistent
        else dg.DagsterInstance.ephemeral(tempdir=str(home / "runs"))
    )
    return Project(settings, instance, overrides or {})


@pytest.fixture(scope="session")
def few_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation set for the setting `evaluation_file`, where figures do not matter: policies
    take 10 s of CPU for the 300 prompts of the project's own.
    """

    def write(file: Path) -> None:
        rows = [{"prompt": f"What is {i} plus 2?", "category": "arithmetic"} for i in range(40)]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    return build_once(tmp_path_factory, "few_prompts.jsonl", write)


@pytest.fixture(scope="session")
def grown(tmp_path_factory: pytest.TempPathFactory, small_policy: Path) -> Iterator[Project]:
    """Three days of a small project, read only: two without a reward model, learning, and a third
    that it predicted.
    """

    def grow(home: Path) -> None:
        settings = settings_of(home, small_policy)
        initialise(Workspace(settings))
        project = open_project(settings, persistent=True)
        for index in range(3):
            day = project.day(index)
            project.collect(day)
            project.vote(day)
            project.run("feedback", day)
            if index == 1:
                project.run("learning", config=op_config(calibration={"min_pairs": 20}))
        project.close()

    home = build_once(tmp_path_factory, "grown", grow)
    project = open_project(settings_of(home, small_policy), persistent=True)
    yield project
    project.close()


@pytest.fixture(scope="session")
def branch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Project]]:
    """`branch(project, persistent=False, **settings)`: the same history in a home of its own, to be
    changed. Dagster's event log starts anew, below the home where it is persistent.
    """
    opened: list[Project] = []

    def grow(
        project: Project,
        *,
        persistent: bool = False,
        overrides: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Project:
        home = tmp_path_factory.mktemp("branch")
        shutil.copytree(
            project.settings.home,
            home,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("dagster", "runs", "mlflow.db.lock"),
        )
        # Dagster's configuration goes along, its history does not.
        (home / "dagster").mkdir()
        shutil.copy(project.settings.home / "dagster" / "dagster.yaml", home / "dagster")
        changed = project.settings.model_copy(update={"home": home, **settings})
        opened.append(open_project(changed, overrides, persistent=persistent))
        return opened[-1]

    yield grow
    for project in opened:
        project.close()

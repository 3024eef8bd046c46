"""Where the steps of a run are executed, as the settings say, and what becomes of a step whose
process is killed. Real processes.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.config import ENV_PREFIX
from tests.processes.daemon_home import eventually, step_pids

IN_PROCESSES = Path(__file__).with_name("step_processes.py")
SMALL = {"prompts": {"n": 6}, "comparisons": {"pairs_per_prompt": 3}}
STAGES = {"prompts", "completions", "comparisons"}
Types = dg.DagsterEventType


@dataclass
class Collection:
    """A day's collection in a process of its own."""

    project: Any
    day: str
    process: subprocess.Popen[str]
    mark: Path

    @property
    def attempts(self) -> list[int]:
        """Processes that came to the completions, oldest first."""
        return [int(pid) for pid in self.mark.read_text().split()] if self.mark.exists() else []

    def end(self) -> dg.DagsterRun:
        _, self.said = self.process.communicate(timeout=240)
        return self.project.instance.get_runs(dg.RunsFilter(tags={"dagster/partition": self.day}))[
            0
        ]

    def events(
        self, run: dg.DagsterRun, kind: dg.DagsterEventType, step: str | None = None
    ) -> list[dg.DagsterEvent]:
        found = [
            entry.dagster_event
            for entry in self.project.instance.all_logs(run.run_id, of_type=kind)
            if entry.dagster_event
        ]
        return [event for event in found if step is None or event.step_key == step]


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Any]) -> Any:
    return make_project(persistent=True, completion_backend="template")


@pytest.fixture
def collect(project: Any, tmp_path: Path) -> Callable[..., Collection]:
    def start(
        index: int,
        *,
        job: str | None = "collection",
        mishap: str | None = None,
        execution: Any = None,
        **settings: Any,
    ) -> Collection:
        chosen = project.settings.model_copy(update=settings)
        own = {
            "STEP_SETTINGS": chosen.model_dump_json(exclude_none=True),
            "STEP_MARK": str(tmp_path / "mark"),
        }
        own |= {
            name: value
            for name, value in (("STEP_JOB", job), ("STEP_MISHAP", mishap))
            if value is not None
        }
        environ = {
            key: value
            for key, value in (project.environ | own).items()
            if not key.startswith(ENV_PREFIX) or key == "RLHF_HOME"
        }
        config = {"ops": {stage: {"config": values} for stage, values in SMALL.items()}} | (
            {"execution": execution} if execution else {}
        )
        command = [sys.executable, str(IN_PROCESSES), project.day(index), json.dumps(config)]
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return Collection(project, project.day(index), process, tmp_path / "mark")

    started: list[subprocess.Popen[str]] = []
    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_steps_run_where_the_settings_say(project: Any, collect: Callable[..., Collection]) -> None:
    for index, executor in enumerate(("in_process", "multiprocess")):
        collection = collect(index, executor=executor)
        run = collection.end()
        assert run.status == dg.DagsterRunStatus.SUCCESS, collection.said[-3000:]
        pids = step_pids(project.instance, run.run_id)
        assert len(set(pids)) == (3 if executor == "multiprocess" else 0), (
            "each step in a process of its own"
        )
        assert collection.process.pid not in pids
        for stage in STAGES:
            assert project.day(index) in project.files.days(stage), (executor, stage)
        assert project.store.heartbeats.get(run.run_id) is None


@pytest.mark.parametrize(
    ("index", "job"), [(2, "collection"), (3, None)], ids=["light", "training"]
)
def test_a_step_whose_process_is_killed_is_started_again_and_its_run_succeeds(
    project: Any, collect: Callable[..., Collection], index: int, job: str | None
) -> None:
    of_this_run = {"config": {"multiprocess": {"max_concurrent": 1}}}
    collection = collect(index, job=job, mishap="wait", execution=of_this_run if job else None)
    [first] = eventually(
        lambda: collection.attempts[:1], seconds=120, what="completions under way", every=0.05
    )
    assert first != collection.process.pid
    os.kill(first, signal.SIGKILL)
    run = collection.end()
    assert run.status == dg.DagsterRunStatus.SUCCESS, collection.said[-3000:]
    assert len(set(collection.attempts)) == 2
    [again] = collection.events(run, Types.STEP_UP_FOR_RETRY)
    assert again.step_key == "completions"
    told = [
        event.message or "" for event in collection.events(run, Types.ENGINE_EVENT, "completions")
    ]
    assert any("SIGKILL" in message for message in told), told
    for stage in STAGES:
        assert len(collection.events(run, Types.STEP_SUCCESS, stage)) == 1, (
            "nothing that had succeeded is done again"
        )
        assert len(collection.events(run, Types.ASSET_MATERIALIZATION, stage)) == 1
    assert (
        len(project.files.read_frame("comparisons", collection.day))
        == len(project.store.comparisons.for_days([collection.day]))
        > 0
    )


def test_a_step_that_is_killed_each_time_is_given_up(
    project: Any, collect: Callable[..., Collection]
) -> None:
    collection = collect(4, mishap="die", executor="multiprocess", step_retries=1)
    run = collection.end()
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert len(collection.attempts) == 2
    assert len(collection.events(run, Types.STEP_UP_FOR_RETRY)) == 1
    assert [event.step_key for event in collection.events(run, Types.STEP_FAILURE)] == [
        "completions"
    ]
    assert collection.day not in project.files.days("completions")
    assert project.store.heartbeats.get(run.run_id) is None, (
        "nobody asks again for what was tried enough"
    )


def test_a_step_that_fails_by_an_error_of_its_own_is_not_tried_again(
    collect: Callable[..., Collection],
) -> None:
    collection = collect(5, mishap="raise", executor="multiprocess")
    run = collection.end()
    assert run.status == dg.DagsterRunStatus.FAILURE
    assert len(collection.attempts) == 1
    assert collection.events(run, Types.STEP_UP_FOR_RETRY) == []


def test_no_step_at_a_time_is_refused(collect: Callable[..., Collection]) -> None:
    collection = collect(6, execution={"config": {"multiprocess": {"max_concurrent": 0}}})
    collection.end()
    assert collection.process.returncode != 0
    assert "max_concurrent is 0: no step could start. Give 1 or more" in collection.said

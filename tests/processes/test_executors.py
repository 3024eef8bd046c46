"""Where the steps of a run are executed, and how soon a cancelled job ends. Real processes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.jobs.cancellation import GRACE_S, POLL_S
from rlhf_pipeline.core.config import ENV_PREFIX
from rlhf_pipeline.core.records import TrainingOrder, utc_now
from tests.processes.daemon_home import eventually, lives, step_pids

IN_PROCESSES = Path(__file__).with_name("step_processes.py")


@dataclass
class Run:
    """A run in a process of its own."""

    project: Any
    day: str
    process: subprocess.Popen[str]
    mark: Path

    @property
    def attempts(self) -> list[int]:
        """Processes that came to the mishap, oldest first."""
        return [int(pid) for pid in self.mark.read_text().split()] if self.mark.exists() else []

    def end(self) -> dg.DagsterRun:
        _, self.said = self.process.communicate(timeout=240)
        return self.project.instance.get_runs(dg.RunsFilter(tags={"dagster/partition": self.day}))[
            0
        ]


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Any]) -> Any:
    return make_project(persistent=True, completion_backend="template")


@pytest.fixture
def start(project: Any, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    def start_run(
        index: int,
        job: str = "light",
        *,
        mishap: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Run:
        settings = project.settings
        own = {
            "STEP_SETTINGS": settings.model_dump_json(exclude_none=True, exclude={"alert_targets"}),
            "STEP_MARK": str(tmp_path / "mark"),
            "STEP_JOB": job,
            "STEP_TAGS": json.dumps(tags or {}),
        } | ({"STEP_MISHAP": mishap} if mishap else {})
        environ = {
            key: value
            for key, value in (project.environ | own).items()
            if not key.startswith(ENV_PREFIX) or key == "RLHF_HOME"
        }
        command = [sys.executable, str(IN_PROCESSES), project.day(index)]
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return Run(project, project.day(index), process, tmp_path / "mark")

    started: list[subprocess.Popen[str]] = []
    yield start_run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("index", "job", "n_processes"), [(0, "light", 0), (2, "training", 3)])
def test_only_training_steps_have_processes_of_their_own(
    start: Callable[..., Run], index: int, job: str, n_processes: int
) -> None:
    started = start(index, job)
    run = started.end()
    assert run.status == dg.DagsterRunStatus.SUCCESS, started.said[-3000:]
    pids = step_pids(started.project.instance, run.run_id)
    assert len(set(pids)) == n_processes
    assert started.process.pid not in pids
    assert started.project.store.heartbeats.get(run.run_id) is None


def test_cancelled_job_ends_soon_in_a_hanging_step(project: Any, start: Callable[..., Run]) -> None:
    training_jobs = project.store.training_jobs
    order = TrainingOrder(stages={"candidate_model": {"strategy": "dpo"}}, key="hang")
    decision, _ = training_jobs.order(order, reason="try", actor="ada", now=utc_now())
    tags = {DECISION_TAG: str(decision.decision_id)}
    started = start(9, "training", mishap="hang", tags=tags)
    [pid] = eventually(lambda: started.attempts, what="the step", every=0.05)
    training_jobs.cancel(decision.decision_id, reason="enough", actor="ada", now=utc_now())
    # five seconds on a machine with nothing else to do
    assert POLL_S + GRACE_S <= 3
    eventually(lambda: not lives(pid), what="the end of the step", every=0.1)
    eventually(lambda: started.process.poll() is not None, what="the end of the run")
    run = started.end()
    assert run.status == dg.DagsterRunStatus.CANCELED, started.said[-3000:]
    assert started.attempts == [pid]

"""The demo after a kill, a failed run, a day of `make dev`: it goes on where it stood, doubles
nothing, mixes nobody's votes.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.driver.demo import Demo, DemoState, tick_time
from rlhf_pipeline.application.driver.demo_report import collect_day_rows
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.driver.session import fail_dead_runs
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.demo import claim
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import AnnotatorKind, Choice, DriftEvent, NewVote

DAILY = (
    "prompts",
    "completions",
    "comparisons",
    "votes",
    "reflection_log",
    "drift_report",
)
RETRAINING = {
    "calibration": {"min_pairs": 10},
    "retraining_set": {"min_pairs": 40, "max_pairs": 64},
    "candidate_model": {
        "epochs": 1,
        "min_steps": 0,
        "min_pairs": 40,
        "checkpoint_every": 2,
        "learning_rate": 1e-3,
    },
    "evaluation": {"max_new_tokens": 16},
}
SMALL = {
    "collection": {
        "prompts": {"n": 10},
        "completions": {"max_new_tokens": 8},
        "comparisons": {"pairs_per_prompt": 6},
    },
    "retraining": RETRAINING,
}


class Killed(BaseException):
    """The end of the process at this point, as far as files and databases can tell."""


class SmallRunner(Runner):
    """Runs small jobs; it may be killed before or after one of them, or see one fail."""

    killed_before = killed_after = failing = ""

    def run(self, job: str, day: str, **arguments: Any) -> None:
        if job == self.killed_before:
            raise Killed
        config = json.loads(json.dumps(arguments.get("run_config", {})))
        for stage, values in SMALL.get(job, {}).items():
            config.setdefault("ops", {}).setdefault(stage, {}).setdefault("config", {}).update(
                values
            )
        if job == self.failing:
            config.setdefault("ops", {}).setdefault("votes", {}).setdefault("config", {})[
                "up_to_seq"
            ] = -5
        super().run(job, day, **arguments | {"run_config": config})
        if job == self.killed_after:
            raise Killed


def demo_of(project: Any, **moments: str) -> Demo:
    runner = SmallRunner(project.settings, project.defs, project.instance, project.store)
    for name, job in moments.items():
        setattr(runner, name, job)
    return Demo(runner)


def demo(project: Any, **moments: str) -> Demo:
    """One call of the demo: what an earlier one left, then the next day."""
    demo = demo_of(project, **moments)
    fail_dead_runs(project.instance, project.store, timedelta(seconds=60))
    demo.run_day(state_of(project).next_days(1)[0])
    return demo


def state_of(project: Any) -> DemoState:
    return DemoState.read(project.settings.demo_state)


def made(project: Any) -> dict[str, Any]:
    """What must not be doubled."""
    runs = Counter(
        run.job_name
        for run in project.instance.get_runs()
        if run.status == dg.DagsterRunStatus.SUCCESS
    )
    return {
        "votes": project.store.votes.count(),
        "comparisons": project.store.comparisons.count(),
        "days": {stage: project.files.days(stage) for stage in DAILY},
        "feedback": runs["feedback"],
        "collection": runs["collection"],
    }


@pytest.fixture
def project(make_project: Callable[..., Any]) -> Any:
    return make_project(completion_backend="template")


@pytest.fixture(scope="module")
def unbroken(make_project: Callable[..., Any]) -> dict[str, Any]:
    """What one day leaves in which nothing happens."""
    project = make_project(completion_backend="template")
    demo(project)
    return made(project)


@pytest.mark.parametrize(
    "moment",
    [
        {"killed_after": "collection"},
        {"killed_after": "simulated_voting"},
        {"killed_after": "feedback"},
    ],
    ids=lambda moment: " ".join(*moment.items()),
)
def test_interrupted_day_is_completed_without_duplicates(
    project: Any, unbroken: dict[str, Any], moment: dict[str, str]
) -> None:
    with pytest.raises(Killed):
        demo(project, **moment)
    assert state_of(project).finished is None
    demo(project)
    assert state_of(project).finished == project.day(0)
    assert made(project) | {"collection": 1} == unbroken


def test_killed_feedback_does_not_block_its_drift_report(
    project: Any, unbroken: dict[str, Any]
) -> None:
    with pytest.raises(Killed):
        demo(project, killed_before="feedback")
    request = demo_of(project).runner.tick("votes").run_requests[0]
    tags = {
        "dagster/run_key": request.run_key,
        "dagster/sensor_name": "votes",
        "dagster/partition": project.day(0),
    }
    killed = started(project, "feedback", tags)
    demo(project)
    assert project.instance.get_run_by_id(killed).status == dg.DagsterRunStatus.FAILURE
    assert made(project) == unbroken


def started(
    project: Any, job: str, tags: dict[str, str], *, pid: int | None = None, host: str = ""
) -> str:
    """A run as a killed process leaves it."""
    run = project.instance.create_run_for_job(project.defs.resolve_job_def(job), tags=tags)
    project.instance.report_dagster_event(
        dg.DagsterEvent(event_type_value="PIPELINE_START", job_name=job, message="started"),
        run_id=run.run_id,
    )
    project.store.heartbeats.beat(
        run.run_id, pid=pid or dead_pid(), host=host or os.uname().nodename, job=job
    )
    return str(run.run_id)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_runs_of_dead_local_processes_are_failed(project: Any) -> None:
    dead = started(project, "feedback", {})
    started(project, "feedback", {}, pid=os.getpid())
    started(project, "feedback", {}, host="elsewhere")
    assert fail_dead_runs(project.instance, project.store, timedelta(seconds=60)) == [dead]
    assert project.store.heartbeats.get(dead) is None


def test_a_retraining_killed_with_its_demo_is_retried_and_settled(
    grown: Any, branch: Callable[..., Any], few_prompts: Path
) -> None:
    project = branch(grown, evaluation_file=few_prompts)
    last = project.day(2)
    project.store.events.add([event(project, "sequential_test")])
    runner = demo_of(project).runner
    runner.clock = lambda: tick_time(last)
    request = runner.tick("retraining").run_requests[0]
    killed = started(
        project, "retraining", dict(request.tags) | {"dagster/run_key": request.run_key}
    )
    runner.tick("retraining")
    fired = [d for d in project.store.decisions.all() if d.action == "fire"]
    assert [(d.state, d.run_id) for d in fired] == [("submitted", killed)]
    later = demo_of(project)
    fail_dead_runs(project.instance, project.store, timedelta(seconds=60))
    later.drain("retraining", last)
    fired = [d for d in project.store.decisions.all() if d.action == "fire"]
    assert [(d.state, d.attempt) for d in fired] == [("succeeded", 2)]
    assert project.instance.get_run_by_id(killed).status == dg.DagsterRunStatus.FAILURE
    assert project.instance.get_run_by_id(fired[0].run_id).status == dg.DagsterRunStatus.SUCCESS
    assert "gate" in [stage.stage for stage in later.runner.history]


def event(project: Any, detector: str) -> DriftEvent:
    return DriftEvent(
        kind="drift",
        model_version=project.judge,
        detector=detector,
        params_hash="p",
        stream="errors",
        seq=1_000_000,
        day=project.settings.start_day,
        change_seq=None,
        evidence={},
    )


def test_daemon_report_is_not_a_demo_day(project: Any) -> None:
    demo(project)
    project.run("feedback", project.day(300))
    assert state_of(project).next_days(2) == [project.day(1), project.day(2)]
    assert [row.day for row in collect_day_rows(project.settings, project.files)] == [
        project.day(0)
    ]
    demo(project)
    assert state_of(project).finished == project.day(1)


def test_the_demo_refuses_a_home_with_votes_of_people(project: Any) -> None:
    claim(Workspace(project.settings))
    project.collect(project.day(0), n=3)
    project.vote(project.day(0))
    claim(Workspace(project.settings))
    project.settings.demo_state.unlink()
    comparison = project.store.comparisons.for_days([project.day(0)])["comparison_id"].iloc[0]
    noon = datetime.combine(date.fromisoformat(project.day(0)), datetime.min.time(), UTC).replace(
        hour=12
    )
    project.store.votes.cast(
        NewVote(
            comparison_id=comparison,
            annotator_id="ann",
            annotator_kind=AnnotatorKind.HUMAN,
            choice=Choice.A,
            strength=2,
            voted_at=noon,
            origin="page",
            idempotency_key="ann:1",
        )
    )
    with pytest.raises(ConfigurationError, match=r"holds human votes.*RLHF_HOME"):
        claim(Workspace(project.settings))
    assert not project.settings.demo_state.exists()

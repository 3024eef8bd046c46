"""Training jobs from order to gate, and cancelled on the way, in this process."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.driver.commands import find_job_runs
from rlhf_pipeline.application.driver.run import run_pending_decisions
from rlhf_pipeline.application.driver.runner import RunCancelled, Runner
from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.training_orders import build_order
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.improve.retraining.jobs import JobState, derive_state
from tests.pipeline.test_retraining_in_process import QUICK

STAGES = ["retraining_set", "candidate_model", "evaluation", "gate"]
CHANGES = [
    f"{stage}.{name}={value}" for stage in STAGES for name, value in QUICK.get(stage, {}).items()
]


def place(project: Any, *changes: str) -> int:
    """Order a small training; the number of the job."""
    order = build_order(LoopSettings(), "dpo", [*CHANGES, *changes], None)
    decision, _ = project.store.training_jobs.order(order, reason="try", actor="ada", now=utc_now())
    number: int = decision.stored_id
    return number


def runner_of(project: Any) -> Runner:
    return Runner(project.settings, project.defs, project.instance, project.store)


def state_of(project: Any, job: int) -> JobState:
    run = find_job_runs(project.instance, [str(job)]).get(str(job))
    return derive_state(
        project.store.decisions.get(job),
        run.status if run else None,
        is_cancelled=project.store.training_jobs.find_cancellation(job) is not None,
        is_silent=False,
    )


@pytest.fixture(scope="module")
def trained(grown: Any, branch: Callable[..., Any], few_prompts: Path) -> Any:
    """A job that ran to its end, ordered twice."""
    project = branch(grown, persistent=True, evaluation_file=few_prompts)
    assert place(project) == place(project) == 1
    assert state_of(project, 1) == "queued"
    run_pending_decisions(runner_of(project), project.day(3))
    return project


def test_order_becomes_one_run_with_its_parameters(trained: Any) -> None:
    assert state_of(trained, 1) == "succeeded"
    (run,) = trained.instance.get_runs(dg.RunsFilter(tags={DECISION_TAG: "1"}))
    assert run.job_name == "policy_training"
    config = run.run_config["ops"]["candidate_model"]["config"]
    assert config.items() >= {**QUICK["candidate_model"], "strategy": "dpo"}.items()
    assert trained.store.decisions.get(1).state == "succeeded"
    assert not trained.tick("retraining").run_requests


def test_commands_order_show_and_cancel(trained: Any) -> None:
    def rlhf(*words: str) -> Result:
        return CliRunner().invoke(app, ["policy", *words], env=trained.environ | {"COLUMNS": "200"})

    output = rlhf("status", "1").output
    for part in ("succeeded", "the gate ", "learning rate", "tokens", "evaluation"):
        assert part in output
    order = [word for change in CHANGES for word in ("--set", change)]
    first, second = (rlhf("train", *order, "--key", "again").output for _ in range(2))
    ordered = re.search(r"job (\d+): training by dpo is ordered", first)
    assert ordered
    job = ordered[1]
    assert f"This order is already job {job} (queued). Nothing was started." in second
    assert f"job {job} cancelled" in rlhf("cancel", job, "--reason", "enough").output
    assert rlhf("train", *order, "--key", "again", "--wait").exit_code == 1
    assert "nothing to cancel" in str(rlhf("cancel", job).exception)
    listed = json.loads(rlhf("jobs", "--json").output)
    states = [(each["job_id"], each["state"]) for each in listed]
    assert states == [(int(job), "cancelled"), (1, "succeeded")]
    assert not trained.tick("retraining").run_requests


def test_cancelled_job_ends_soon_and_its_order_resumes(
    grown: Any, branch: Callable[..., Any], few_prompts: Path
) -> None:
    cancelled_at: list[float] = []

    def cancel_in_step_3(done: int, total: int, note: str = "") -> None:
        if note.startswith("loss") and done >= 3 and not cancelled_at:
            project.store.training_jobs.cancel(1, reason="enough", actor="bob", now=utc_now())
            cancelled_at.append(time.monotonic())
            time.sleep(300)  # a slow step

    project = branch(
        grown,
        persistent=True,
        overrides={"progress": lambda stage: cancel_in_step_3},
        evaluation_file=few_prompts,
    )
    champion = project.champions.policy()
    assert place(project) == 1
    with pytest.raises(RunCancelled, match="Job 1 was cancelled"):
        run_pending_decisions(runner_of(project), project.day(3))
    assert time.monotonic() - cancelled_at[0] < 200
    assert state_of(project, 1) == "cancelled"
    (run,) = project.instance.get_runs(dg.RunsFilter(tags={DECISION_TAG: "1"}))
    assert run.status == dg.DagsterRunStatus.CANCELED
    assert project.champions.policy() == champion
    assert len(project.registry.list_versions("policy")) == 1

    again = place(project)
    assert again > 1
    run_pending_decisions(runner_of(project), project.day(3))
    assert state_of(project, again) == "succeeded"
    event = project.instance.get_latest_materialization_event(dg.AssetKey("candidate_model"))
    headline = event.asset_materialization.metadata["headline"].value
    assert "resumed from step 2" in headline

"""`rlhf run` and `rlhf loop`: jobs of a project in this process, without a daemon."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.driver.commands import parse_stage_config
from rlhf_pipeline.application.driver.loop import RETRY_AFTER, Loop
from rlhf_pipeline.application.driver.run import JobOrder, retrain
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.sensors.runs import find_run, request_again
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError
from rlhf_pipeline.watch.telemetry.tracing import flush_spans
from tests.collector import check_trace, collecting

SMALL = {"prompts": {"n": 10}, "comparisons": {"pairs_per_prompt": 6}}
NOW = datetime.now(UTC)  # one day for the file: a suite may run past midnight
TODAY = NOW.date().isoformat()


@pytest.fixture
def project(make_project: Callable[..., Any]) -> Any:
    return make_project(completion_backend="template", annotators="human")


def runner_of(project: Any, hour: int = 12) -> Runner:
    now = NOW.replace(hour=hour, minute=0)
    return Runner(
        project.settings,
        project.defs,
        project.instance,
        project.store,
        clock=lambda: now,
        stage_config=SMALL,
    )


def jobs_run(project: Any) -> list[str]:
    return sorted(run.job_name for run in project.instance.get_runs())


def test_in_process_run_sends_a_trace(make_project: Callable[..., Any]) -> None:
    with collecting() as collector:
        project = make_project(
            completion_backend="template", annotators="human", otlp_endpoint=collector.url
        )
        runner_of(project).run("collection", TODAY, partition_key=TODAY)
        flush_spans()
    check_trace(collector.spans, project.instance.get_runs()[0].run_id)


def test_run_config_overrides_stage_parameters(project: Any) -> None:
    runner = runner_of(project)
    own = {"ops": {"prompts": {"config": {"n": 12}}}}
    runner.run("collection", TODAY, partition_key=TODAY, run_config=own)
    assert len(project.files.read_days("prompts", [TODAY])) == 12
    assert project.instance.get_runs()[0].run_config["ops"] == {
        "prompts": {"config": {"n": 12}},
        "comparisons": {"config": {"pairs_per_prompt": 6}},
    }


def test_request_for_some_stages_runs_only_those(project: Any) -> None:
    runner = runner_of(project)
    runner.run("collection", TODAY, partition_key=TODAY)
    left = [dg.AssetKey("completions"), dg.AssetKey("comparisons")]
    request = dg.RunRequest(
        "paused:1", job_name="collection", partition_key=TODAY, asset_selection=left
    )
    runner.run_request(request, "paused_runs", TODAY)
    run = project.instance.get_runs()[0]
    assert [each.stage for each in runner.history[3:]] == ["completions", "comparisons"]
    assert set(run.run_config["ops"]) == {"comparisons"}
    again = request_again(run, "killed:1")
    assert set(again.asset_selection or []) == set(left)
    assert (again.job_name, again.partition_key) == ("collection", TODAY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("prompts.nn=3", "changes no parameter"),
        ("prompts.n=0", "n: Input should be greater than or equal to 1"),
        ("promts.n=3", "names no stage with parameters"),
        ("n=3", "Write STAGE.FIELD=VALUE"),
        ("gate.length_tolerance=often", "length_tolerance: Input should be a valid number"),
        ("reward_model.fine_tuning.step=2", "Did you mean steps"),
        ("reward_model.tuning.steps=2", "changes no parameter"),
    ],
)
def test_unusable_parameter_is_refused_before_anything_runs(change: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_stage_config([change])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (JobOrder("learning", first_day=TODAY), "works on all days at once"),
        (JobOrder("feedback", first_day="1999-01-01"), "1999-01-01 is not a day of this project"),
        (JobOrder("feedback", first_day=TODAY, last_day="2026-01-02"), "is later than --to"),
    ],
)
def test_impossible_days_are_refused(order: JobOrder, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        order.days()


def test_retraining_by_hand_is_a_decision_with_its_reason(project: Any) -> None:
    runner = runner_of(project)
    with pytest.raises(PipelineError, match="Collect votes on more prompts"):
        retrain(runner, "the new guideline", TODAY)
    (decision,) = project.store.decisions.all()
    assert decision.reasons == ("by hand: the new guideline",)
    assert (decision.actor, decision.state) == ("rlhf run", "failed")
    assert project.store.training_jobs.pending() == [], "its author decides about another try"
    run = project.instance.get_run_by_id(decision.run_id)
    assert run.tags["rlhf/decision_id"] == str(decision.decision_id)
    event = project.instance.get_latest_materialization_event(dg.AssetKey("retraining_decision"))
    assert "by hand: the new guideline" in str(event.asset_materialization.metadata["headline"])


def test_launch_in_dagster_is_a_decision_without_a_reason(project: Any) -> None:
    decisions = project.store.decisions
    first = decisions.fire_by_hand(
        "no reason given", actor="Dagster", now=datetime.now(UTC), run_id="r1"
    )
    again = decisions.fire_by_hand(
        "no reason given", actor="Dagster", now=datetime.now(UTC), run_id="r1"
    )
    assert first.decision_id == again.decision_id
    assert [(d.state, d.run_id) for d in decisions.all()] == [("submitted", "r1")]


def test_failed_launch_in_dagster_is_a_failed_decision(project: Any) -> None:
    """The learning stages fail for lack of votes, long before the retraining set."""
    runner = runner_of(project)
    with pytest.raises(PipelineError):
        runner.run("retraining", TODAY)
    runner.tick("retraining")
    (decision,) = project.store.decisions.all()
    assert (decision.actor, decision.state) == ("Dagster", "failed")
    assert decision.reasons == ("by hand: no reason given",)


def test_loop_runs_due_jobs_once(project: Any) -> None:
    loop = Loop(runner_of(project))
    while loop.run_due():
        pass
    assert jobs_run(project) == ["collection", "feedback", "housekeeping"]
    assert find_run(project.instance, f"collection:{TODAY}") is not None
    assert loop.waiting["learning"] == "0 of 350 voted comparisons for the first reward model"

    another = Loop(runner_of(project))
    assert another.run_due() == 0, "a new process starts nothing twice"


def test_loop_without_drift_monitoring_decides_nothing(project: Any) -> None:
    loop = Loop(runner_of(project), monitors_drift=False)
    loop.run_due()
    assert "retraining" not in loop.waiting
    assert "learning" in loop.waiting


def test_loop_continues_after_a_failure_and_retries_later(project: Any) -> None:
    runner = runner_of(project)
    failures: list[str] = []
    runner.write = failures.append
    runner.stage_config = {"comparisons": {"pairs_per_prompt": 6}, "prompts": {"must": ["nothing"]}}
    loop = Loop(runner)
    while loop.run_due():
        pass
    assert jobs_run(project) == ["collection", "feedback", "housekeeping"]
    assert "collection" in failures[0]
    assert "Next try at" in failures[0]
    assert len(failures) == 1

    later = runner.clock() + RETRY_AFTER + timedelta(seconds=1)
    runner.clock, runner.stage_config = lambda: later, SMALL
    assert loop.run_due() == 1
    assert TODAY in project.files.days("comparisons")

"""A person is asked about careless annotators: with a yes their votes are left out, nothing is
retrained, and a person can undo it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from benchmarks.vote_worlds import Change, VoteWorld
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.core.records import Quarantine, TriggerDecision
from rlhf_pipeline.improve.retraining import answers
from rlhf_pipeline.improve.reward_training import plan_next_fit
from tests.pipeline.world_run import WorldRun
from tests.project import op_config

CARELESS = [f"annotator {i}" for i in range(4)]
WORLD = VoteWorld(
    n_votes=1400,
    votes_per_day=200,
    error_rate=0.12,
    n_annotators=12,
    changes=(Change(cause="carelessness", at=400, size=0.3, is_fast=False, one_sided=0.95),),
)


@dataclass
class RecordingRunner(Runner):
    """Keeps what its sensors request and runs none of it, as a daemon killed at that moment."""

    requests: list[dg.RunRequest] = field(default_factory=list)

    def tick(self, sensor: str, cursor: str | None = None) -> SensorExecutionData:
        data = super().tick(sensor, cursor)
        self.requests += data.run_requests or []
        return data


@dataclass
class Quarantined:
    project: Any
    run: WorldRun
    decision: TriggerDecision
    request: dg.RunRequest


@pytest.fixture(scope="module")
def quarantined(make_project: Callable[..., Any]) -> Quarantined:
    """The world run through up to its question, answered by yes; the run has not begun."""
    project = make_project(completion_backend="template", annotators="human")
    runner = RecordingRunner(project.settings, project.defs, project.instance, project.store)
    run = WorldRun.open(runner, WORLD, seed=0)
    question = run.run_days()
    assert question is not None
    assert (question.action, question.remedy) == ("hold", "quarantine")
    assert not runner.requests
    note = {"reason": "they do not read", "actor": "test", "now": datetime.now(UTC)}
    decision = project.store.decisions.answer(
        question.stored_id,
        lambda question, seq: answers.answer(question, "quarantine", **note, max_seq=seq),
    )
    runner.tick("retraining")
    (request,) = runner.requests
    project.materialise(["preference_pairs"])
    return Quarantined(project, run, decision, request)


def spam(quarantined: Quarantined) -> set[str]:
    """Comparisons, repeats left out, that careless annotators judged since the change."""
    log = quarantined.project.store.votes.log()
    log = log[log["repeat_of"].isna()]
    first = quarantined.decision.quarantine.from_seq  # type: ignore[union-attr]
    return set(log.loc[log["annotator_id"].isin(CARELESS) & (log["seq"] >= first), "comparison_id"])


def pairs(project: Any) -> set[str]:
    return set(project.files.read_frame("preference_pairs")["comparison_id"])


def run_requested(project: Any) -> str:
    """Run the one request of the next tick, whose decision is reported; the name of its job."""
    tick = project.tick("retraining")
    (request,) = tick.run_requests
    reported = {event.metadata["decision"].value for event in tick.asset_events}
    assert int(request.tags["rlhf/decision_id"]) in reported
    project.run_request(request, "retraining")
    project.tick("retraining")
    return str(request.job_name)


def test_careless_annotators_are_quarantined_without_retraining(
    quarantined: Quarantined,
) -> None:
    project, decision = quarantined.project, quarantined.decision
    assert (decision.action, decision.remedy) == ("fire", "quarantine")
    assert decision.quarantine is not None
    assert sorted(decision.quarantine.annotator_ids) == CARELESS
    assert abs(decision.quarantine.from_seq - 401) < 200  # 4 of 12 people: slow to show
    for _ in range(3):
        project.cursors.clear()
        assert not project.tick("retraining").run_requests
    assert quarantined.request.job_name == "recomputation"
    before = pairs(project)
    assert not spam(quarantined) & before, "a quarantine begins with its decision"
    runner = quarantined.run.runner
    runner.run_request(quarantined.request, "retraining", "2026-02-01")
    last = quarantined.request.tags["dagster/asset_partition_range_end"]
    stages = [(each.day, each.stage) for each in runner.history[-2:]]
    assert sorted(stages) == [(last, "drift_report"), ("2026-02-01", "preference_pairs")]
    project.tick("retraining")
    assert [d.state for d in project.store.decisions.fires()] == ["succeeded"]
    assert pairs(project) == before
    assert len(before) > 400
    states = project.store.detectors.states(quarantined.run.label)
    assert sorted(states["scan"]["quarantines"]) == CARELESS
    assert not project.store.events.find_open(), "without their votes no detector reports"
    days = project.files.days("drift_report")
    reports = project.files.read_days("drift_report", days).set_index("detector")
    verdicts = set(reports.loc["sequential_test", "verdict"])
    assert verdicts <= {"insufficient", "stable"}, "nor does a report of their days"
    assert {run.job_name for run in project.instance.get_runs()} == {
        "feedback",
        "recomputation",
        "__ephemeral_asset_job__",
    }
    assert not project.store.taste_changes.all()
    assert project.tick("retraining").run_requests == []


def test_lifted_quarantine_restores_the_votes(quarantined: Quarantined) -> None:
    project, number = quarantined.project, quarantined.decision.stored_id
    note = {"reason": "new guidelines", "actor": "test", "now": datetime.now(UTC)}
    project.store.decisions.answer(
        number, lambda fired, seq: answers.lift(fired, **note, max_seq=seq)
    )
    assert run_requested(project) == "recomputation"
    assert spam(quarantined) <= pairs(project)
    assert not project.store.events.find_open(), "what was read before starts nothing again"
    assert [d.remedy for d in project.store.decisions.fires()] == ["quarantine", "lift_quarantine"]


def test_manual_quarantine_remakes_days_and_makes_a_refit_due(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    log = project.store.votes.log()
    annotator = str(log["annotator_id"].iloc[0])
    assert plan_next_fit(project.settings, project.store).shortage
    project.materialise(["preference_pairs"])
    before = project.files.read_frame("preference_pairs")["n_votes"].sum()
    project.store.decisions.fire_by_hand(
        "spam",
        actor="test",
        now=datetime.now(UTC),
        quarantine=Quarantine(annotator_ids=(annotator,), from_seq=1),
    )
    assert plan_next_fit(project.settings, project.store).cause == (
        "decision 1 concerns votes that reward model 1 learnt from"
    )
    project.materialise(["annotator_model", "reward_model"])  # of pairs from before the quarantine
    assert project.registry.list_versions("reward_model")[-1].params["last_decision"] == 0
    assert run_requested(project) == "recomputation"
    (run,) = [r for r in project.instance.get_runs() if r.job_name == "recomputation"]
    ends = [run.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")]
    assert ends == [project.day(0), project.day(2)]
    assert project.files.read_frame("preference_pairs")["n_votes"].sum() < before
    (request,) = project.tick("learning").run_requests
    assert request.run_key.startswith("learning:demo:1-1:")
    project.run_request(request, "learning", config=op_config(calibration={"min_pairs": 20}))
    assert project.judge == "demo.reward_model@3"
    assert project.store.promotions.champion(project.settings.reward_model).last_decision == 1
    assert not plan_next_fit(project.settings, project.store).cause

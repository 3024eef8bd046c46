"""A materialised day leaves metric points that equal the frames and records they come from."""

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from assets.votes import load_earlier_votes
from rlhf_pipeline.metric_catalogue import METRICS, metrics_of_stage
from rlhf_pipeline.votes import agreement


def test_the_points_of_a_day_equal_what_its_stages_made(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    day = project.day(2)
    found = project.store.metric_points.read(
        list(METRICS), since=date.fromisoformat(day), until=date.fromisoformat(day)
    )
    points = {(p.name, *p.labels.values()): p for p in found}
    stages = ("votes", "drift_report")
    assert {p.name for p in found} == {n for stage in stages for n in metrics_of_stage(stage)}

    votes = project.files.read_frame("votes", day)
    assert points["votes.cast", "simulation"].value == len(votes)
    agreed = agreement(load_earlier_votes(votes, project.store)).raw_agreement
    rate = points["agreement.rate",]
    assert (rate.value, rate.low, rate.high, rate.n) == (
        agreed.value,
        agreed.low,
        agreed.high,
        agreed.n,
    )

    window = project.files.read_windows([day])[day]
    model = window.reward_models[-1]
    for name, figure in {
        "model.accuracy": window.accuracy,
        "model.accuracy_ceiling": window.noise_ceiling,
        "model.ece": window.ece,
        "model.calibration_slope": window.slope,
    }.items():
        point = points[name, model]
        assert (point.value, point.low, point.high) == (figure.value, figure.low, figure.high)

    report = project.files.read_frame("drift_report", day).set_index(["space", "detector"])
    codes = {"insufficient": None, "stable": 0, "warning": 1, "drift": 2}
    overall = report.loc[("overall", "confirmation"), "verdict"]
    assert points["drift.verdict", "overall"].value == codes[overall]

    policy = project.files.read_policy_days([day])[day]
    assert points["policy.length", policy.policy].value == pytest.approx(policy.length.mean)


def test_a_range_of_days_leaves_the_points_of_single_days(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    names = [*metrics_of_stage("votes"), *metrics_of_stage("drift_report")]

    def figures() -> list[Any]:
        return [
            p.model_dump(exclude={"measured_at"}) for p in project.store.metric_points.read(names)
        ]

    before = figures()
    project.materialise(["votes", "drift_report"], project.day(0), project.day(2))
    assert figures() == before


def test_versions_of_the_reward_model_are_measured_on_the_same_votes(
    grown: Any, branch: Callable[..., Any]
) -> None:
    project = branch(grown)
    first = project.registry.get("reward_model", "champion")
    project.run("learning")
    points = project.store.metric_points.latest(["versions.accuracy", "versions.ece"])
    newest = max(point.measured_at for point in points)
    found = {p.labels["reward_model"]: p for p in points if p.measured_at == newest}
    assert first.label in found
    assert len(found) == 2
    assert len({point.n for point in found.values()}) == 1

"""A materialised day leaves metric points that equal the frames and records they come from."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import httpx
import pandas as pd
import pytest

from assets.votes import load_earlier_votes
from rlhf_pipeline.metric_catalogue import METRICS, metrics_of_stage
from rlhf_pipeline.records import Role
from rlhf_pipeline.votes import agreement
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer


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


def test_page_api_and_mlflow_show_the_same_figures(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    day, home = project.day(2), project.settings.home
    (logged,) = home.rglob(f"mlflow/**/calibration_over_time_{day}.csv")
    row = pd.read_csv(logged).set_index("day").loc[day]
    names = {name: f"model.{name}" for name in ("accuracy", "ece")}
    names["noise_ceiling"] = "model.accuracy_ceiling"
    reader = project.store.users.add(email="a@b.org", name="A", roles=[Role.ENGINEER], actor="test")
    token, _ = project.store.tokens.issue(
        reader.user_id, kind="api", lifetime=timedelta(hours=1), actor="test", name="test"
    )
    with WebServer(create_app(project.settings, project.store)) as server:
        client = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"})
        page = client.get("/alignment").text
        for name, point_name in names.items():
            asked = client.get("/api/v1/metrics/points", params={"name": point_name}).json()
            by_api = next(point for point in asked["items"] if point["day"] == day)
            found = [by_api["value"], by_api["low"], by_api["high"]]
            assert found == pytest.approx(list(row[[name, f"{name}_low", f"{name}_high"]]))
            assert f"{by_api['value']:.1%}" in page

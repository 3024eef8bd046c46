"""Figures of models in production: stored once, refused by row, drawn with gaps."""

import json
import math
from datetime import date, timedelta

import pytest

from rlhf_pipeline.core.api_types.production import SHARES
from rlhf_pipeline.core.metric_catalogue import METRICS, PRODUCTION
from rlhf_pipeline.core.records import Role
from tests.policy_versions import promote
from tests.web.conftest import Web

DAY = date(2026, 1, 2)
PATH = "/metrics/production"


def figure(n_days: int = 0, metric: str = "errors", **more: object) -> dict[str, object]:
    day = (DAY + timedelta(days=n_days)).isoformat()
    values = {"day": day, "metric": metric, "model": "demo.policy@3", "n": 200, "total": 10}
    return values | more


def send(client, *figures: dict[str, object]):
    return client.post(PATH, json={"figures": list(figures)})


def test_shares_are_those_of_the_catalogue():
    assert {name for name in PRODUCTION if METRICS[name].unit == "share"} == {
        f"production.{name}" for name in SHARES
    }


def test_figures_become_points_with_intervals_and_are_replaced(web: Web):
    engineer = web.client("engineer")
    latency = figure(metric="latency", n=4, total=8.0, total_squares=18.0)
    assert send(engineer, figure(), latency, figure(1, "cost")).json() == {"n": 3}
    assert send(engineer, figure(n=400, total=20)).status_code == 200
    points = engineer.get("/metrics/points", params={"label": "model=demo.policy@3"}).json()[
        "items"
    ]
    by_name = {point["name"]: point for point in points}
    assert len(points) == 3
    errors = by_name["production.errors"]
    assert (errors["n"], errors["total"], errors["value"]) == (400, 20, 0.05)
    assert 0.03 < errors["low"] < 0.05 < errors["high"] < 0.08
    seconds = by_name["production.latency"]
    factor = math.exp(1.96 * (2 / 3 / 4) ** 0.5 / 2)  # of a sample variance of 2/3
    assert [seconds[name] / 2 for name in ("value", "low", "high")] == pytest.approx(
        [1, 1 / factor, factor], abs=1e-3
    )
    assert by_name["production.cost"]["low"] is None


def test_invalid_figure_is_named_and_nothing_is_stored(web: Web):
    engineer = web.client("engineer")
    for wrong, path, words in (
        (figure(total=201), "body.figures.1", "from 0 to 1 each"),
        (figure(metric="cost", n=2, total=4, total_squares=1), "body.figures.1", "at least 8"),
        (figure(total_squares=11), "body.figures.1", "above total"),
        (figure(metric="speed"), "body.figures.1.metric", "Input should be"),
        (figure(n=0), "body.figures.1.n", "greater than or equal to 1"),
        (figure(metric="cost", total=float("1e999")), "body.figures.1.total", "finite"),
        (figure(day="2999-01-01"), "body.figures.1.day", "has not begun"),
        (figure(), "body.figures.1", "repeats day, metric and model of body.figures.0"),
    ):
        answer = engineer.post(
            PATH,
            content=json.dumps({"figures": [figure(), wrong]}),  # Infinity too
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 422, wrong
        (error,) = answer.json()["errors"]
        assert (error["path"], words in error["message"]) == (path, True), error
    assert engineer.get("/metrics/points").json()["items"] == []


def test_sending_figures_needs_permission(web: Web):
    assert send(web.client("auditor"), figure()).status_code == 403
    service = web.client("engineer", scopes=["metrics.write"])
    assert send(service, figure()).status_code == 200
    assert service.get("/charts/production").status_code == 403


def test_page_begins_with_the_deployed_version(paged: Web):
    send(paged.client("engineer"), figure(model="demo.policy@1"), figure(1))
    browser = paged.browser(paged.add(Role.ENGINEER))
    assert "<h1>Policy 3 in production" in browser.get(f"{paged.url}/production").text
    promote(paged.store, "demo.policy", 1, "first")
    assert "<h1>Policy 1 in production" in browser.get(f"{paged.url}/production").text

"""Runs, spending and settings, as the API and the pages show them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web

NAIVE = "%Y-%m-%d %H:%M:%S.%f"


@pytest.fixture
def paged(web: Web, settings: Settings, tmp_path: Path) -> Iterator[Web]:
    """The same project with its pages, its settings file and a secret."""
    file = tmp_path / "rlhf.yaml"
    file.write_text(
        "loop: {gate: {min_win_rate: 0.6}, schedules: {collection: '06:30'}, "
        "completions: {budget_per_day: 2}}\n"
        "base_url: https://ann:hunter22@llm.example.org/v1\n"
    )
    fields = {
        "config": file,
        "api_key": "sk-canary",
        "base_url": "https://ann:hunter22@llm.example.org/v1",
    }
    changed = Settings(**settings.model_dump(exclude_unset=True) | fields)
    with WebServer(create_app(changed, web.store, cache_times=UNCACHED)) as server:
        yield Web(web.store, changed, server.url, web.clock)


def write_runs(home: Path, *runs: tuple[str, str, datetime, float | None]) -> None:
    """Dagster's table of runs: job, status, start and seconds of each."""
    file = home / "dagster" / "history" / "runs.db"
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "CREATE TABLE runs (id INTEGER PRIMARY KEY, run_id TEXT, pipeline_name TEXT, "
            "status TEXT, run_body TEXT, create_timestamp DATETIME, update_timestamp DATETIME, "
            "start_time FLOAT, end_time FLOAT)"
        )
        for i, (job, status, at, seconds) in enumerate(runs):
            start, moment = at.timestamp(), at.strftime(NAIVE)
            body = json.dumps({"tags": {"dagster/partition": "2026-01-02"}})
            end = None if seconds is None else start + seconds
            connection.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (i + 1, f"run-{i}", job, status, body, moment, moment, start, end),
            )


def test_runs_are_listed_by_pages_and_filters(paged: Web, tmp_path: Path):
    now = paged.clock.now()
    hour_ago = now - timedelta(hours=1)
    write_runs(
        tmp_path,
        ("collection", "SUCCESS", hour_ago, 30.0),
        ("feedback", "FAILURE", hour_ago, 2.0),
        ("learning", "STARTED", hour_ago, None),
        ("feedback", "QUEUED", now, None),
    )
    reader = paged.client("engineer")
    first = reader.get("/runs", params={"limit": 3}).json()
    rows = first["items"] + reader.get("/runs", params={"cursor": first["next"]}).json()["items"]
    assert [(row["job"], row["state"]) for row in rows] == [
        ("feedback", "queued"),
        ("learning", "lost"),  # it never sent a heartbeat
        ("feedback", "failed"),
        ("collection", "succeeded"),
    ]
    assert (rows[3]["duration_s"], rows[3]["day"]) == (30.0, "2026-01-02")
    assert rows[3]["started_by"] is None
    assert rows[3]["link"] == "http://127.0.0.1:3000/runs/run-0"
    paged.store.heartbeats.beat("run-2", pid=1, host="h", job="learning")
    running = reader.get("/runs", params={"state": "running", "job": "learning"}).json()["items"]
    assert [row["state"] for row in running] == ["running"]
    assert [r["state"] for r in reader.get("/runs?state=failed").json()["items"]] == ["failed"]
    assert reader.get("/runs?state=lost").status_code == 422, "running finds these"
    page = paged.browser(paged.add(Role.ENGINEER)).get(f"{paged.url}/runs?job=feedback").text
    assert page.count('<details name="row"') == 2


def test_spending_is_the_sum_of_the_metric_points(paged: Web):
    now = paged.clock.now()
    for days_ago, amount in ((0, 1.5), (0, 0.25), (1, 4.0), (29, 8.0), (30, 16.0)):
        day = now.date() - timedelta(days=days_ago)
        paged.store.metric_points.put(
            [
                MetricPoint(
                    day=day,
                    name="spend.amount",
                    labels={"lane": f"lane/{amount}"},
                    value=amount,
                    measured_at=now,
                )
            ]
        )
    reader = paged.client("engineer")
    spending = reader.get("/spending").json()
    assert (spending["today"], spending["days_30"]) == (1.75, 13.75)
    assert spending["budget_per_day"] == 2.0
    assert sum(day["value"] for day in spending["days"]) == 13.75
    page = paged.browser(paged.add(Role.ENGINEER)).get(f"{paged.url}/runs/spending").text
    assert "of 2.00, the daily budget" in page
    assert 'id="spent" data-refresh' in page


def test_settings_show_value_and_source_but_no_secret(paged: Web):
    reader, browser = paged.client("engineer"), paged.browser(paged.add(Role.ENGINEER))
    answer, page = reader.get("/settings"), browser.get(f"{paged.url}/settings")
    for text in (answer.text, page.text):
        assert "sk-canary" not in text
        assert "hunter22" not in text
    settings = {setting["name"]: setting for setting in answer.json()["settings"]}
    assert settings["api_key"]["value"] == "set, hidden"
    assert (settings["base_url"]["source"], settings["quiet_minutes"]["source"]) == (
        "file",
        "default",
    )
    gate = next(part for part in answer.json()["parts"] if part["name"] == "gate")
    known = {parameter["name"]: parameter for parameter in gate["parameters"]}
    assert (known["min_win_rate"]["value"], known["min_win_rate"]["is_set"]) == ("0.6", True)
    assert not known["length_tolerance"]["is_set"]
    paged.settings.config.write_text("loop: {gate: {min_win: 1}}\n")
    assert "min_win_rate" in reader.get("/settings").json()["problem"]
    assert "Nothing starts while" in browser.get(f"{paged.url}/settings").text

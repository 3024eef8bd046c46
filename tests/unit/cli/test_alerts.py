"""`rlhf alerts`: incidents, rules and silences in the terminal."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.alert_rounds import AlertPlan, advance_alerts, record_tick
from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.cli import app
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.of_home(Settings(home=tmp_path / "home"))
    store.migrate()
    return store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The settings file."""
    file = tmp_path / "rlhf.yaml"
    file.write_text("loop: {}\n")
    return file


@pytest.fixture
def rlhf(tmp_path: Path, store: Store, file: Path):
    environ = {"RLHF_HOME": str(tmp_path / "home"), "COLUMNS": "200", "RLHF_CONFIG": str(file)}

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["alerts", *arguments], env=environ, catch_exceptions=False)

    return call


def open_alert(store: Store, tmp_path: Path) -> None:
    settings, now = Settings(home=tmp_path / "home"), utc_now()
    reading = Reading("queue.oldest_hours", now, 80.0)
    advance_alerts(store, AlertPlan.read(settings, store), [reading], now)


def test_an_alert_is_listed_shown_acknowledged_and_closed(rlhf, store, tmp_path) -> None:
    assert "No alert is open." in rlhf("list").output
    open_alert(store, tmp_path)
    assert "The oldest comparison has waited 80 hours" in rlhf("list").output
    assert "opened to log: pending" in rlhf("show", "1").output
    assert "is acknowledged" in rlhf("ack", "1").output
    assert "is resolved" in rlhf("resolve", "1").output
    (resolved,) = json.loads(rlhf("list", "--state", "resolved", "--json").output)
    assert resolved["resolved_by"] == "rlhf alerts"
    assert len(json.loads(rlhf("show", "1", "--json").output)["messages"]) == 2


def test_rules_are_changed_one_by_one_and_returned_to_the_default(rlhf) -> None:
    assert rlhf("set", "queue_age", "--threshold", "24").output == (
        "queue_age: queue.oldest_hours above 24, warning\n"
    )
    rlhf("set", "queue_age", "--off")
    rules = {rule["name"]: rule for rule in json.loads(rlhf("rules", "--json").output)}
    assert (rules["queue_age"]["threshold"], rules["queue_age"]["is_on"]) == (24, False)
    assert "queue_age (off)" in rlhf("rules").output
    rlhf("set", "queue_age", "--default")
    assert "queue_age (off)" not in rlhf("rules").output
    with pytest.raises(ConfigurationError, match="Did you mean queue_age"):
        rlhf("set", "queue_agee", "--threshold", "1")


def test_rules_are_listed_with_the_time_they_take(rlhf, file: Path) -> None:
    rule = "{for_minutes: 5, for_days: 2, resolve_at: 12, within_days: 9}"
    file.write_text(f"loop: {{alerts: {{rules: {{queue_age: {rule}}}}}}}\n")
    lines = {line.split()[1]: line for line in rlhf("rules").output.splitlines() if "above" in line}
    assert "above 72 on 2 days for 5 minutes, until 12 │ 9 " in lines["queue_age"]
    assert "above 120 for 3 minutes " in lines["daemon_silent"]


def test_a_silence_is_listed_and_ended(rlhf) -> None:
    said = rlhf("silence", "--hours", "8", "--reason", "holidays", "--rule", "drift").output
    assert said.startswith("silence 1 until ")
    assert "holidays" in rlhf("silences").output
    assert "has ended" in rlhf("unsilence", "1").output


def test_a_check_prints_what_breaks_a_rule(rlhf, store) -> None:
    assert rlhf("check").exit_code == 0
    now = utc_now()
    store.metric_points.put(
        [MetricPoint(day=now.date(), name="queue.oldest_hours", value=30.0, measured_at=now)]
    )
    result = rlhf("check")
    assert result.exit_code == 1
    assert "1 of 3 figures violates a rule" in result.output
    assert store.alerts.page() == []


def test_a_check_reads_how_long_the_daemon_is_silent(rlhf, store) -> None:
    assert "1 figure compared; none violates a rule." in rlhf("check").output
    record_tick(store, utc_now() - timedelta(hours=20))
    result = rlhf("check")
    assert result.exit_code == 1
    assert "daemon_silent" in result.output


def test_a_check_reads_the_budget_and_refuses_an_invalid_file(rlhf, store, file) -> None:
    now = utc_now()
    store.metric_points.put(
        [MetricPoint(day=now.date(), name="spend.amount", value=9.0, measured_at=now)]
    )
    file.write_text("loop: {completions: {budget_per_day: 10}}\n")
    assert "90% of the daily budget is spent" in rlhf("check").output
    file.write_text("loop: {alerts: {rules: {queue_age: {treshold: 1}}}}\n")
    with pytest.raises(ConfigurationError, match=r"queue_age\.treshold is unknown"):
        rlhf("check")


def test_an_unknown_target_of_a_level_is_named(rlhf, file) -> None:
    file.write_text("loop: {alerts: {levels: [[lgo]]}}\n")
    assert "names the target 'lgo'" in (output := rlhf("rules").output)
    assert "Did you mean log?" in output
    assert rlhf("check").exit_code == 1


def test_a_change_that_does_not_fit_any_more_is_shown_as_ignored(rlhf, store, file) -> None:
    rlhf("set", "queue_age", "--resolve-at", "60")
    store.alert_rules.put("mine", {"threshold": 1.0}, actor="ada")
    file.write_text("loop: {alerts: {rules: {queue_age: {threshold: 24}}}}\n")
    output = " ".join(rlhf("rules").output.split())
    assert "rlhf.yaml; rlhf alerts (ignored)" in output
    assert "The change of the rule queue_age is ignored: The rule 'queue_age' cannot" in output
    assert "resolve_at 60 must be at or below the threshold 24" in output
    assert "remove it with `rlhf alerts set mine --default`" in output
    rules = {r["name"]: r for r in json.loads(rlhf("rules", "--json").stdout)}
    assert rules["queue_age"]["threshold"] == 24
    assert "resolve_at 60" in rules["queue_age"]["ignored_change"]

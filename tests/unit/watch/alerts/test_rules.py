"""Rules: what breaks them, what changes them, and how an alert reads."""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.monitoring import Alert
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.watch.alerts.incidents import AlertPlan, advance
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rules import AlertParams, merge_rules

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


def reading(name="model.ece", value=0.2, days_ago=0, labels=None, **more):
    at = NOW - timedelta(days=days_ago)
    labels = {"reward_model": "rm@1"} if labels is None else labels
    return Reading(name, at, value, labels, of_day=at.date(), **more)


def look(name, readings, alerts=(), **rule) -> list[Alert]:
    """What one rule opens or ends."""
    plan = AlertPlan({name: merge_rules({name: rule})[name]}, AlertParams(), ("log",))
    return advance(plan, alerts, readings, NOW, next_id=1).changed


@pytest.mark.parametrize(
    ("name", "readings", "opens", "ends"),
    [
        ("calibration_error", {"value": 0.2}, True, False),
        ("calibration_error", {"value": 0.2, "low": 0.1, "high": 0.3}, True, False),
        ("calibration_error", {"value": 0.2, "low": 0.05, "high": 0.3}, False, False),
        ("calibration_error", {"value": 0.05, "low": 0.01, "high": 0.3}, False, True),
        ("calibration_error", {"value": 0.2, "days_ago": 7}, True, False),
        ("calibration_error", {"value": 0.2, "days_ago": 8}, False, False),
        ("calibration_error", {"value": 0.05, "days_ago": 8}, False, True),
        ("calibration_error", {"value": None}, False, False),
        ("agreement", {"value": 0.5, "low": 0.4, "high": 0.59}, True, False),
        ("agreement", {"value": 0.5, "low": 0.4, "high": 0.7}, False, False),
        ("agreement", {"value": 0.7, "low": 0.5, "high": 0.9}, False, True),
    ],
)
def test_estimate_opens_by_its_bound_and_ends_by_its_value(name, readings, opens, ends):
    reads = "model.ece" if name == "calibration_error" else "agreement.rate"
    sure = reading(reads, 0.5 if name == "calibration_error" else 0.1)
    figure = reading(reads, **readings)
    (alert,) = look(name, [sure])
    assert bool(look(name, [figure])) == opens
    changed = look(name, [figure], [alert])
    assert [each.state for each in changed if each.ended_at] == ["resolved"] * ends


def test_alert_stays_open_above_resolve_at():
    limits = {"threshold": 0.1, "resolve_at": 0.05}
    (alert,) = look("calibration_error", [reading(value=0.11)], **limits)
    (near,) = look("calibration_error", [reading(value=0.07)], [alert], **limits)
    assert (near.state, near.value) == ("open", 0.07)
    (ended,) = look("calibration_error", [reading(value=0.05)], [alert], **limits)
    assert ended.state == "resolved"


def test_low_count_is_reported_after_its_day():
    own = {"reads": "votes.cast", "threshold": 10, "comparison": "below"}

    def opens(*values):
        """Counts of the day before yesterday, of yesterday, of today; without None."""
        days = zip((2, 1, 0), values, strict=True)
        counts = [reading("votes.cast", n, day, {}) for day, n in days if n is not None]
        return bool(look("few", counts, **own))

    assert not opens(None, 12, 0)
    assert opens(None, 0, 20)
    assert opens(12, None, 0), "nobody voted yesterday"
    assert not opens(None, None, 2)


def test_a_count_of_an_earlier_day_is_over():
    own = {"reads": "runs.failed", "threshold": 1}
    (alert,) = look("many", [reading("runs.failed", 3, labels={"job": "weekly"})], **own)
    (ended,) = look("many", [reading("runs.failed", 3, 1, {"job": "weekly"})], [alert], **own)
    assert ended.state == "resolved"


def test_rule_reads_its_labels_of_the_current_model():
    groups = [
        reading("groups.ece", labels={"reward_model": model, "group": group}, days_ago=days)
        for model, group, days in (("rm@1", "x", 1), ("rm@2", "x", 0), ("rm@2", "y", 0))
    ]
    own = {"reads": "groups.ece", "threshold": 0.1}
    assert [alert.subject for alert in look("own", groups, **own)] == ["rm@2, x", "rm@2, y"]
    (alert,) = look("own", groups, **own, labels={"group": "y"})
    assert alert.title == "groups.ece of rm@2, y is 0.2, above 0.1"
    assert look("own", groups, **own, is_on=False) == []


def test_unknown_placeholder_of_a_title_is_refused():
    with pytest.raises(ConfigurationError, match=r"unknown placeholder 'chek'.*check"):
        merge_rules({"check_failed": {"title": "{chek} failed"}})


def test_title_has_figures_despite_missing_labels():
    (alert,) = look("calibration_error", [reading(labels={})])
    assert alert.title == "The calibration error of ? is 0.200 (limit 0.08)"
    title = merge_rules({})["daemon_silent"].fill_title(reading(value=72_180.0))
    assert title == "No sensor has ticked for 20:03:00: the daemon is not running"


@pytest.mark.parametrize(
    ("rule", "fields", "message"),
    [
        ("queue_agee", {"threshold": 5}, r"alerts\.rules: .*Did you mean queue_age\?"),
        ("queue_age", {"treshold": 5}, r"'queue_age' .*treshold"),
        ("mine", {"reads": "queue.opn", "threshold": 1}, r"Did you mean queue\.open\?"),
        ("queue_age", {"resolve_at": 99}, "The rule 'queue_age' .*: resolve_at 99"),
        ("queue_age", {"title": "{value:zz}"}, "title"),
        ("queue_age", {"title": "{value.size}"}, "title"),
    ],
)
def test_an_error_in_the_settings_file_names_rule_and_field(rule, fields, message):
    with pytest.raises(ConfigurationError, match=message):
        LoopSettings.parse({"alerts": {"rules": {rule: fields}}})

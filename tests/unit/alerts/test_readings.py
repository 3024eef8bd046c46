"""Readings of gates, models, budgets and ticks, and of quiet days and replaced models."""

from datetime import UTC, date, datetime, timedelta

import pytest

from rlhf_pipeline.alerts import readings
from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import GateCheck, GateDecision

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
TODAY = NOON.date()


def point(name, value, low=None, high=None, day=TODAY, **labels):
    return MetricPoint(
        day=day, name=name, labels=labels, value=value, low=low, high=high, n=9, measured_at=NOON
    )


def figure(name, value, days_ago=0, **labels):
    at = NOON - timedelta(days=days_ago)
    return Reading(name, at, value, labels, of_day=at.date())


def test_a_refusal_of_the_gate_names_what_failed():
    checks = (
        GateCheck(name="win_rate", passed=False, reason="win rate 0.48 is below 0.5"),
        GateCheck(name="length", passed=True, reason="fine"),
    )
    refused = GateDecision(
        candidate="demo.policy@2", champion="demo.policy@1", promoted=False, checks=checks
    )
    (reading,) = readings.read_gate(refused)
    assert (reading.value, reading.detail) == (1.0, "win rate 0.48 is below 0.5")
    assert reading.link == "/evolution#policy-2"
    assert readings.read_gate(None) == []


def test_the_accuracy_gap_takes_the_best_that_the_intervals_allow():
    points = [
        point("model.accuracy", 0.6, 0.55, 0.65, reward_model="rm@1"),
        point("model.accuracy_ceiling", 0.8, 0.75, 0.85, reward_model="rm@1"),
        point("model.accuracy", 0.5, reward_model="rm@2"),
    ]
    (gap,) = readings.read_accuracy_gap(points)
    assert gap.labels == {"reward_model": "rm@1"}
    assert abs(gap.value - 0.2) < 1e-9
    assert abs(gap.low - 0.1) < 1e-9


def test_todays_spending_counts_against_the_budget():
    points = [
        point("spend.amount", 3.0, lane="a"),
        point("spend.amount", 5.0, lane="b"),
        point("spend.amount", 9.0, day=date(2026, 1, 9), lane="a"),
    ]
    assert readings.read_spending(points, 10.0, NOON).value == 0.8
    assert readings.read_spending(points, None, NOON).value is None


def test_silence_is_counted_from_the_last_tick():
    tick = point("daemon.silent_seconds", 0.0)
    later = NOON + timedelta(minutes=10)

    def silence(last, now=later):
        return [r.value for r in readings.read_silence(last, now, expected_s=60)]

    assert silence(tick) == [600.0]
    assert silence(tick, NOON + timedelta(seconds=170)) == [0.0]
    assert silence(None) == []
    assert silence(point("daemon.silent_seconds", None)) == [None]


@pytest.mark.parametrize(
    ("voted_hours_ago", "oldest_hours", "idle_hours"),
    [(30.0, 0.0, 0.0), (30.0, 90.0, 30.0), (240.0, 0.02, 0.02), (None, 25.0, 25.0)],
    ids=["nothing waits", "old comparison", "new comparison", "no vote yet"],
)
def test_idle_hours_begin_with_a_waiting_comparison(voted_hours_ago, oldest_hours, idle_hours):
    given = [figure("queue.oldest_hours", oldest_hours)]
    given += [] if voted_hours_ago is None else [figure("votes.idle_hours", voted_hours_ago)]
    waiting, idle = readings.limit_idle_hours(given)
    assert (waiting, idle.name, idle.value) == (given[0], "votes.idle_hours", idle_hours)


def test_idle_hours_of_a_day_without_a_queue_stay():
    idle = figure("votes.idle_hours", 30.0)
    assert readings.limit_idle_hours([idle]) == [idle]


@pytest.mark.parametrize("name", ["runs.failed", "votes.cast", "web.requests"])
def test_a_day_without_a_count_counts_as_zero(name):
    counted = figure(name, 5.0, days_ago=2, of="weekly")
    filled = readings.fill_counts([counted, figure("queue.open", 3.0, days_ago=2)], NOON)
    assert [(r.name, r.day.day, r.value) for r in filled[2:]] == [(name, 9, 0.0), (name, 10, 0.0)]


@pytest.mark.parametrize("label", ["policy", "reward_model"])
def test_a_replaced_model_has_no_reading(label):
    name = "policy.reward" if label == "policy" else "model.ece"
    old, new = figure(name, 0.2, 1, **{label: "m@1"}), figure(name, 0.2, **{label: "m@2"})
    other = figure("queue.open", 1.0, days_ago=9)
    assert readings.drop_replaced([old, new, other]) == [new, other]

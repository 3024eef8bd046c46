"""Facts that rules read of gates, models, budgets and ticks."""

from datetime import UTC, date, datetime, timedelta

from rlhf_pipeline.alerts import facts
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import (
    GateCheck,
    GateDecision,
)

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
TODAY = NOON.date()


def point(name, value, low=None, high=None, day=TODAY, **labels):
    return MetricPoint(
        day=day,
        name=name,
        labels=labels,
        value=value,
        low=low,
        high=high,
        n=9,
        measured_at=NOON,
    )


def test_a_refusal_of_the_gate_names_what_failed():
    checks = (
        GateCheck(name="win_rate", passed=False, reason="win rate 0.48 is below 0.5"),
        GateCheck(name="length", passed=True, reason="fine"),
    )
    refused = GateDecision(
        candidate="demo.policy@2", champion="demo.policy@1", promoted=False, checks=checks
    )
    (reading,) = facts.read_gate(refused)
    assert (reading.value, reading.detail) == (1.0, "win rate 0.48 is below 0.5")
    assert reading.link == "/evolution#policy-2"
    assert facts.read_gate(None) == []


def test_the_accuracy_gap_takes_the_best_that_the_intervals_allow():
    points = [
        point("model.accuracy", 0.6, 0.55, 0.65, reward_model="rm@1"),
        point("model.accuracy_ceiling", 0.8, 0.75, 0.85, reward_model="rm@1"),
        point("model.accuracy", 0.5, reward_model="rm@2"),
    ]
    (gap,) = facts.read_accuracy_gap(points)
    assert gap.labels == {"reward_model": "rm@1"}
    assert abs(gap.value - 0.2) < 1e-9
    assert abs(gap.low - 0.1) < 1e-9


def test_todays_spending_counts_against_the_budget():
    points = [
        point("spend.amount", 3.0, lane="a"),
        point("spend.amount", 5.0, lane="b"),
        point("spend.amount", 9.0, day=date(2026, 1, 9), lane="a"),
    ]
    (share,) = facts.read_budget(points, 10.0, NOON)
    assert share.value == 0.8
    assert facts.read_budget(points, None, NOON) == []


def test_silence_is_counted_from_the_last_tick():
    tick = point("daemon.silent_seconds", 0.0)
    later = NOON + timedelta(minutes=10)

    def silence(last, now=later):
        return [r.value for r in facts.read_silence(last, now, expected_s=60)]

    assert silence(tick) == [600.0]
    assert silence(tick, NOON + timedelta(seconds=170)) == [0.0]
    assert silence(None) == []
    assert silence(point("daemon.silent_seconds", None)) == [None]

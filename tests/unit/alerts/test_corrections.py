"""Readings that are corrected: quiet days, replaced models, stopped sensors."""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.alerts import corrections
from rlhf_pipeline.alerts.findings import Reading

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


def figure(name, value, days_ago=0, **labels):
    at = NOON - timedelta(days=days_ago)
    return Reading(name, at, value, labels, of_day=at.date())


def test_nobody_is_idle_while_no_comparison_waits():
    idle = figure("votes.idle_hours", 30.0)

    def correct(waiting):
        return corrections.clear_idle_hours([figure("queue.open", waiting), idle])[1]

    assert (correct(0.0).value, correct(4.0).value) == (0.0, 30.0)
    assert correct(0.0).detail == "no comparison waits for a vote"


def test_a_day_without_failed_runs_counts_as_zero():
    failed = figure("runs.failed", 5.0, days_ago=2, job="weekly")
    filled = corrections.fill_counts([failed, figure("queue.open", 3.0, days_ago=2)], NOON)
    assert [(r.name, r.day.day, r.value) for r in filled[2:]] == [
        ("runs.failed", 9, 0.0),
        ("runs.failed", 10, 0.0),
    ]


@pytest.mark.parametrize("label", ["policy", "reward_model"])
def test_a_replaced_model_is_gone(label):
    name = "policy.reward" if label == "policy" else "model.ece"
    old, new = figure(name, 0.2, 1, **{label: "m@1"}), figure(name, 0.2, **{label: "m@2"})
    marked = corrections.mark_replaced([old, new, figure("queue.open", 1.0, days_ago=9)])
    assert [reading.gone for reading in marked] == ["replaced by m@2", "", ""]


def test_a_stopped_sensor_is_gone():
    lags = [figure("sensors.lag_seconds", 950.0, sensor=name) for name in ("votes", "learning")]
    marked = corrections.mark_stopped(lags, {"votes"})
    assert [bool(reading.gone) for reading in marked] == [False, True]

"""Readings that are corrected: quiet days, replaced models, stopped sensors."""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.alerts import corrections
from rlhf_pipeline.alerts.findings import Reading

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)


def figure(name, value, days_ago=0, **labels):
    at = NOON - timedelta(days=days_ago)
    return Reading(name, at, value, labels, of_day=at.date())


@pytest.mark.parametrize(
    ("voted_hours_ago", "oldest_hours", "idle_hours"),
    [(30.0, 0.0, 0.0), (30.0, 90.0, 30.0), (240.0, 0.02, 0.02), (None, 25.0, 25.0)],
    ids=["nothing waits", "old comparison", "new comparison", "no vote yet"],
)
def test_idle_hours_begin_with_a_waiting_comparison(voted_hours_ago, oldest_hours, idle_hours):
    given = [figure("queue.oldest_hours", oldest_hours)]
    given += [] if voted_hours_ago is None else [figure("votes.idle_hours", voted_hours_ago)]
    waiting, idle = corrections.limit_idle_hours(given)
    assert (waiting, idle.name, idle.value) == (given[0], "votes.idle_hours", idle_hours)
    assert idle.detail == ("" if oldest_hours else "no comparison waits for a vote")


@pytest.mark.parametrize(("sensor", "longest_s"), [("votes", 180), ("learning", 10_800)])
def test_a_sensor_lags_only_after_three_of_its_intervals(sensor, longest_s):
    def correct(lag):
        given = [figure("sensors.lag_seconds", lag, sensor=sensor)]
        (read,) = corrections.clear_short_lags(given, sensor_seconds=60, slow_sensor_seconds=3600)
        return read.value

    assert (correct(longest_s), correct(longest_s + 1)) == (0.0, longest_s + 1)


@pytest.mark.parametrize("name", ["runs.failed", "votes.cast", "web.requests"])
def test_a_day_without_a_count_counts_as_zero(name):
    counted = figure(name, 5.0, days_ago=2, of="weekly")
    filled = corrections.fill_counts([counted, figure("queue.open", 3.0, days_ago=2)], NOON)
    assert [(r.name, r.day.day, r.value) for r in filled[2:]] == [(name, 9, 0.0), (name, 10, 0.0)]


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

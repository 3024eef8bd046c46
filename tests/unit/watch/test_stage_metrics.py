"""Figures of stages become metric points: gaps stay gaps, the worst verdict counts."""

from datetime import UTC, date, datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.core.metric_catalogue import let_silence_grow
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.watch.drift.policy import PolicyDay, PromptMean
from rlhf_pipeline.watch.metrics.stages import agreement_points, policy_points, verdict_points

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_worst_verdict_counts_and_insufficient_has_no_point():
    rows = [("errors", "stable"), ("errors", "drift"), ("errors", "insufficient")]
    rows += [("policy", "insufficient"), ("overall", "warning")]
    report = pd.DataFrame(rows, columns=["space", "verdict"]).assign(day="2026-01-04", n_current=40)
    points = {point.labels["space"]: point for point in verdict_points(report, NOON)}
    assert {space: point.value for space, point in points.items()} == {
        "errors": 2,
        "policy": None,
        "overall": 1,
    }
    assert (points["errors"].day, points["errors"].n) == (date(2026, 1, 4), 40)


def test_unmeasured_figure_has_no_point():
    assert agreement_points(None, "2026-01-04", NOON) == []
    none = PromptMean(n=40, mean=0.0, variance=0.0)
    length = PromptMean(n=40, mean=80.0, variance=900.0)
    day = PolicyDay(day="2026-01-04", policy="p@1", n_completions=80, refused=none, length=length)
    refusals, lengths = policy_points([day], NOON)
    assert (refusals.name, lengths.name) == ("policy.refusals", "policy.length")
    assert refusals.value == refusals.low == 0 < refusals.high < 0.1
    assert lengths.low < lengths.value < lengths.high


def test_the_silence_of_a_daemon_grows_until_its_next_tick():
    points = [
        MetricPoint(day=NOON.date(), name=name, value=value, measured_at=NOON)
        for name, value in [
            ("daemon.silent_seconds", 0.0),
            ("daemon.silent_seconds", None),  # ended on purpose
            ("queue.open", 0.0),
        ]
    ]
    later = let_silence_grow(points, NOON + timedelta(minutes=10))
    assert [point.value for point in later] == [600.0, None, 0.0]


@pytest.mark.parametrize(
    ("tick", "value", "lag"), [(0, 0.0, 612.0), (10, 0.0, 12.0), (0, None, 12.0)]
)
def test_the_lag_of_sensors_grows_with_the_silence(tick: int, value: float | None, lag: float):
    last = MetricPoint(
        day=NOON.date(),
        name="daemon.silent_seconds",
        value=value,
        measured_at=NOON + timedelta(minutes=tick),
    )
    point = MetricPoint(day=NOON.date(), name="sensors.lag_seconds", value=12.0, measured_at=NOON)
    assert let_silence_grow([last, point], NOON + timedelta(minutes=10))[1].value == lag

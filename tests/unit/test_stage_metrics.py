"""Figures of stages become metric points: gaps stay gaps, the worst verdict counts."""

from datetime import UTC, date, datetime

import pandas as pd

from rlhf_pipeline.metrics.stages import agreement_points, policy_points, verdict_points
from rlhf_pipeline.records import PolicyDay, PromptMean

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_the_worst_verdict_of_a_space_counts_and_insufficient_is_no_number():
    rows = [("errors", "stable"), ("errors", "drift"), ("errors", "insufficient")]
    rows += [("policy", "insufficient"), ("overall", "warning")]
    report = pd.DataFrame(rows, columns=["space", "verdict"]).assign(day="2026-01-04", n_current=40)
    found = {point.labels["space"]: point for point in verdict_points(report, NOON)}
    assert {space: point.value for space, point in found.items()} == {
        "errors": 2,
        "policy": None,
        "overall": 1,
    }
    assert (found["errors"].day, found["errors"].n) == (date(2026, 1, 4), 40)


def test_what_was_not_measured_has_no_point():
    assert agreement_points(None, "2026-01-04", NOON) == []
    none = PromptMean(n=40, mean=0.0, variance=0.0)
    length = PromptMean(n=40, mean=80.0, variance=900.0)
    day = PolicyDay(day="2026-01-04", policy="p@1", n_completions=80, refused=none, length=length)
    refusals, lengths = policy_points([day], NOON)
    assert (refusals.name, lengths.name) == ("policy.refusals", "policy.length")
    assert refusals.value == refusals.low == 0 < refusals.high < 0.1
    assert lengths.low < lengths.value < lengths.high

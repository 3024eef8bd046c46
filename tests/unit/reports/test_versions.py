"""The chart of reward-model versions draws the newest run alone."""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.versions import chart_versions

NOON = datetime(2026, 1, 6, 12, tzinfo=UTC)


def points(*versions: int, at: datetime = NOON, accuracy: float = 0.7) -> list[MetricPoint]:
    ceiling = {"versions.accuracy_ceiling": 0.85}
    values = {"versions.accuracy": accuracy, **ceiling, "versions.ece": 0.04}
    return [
        MetricPoint.of_interval(
            at.date(),
            name,
            Interval(
                value=value,
                low=value - 0.02,
                high=value + 0.02,
                n=900 if "ceiling" in name else 120,  # votes beside comparisons
            ),
            at,
            {"reward_model": f"demo.reward_model@{version}"},
        )
        for version in versions
        for name, value in values.items()
    ]


def test_versions_of_one_run_are_side_by_side() -> None:
    earlier = points(1, 9, at=NOON - timedelta(days=1), accuracy=0.6)
    chart = chart_versions([*earlier, *points(10, 9)])
    accuracy, ece = (panel for panel in chart.panels if panel)
    ceiling, drawn = accuracy.series
    assert (drawn.x, drawn.y, drawn.low, drawn.n) == (
        *((0, 1), (0.7, 0.7), pytest.approx((0.68, 0.68)), (120, 120)),
    )
    assert ceiling.y == (0.85, 0.85)
    for panel in (accuracy, ece):  # pages, tables and CSV take the words for an x from its ticks
        assert {tick.value: tick.label for tick in panel.x.ticks} == {0: "@9", 1: "@10"}
    assert len({item.role for item in chart.legend}) == len(chart.legend) == 3
    assert "120 comparisons" in chart.notes[0]
    assert draw_png(chart).startswith(b"\x89PNG")

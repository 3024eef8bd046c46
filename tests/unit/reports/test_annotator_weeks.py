"""Charts of one annotator by week: points with intervals, gaps, and weeks that are withheld."""

from datetime import date
from typing import Any

from rlhf_pipeline.reports.annotator_weeks import FIGURES, chart_annotator_weeks
from rlhf_pipeline.reports.chart import day_value
from rlhf_pipeline.reports.draw import draw_svg

MONDAY, LAST = date(2026, 1, 5), date(2026, 1, 25)


def week(day: int, n: int, seconds: float | None = 8.0) -> dict[str, Any]:
    ends = {
        name: seconds for name in ("median_seconds", "median_seconds_low", "median_seconds_high")
    }
    return {
        "annotator_id": "ann",
        "first_day": f"2026-01-{day:02}",
        "last_day": f"2026-01-{day + 6:02}",
        "n_timed": n,
        **ends,
        "n_read": 0,
        "too_fast": None,
        "too_fast_low": None,
        "too_fast_high": None,
    }


def test_a_week_is_a_point_with_its_interval_and_count() -> None:
    weeks = [week(5, 30), week(19, 12, 9.5)]
    chart = chart_annotator_weeks(FIGURES["speed"], weeks, MONDAY, LAST, least=5)
    (panel,) = chart.panels  # nothing is known of reading speed
    assert panel is not None
    (series,) = panel.series
    assert series.x == (day_value(MONDAY), day_value(date(2026, 1, 19)))
    assert (series.y, series.n) == ((8.0, 9.5), (30, 12))
    assert series.evidence[0] == "2026-01-05 to 2026-01-11"
    assert series.links[0] == "/votes?annotator_id=ann&since=2026-01-05&until=2026-01-11"
    assert chart.notes == ("95% intervals",)
    assert "<svg" in draw_svg(chart)


def test_chart_names_withheld_small_weeks() -> None:
    # a median of five votes has no interval
    weeks = [week(5, 30), week(12, 4), week(19, 5, None)]
    chart = chart_annotator_weeks(FIGURES["speed"], weeks, MONDAY, LAST, least=5)
    (panel,) = chart.panels
    assert panel is not None
    assert panel.series[0].n == (30,)
    assert "withheld" in chart.notes[1]
    empty = chart_annotator_weeks(FIGURES["speed"], weeks[1:], MONDAY, LAST, least=5)
    assert empty.panels == ()
    assert empty.notes == ("No week has 5 or more votes with a recorded duration.",)

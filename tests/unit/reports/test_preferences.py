"""Charts of preferences: panels by day and by group, gaps, groups that are withheld."""

from datetime import date, timedelta

from rlhf_pipeline.core.records import RatioSums
from rlhf_pipeline.reports.day_marks import mark_taste_changes
from rlhf_pipeline.reports.draw import draw_svg
from rlhf_pipeline.reports.preferences import chart_by_day, chart_by_group, figures

FIGURES = figures(["helpful"])
DAY = date(2026, 1, 2)


def sums(n: int, total: int) -> RatioSums:
    """Of `n` comparisons with a vote each."""
    return RatioSums(n, n, total, n, total, total)


def test_a_project_with_one_vote_has_a_point_with_a_wide_interval() -> None:
    votes = {"undecided": {DAY.isoformat(): sums(1, 1)}}
    chart = chart_by_day(FIGURES["ties"], votes, DAY, DAY)
    (panel,) = chart.panels
    assert panel is not None
    (series,) = panel.series
    assert (series.y, series.n) == ((1.0,), (1,))
    assert series.low[0] < 0.3
    assert "<svg" in draw_svg(chart)


def test_each_point_after_a_gap_links_to_its_own_day() -> None:
    days = [(DAY + timedelta(days=n)).isoformat() for n in (0, 2, 3)]
    votes = {"undecided": {day: sums(30, 10) for day in days}}
    last = DAY + timedelta(days=3)
    (panel,) = chart_by_day(FIGURES["ties"], votes, DAY, last, link=str.upper).panels
    assert panel is not None
    assert [series.links for series in panel.series] == [(days[0],), (days[1], days[2])]
    (bare,) = chart_by_day(FIGURES["ties"], votes, DAY, last).panels
    assert bare is not None
    assert [series.links for series in bare.series] == [(), ()]


def test_largest_group_is_first_and_small_ones_have_no_dots() -> None:
    votes = {
        "longer": {"few": sums(30, 20), "many": sums(90, 50), "tiny": sums(2, 1)},
        "length_gap": {"many": sums(90, 9)},
        "dimension.helpful": {"many": sums(50, 45)},
    }
    small = {"tiny": "2 comparisons: too few"}
    chart = chart_by_group(FIGURES["preferred"], "source", votes, small)
    length, gap, rated = (panel for panel in chart.panels if panel)
    assert [tick.label for tick in length.y.ticks] == ["many", "few", "tiny"]
    assert length.series[0].y == (0.0, 1.0)
    assert [mark.label for mark in length.marks] == ["", "2 comparisons: too few"]
    assert [series.name for series in (*gap.series, *rated.series)] == [
        "mean gap; below 0 the preferred one is shorter",
        "helpful",
    ]
    assert "too few" in draw_svg(chart)


def test_changes_are_marked_on_all_panels_and_panels_differ_in_colour() -> None:
    day, later = (DAY.isoformat(), (DAY + timedelta(days=1)).isoformat())
    votes = {
        "longer": {day: sums(30, 20), later: sums(30, 25)},
        "length_gap": {day: sums(30, 9)},
        "dimension.helpful": {day: sums(30, 9)},
    }
    marks = mark_taste_changes({DAY: "taste changed", DAY - timedelta(days=9): "long ago"})
    chart = chart_by_day(FIGURES["preferred"], votes, DAY, DAY + timedelta(days=1), marks=marks)
    panels = [panel for panel in chart.panels if panel]
    lines = [[mark for mark in panel.marks if mark.name == "taste changed"] for panel in panels]
    assert [[mark.label for mark in marks] for marks in lines] == [["taste changed"], [""], [""]]
    assert [panel.series[0].role for panel in panels] == ["group1", "group2", "group3"]

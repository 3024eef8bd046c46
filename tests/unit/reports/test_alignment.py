"""The chart of alignment holds the metric points as they are: gaps, ceiling and model changes."""

from datetime import UTC, date, datetime, timedelta

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.reports.alignment import NO_POINTS, chart_accuracy, chart_alignment
from rlhf_pipeline.reports.chart import day_value
from rlhf_pipeline.reports.draw import draw_png, draw_svg

FIRST = date(2026, 1, 1)
NOW = datetime(2026, 2, 1, tzinfo=UTC)


def point(
    n_day: int, name: str, value: float | None, model: str = "m@1", **labels: str
) -> MetricPoint:
    around = {} if value is None else {"low": value - 0.05, "high": value + 0.05}
    return MetricPoint(
        day=FIRST + timedelta(days=n_day),
        name=name,
        labels=labels or {"reward_model": model},
        n=100 + n_day,
        value=value,
        measured_at=NOW,
        **around,
    )


def test_missing_day_is_a_gap_and_points_keep_interval_and_n():
    points = [point(day, "model.accuracy", 0.7 + day / 100) for day in (0, 1, 4)]
    points += [point(2, "model.accuracy", None), point(1, "model.accuracy_ceiling", 0.8)]
    chart = chart_alignment(points, FIRST, FIRST + timedelta(days=5))
    (panel,) = chart.panels
    assert panel is not None
    ceiling, *runs = panel.series
    assert [run.x for run in runs] == [
        (day_value(FIRST), day_value(FIRST) + 1),
        (day_value(FIRST) + 4,),
    ]
    assert {run.name for run in runs} == {"accuracy"}
    assert (runs[1].y, runs[1].n) == ((0.74,), (104,))
    assert (runs[1].low, runs[1].high) == ((0.74 - 0.05,), (0.74 + 0.05,))
    assert (ceiling.role, ceiling.y) == ("ceiling", (0.8,))
    assert chart.notes[-1].startswith("noise ceiling unknown on 2 days")


def test_lines_mark_changes_of_taste_and_model():
    points = [point(day, "model.accuracy", 0.7, f"m@{1 + (day > 2)}") for day in range(5)]
    points += [point(day, "model.ece", 0.1) for day in range(5)]
    changed = {FIRST + timedelta(days=2): "taste changed"}
    chart = chart_alignment(points, FIRST, FIRST + timedelta(days=4), taste_changes=changed)
    for panel in chart.panels:
        assert panel is not None
        places = [mark.x for mark in panel.marks]
        assert places == [(day_value(FIRST) + 2,) * 2, (day_value(FIRST) + 3,) * 2]
    assert chart.panels[0] is not None
    assert [mark.label for mark in chart.panels[0].marks] == ["taste changed", "reward model @2"]


def test_verdicts_have_lanes_with_the_overall_one_on_top():
    points = [
        point(0, "drift.verdict", value, space=space)
        for space, value in (("errors", 2), ("overall", 1), ("choices", 0), ("scores", None))
    ]
    chart = chart_alignment(points, FIRST, FIRST)
    (panel,) = chart.panels
    assert panel is not None
    assert [tick.label for tick in panel.y.ticks] == ["overall", "choices", "errors"]
    assert {series.name: series.y for series in panel.series} == {
        "stable": (1.0,),
        "warning": (0.0,),
        "drift": (2.0,),
    }


def test_empty_chart_says_so_and_draws_as_svg_and_png():
    empty = chart_alignment([point(0, "model.accuracy", None)], FIRST, FIRST)
    assert (empty.panels, empty.notes) == ((), (NO_POINTS,))
    points = [
        *(point(day, "model.accuracy", 0.7) for day in (0, 2)),
        *(point(day, "model.accuracy_ceiling", 0.8) for day in (0, 1)),
        point(0, "model.calibration_slope", 1.2),
        point(0, "drift.verdict", 1, space="errors"),
    ]
    chart = chart_alignment(points, FIRST, FIRST + timedelta(days=2))
    assert "2026-01-03" in draw_svg(chart)
    assert draw_png(chart).startswith(b"\x89PNG")


def test_figures_and_verdicts_link_to_their_votes():
    points = [point(day, "model.accuracy", 0.7) for day in (0, 1)]
    points += [point(1, "model.ece", 0.1), point(1, "drift.verdict", 1, space="overall")]
    second, before = FIRST + timedelta(days=1), FIRST - timedelta(days=5)
    chart = chart_alignment(points, FIRST, second, "{} to {}".format, window_days=7)
    links = [series.links for panel in chart.panels if panel for series in panel.series]
    window = f"{before} to {second}"
    earlier = f"{before - timedelta(days=1)} to {FIRST}"
    assert links == [(earlier, window), (window,), (f"{second} to {second}",)]


def test_days_are_points_with_a_line_of_means():
    days = [point(day, "model.day_accuracy", value) for day, value in enumerate((0.8, 0.38))]
    mean = [point(day, "model.accuracy", 0.7) for day in (0, 1)]
    second = FIRST + timedelta(days=1)
    (panel,) = chart_accuracy(
        [*days, *mean], FIRST, second, window_days=7, link="{} to {}".format
    ).panels
    assert panel is not None
    line, dots = panel.series
    assert (line.name, line.low, dots.style, dots.y) == ("mean of 7 days", (), "dots", (0.8, 0.38))
    assert dots.links[1] == f"{second} to {second}"

"""Builds the charts of one annotator by week: speed, sides, known answers, agreement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import urlencode

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.feedback.votes.statistics import interval_columns
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    day_axis,
    day_value,
    percent_ticks,
    point_series,
    round_ticks,
)

NO_VOTES = "No votes of this annotator match. With days set, widen them."
Week = Mapping[str, Any]  # a row of ANNOTATORS_OVER_TIME


@dataclass(frozen=True)
class WeekPlot:
    """One panel: a measure of ANNOTATORS_OVER_TIME, and the column that counts its votes."""

    measure: str
    counted: str
    title: str
    label: str
    low: float | None = 0.0  # fixed ends of the axis; None: those of the data
    high: float | None = 1.0
    middle: float | None = None
    middle_name: str = ""
    is_share: bool = True


@dataclass(frozen=True)
class WeekFigure:
    """One chart, and what it lacks where it is empty."""

    title: str
    plots: tuple[WeekPlot, ...]
    lacks: str


FIGURES: dict[str, WeekFigure] = {
    "speed": WeekFigure(
        "Speed",
        (
            WeekPlot(
                "median_seconds", "n_timed", "Median seconds per vote", "seconds",
                high=None, is_share=False,
            ),
            WeekPlot("too_fast", "n_read", "Too fast to read both completions", "share of votes"),
        ),
        "votes with a recorded duration",
    ),
    "sides": WeekFigure(
        "Sides",
        (
            WeekPlot(
                "share_left", "n_sided", "Votes for the left side of the screen",
                "share of votes for a side", middle=0.5, middle_name="no preference",
            ),
        ),
        "votes whose displayed side is known",
    ),
    "gold": WeekFigure(
        "Known answers",
        (
            WeekPlot(
                "gold_accuracy", "n_gold", "First judgements that match the known answer",
                "share correct", middle=0.5, middle_name="chance",
            ),
        ),
        "votes on comparisons with a known answer",
    ),
    "agreement": WeekFigure(
        "Agreement",
        (
            WeekPlot(
                "agreement", "n_compared", "Agreement with other annotators of the same week",
                "share of their votes",
            ),
            WeekPlot(
                "self_consistency", "n_again", "Repeated judgements that equal the first",
                "share of repeats",
            ),
        ),
        "votes on comparisons that others judged in the same week, or judged again",
    ),
}  # fmt: skip


def chart_annotator_weeks(
    figure: WeekFigure,
    weeks: Sequence[Week],
    first: date,
    last: date,
    *,
    least: int,
    notes: Sequence[str] = (),
) -> Chart:
    """A point with its interval per week from `first` to `last`, at the first day of the week.
    Weeks with fewer than `least` votes of a kind are withheld, and a week without any is a gap.
    """
    x = day_axis(first, last, label="first day of the week (UTC)", step=7)
    panels = [
        _build_panel(plot, [week for week in weeks if _is_shown(plot, week, least)], x)
        for plot in figure.plots
    ]
    filled_panels = [panel for panel in panels if any(series.x for series in panel.series)]
    bare = {"x": x.model_copy(update={"ticks": ()})}  # the lowest panel has the days
    filled_panels[:-1] = [panel.model_copy(update=bare) for panel in filled_panels[:-1]]
    if filled_panels:
        more = ["95% intervals"]
    elif weeks:
        more = [f"No week has {least} or more {figure.lacks}."]
    else:
        more = [NO_VOTES]
    if filled_panels and any(
        week[plot.counted] > 0 and not _is_shown(plot, week, least)
        for plot in figure.plots
        for week in weeks
    ):
        more.append(f"weeks with too few such votes, fewer than {least} at least, are withheld")
    title = f"{figure.title}, by week"
    return Chart(
        kind="annotator-weeks",
        title=title,
        alt=f"{title}, from {first} to {last}" if filled_panels else title,
        panels=tuple(filled_panels),
        notes=(*more, *notes),
    )


def _is_shown(plot: WeekPlot, week: Week, least: int) -> bool:
    # the interval of a median needs six values
    return week[plot.counted] >= least and week[plot.measure] is not None


def _build_panel(plot: WeekPlot, weeks: Sequence[Week], x: Axis) -> Panel:
    intervals = [_interval(plot, week) for week in weeks]
    middle = () if plot.middle is None else ((plot.middle, plot.middle),)
    return Panel(
        title=plot.title,
        x=x,
        y=_axis(plot, intervals),
        height=150,
        series=(
            point_series(
                [day_value(date.fromisoformat(week["first_day"])) for week in weeks],
                intervals,
                role="now",
                name="this annotator",
                links=tuple(_link(week) for week in weeks),
                evidence=tuple(f"{week['first_day']} to {week['last_day']}" for week in weeks),
            ),
        ),
        marks=tuple(
            Mark(style="line", role="perfect", y=at, name=plot.middle_name) for at in middle
        ),
    )


def _interval(plot: WeekPlot, week: Week) -> Interval:
    value, low, high = (week[name] for name in interval_columns(plot.measure))
    return Interval(value=value, low=low, high=high, n=week[plot.counted])


def _link(week: Week) -> str:
    """The votes of the week."""
    query = {
        "annotator_id": week["annotator_id"],
        "since": week["first_day"],
        "until": week["last_day"],
    }
    return "/votes?" + urlencode(query)


def _axis(plot: WeekPlot, intervals: Sequence[Interval]) -> Axis:
    low = plot.low
    if low is None:
        least = min((i.low for i in intervals), default=0.0)
        low = min(0.0, math.floor(least * 10) / 10)
    high = plot.high
    if high is None:
        high = max((i.high for i in intervals), default=1.0) * 1.05 or 1.0
    if plot.is_share:
        ticks = percent_ticks(n / 4 for n in range(5))
        return Axis(low=low, high=high, label=plot.label, unit="share", ticks=ticks)
    unit = "s" if plot.label == "seconds" else ""
    return Axis(low=low, high=high, label=plot.label, unit=unit, ticks=round_ticks(low, high))

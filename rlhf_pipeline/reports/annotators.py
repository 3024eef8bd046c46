"""Builds charts of annotators: their reliabilities, and their figures over time."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Series,
    Tick,
    round_ticks,
    to_numbers,
)
from rlhf_pipeline.reports.words import distinct_labels
from rlhf_pipeline.votes.statistics import interval_columns

MAX_RELIABILITIES = 40
MAX_OVER_TIME = 12  # annotators in the small multiples, one row each


def chart_annotators(figures: pd.DataFrame) -> Chart:
    """Each annotator's reliability with its interval, least reliable first. Above MAX_RELIABILITIES
    annotators, only the least reliable are drawn.
    """
    drawn, n = figures.head(MAX_RELIABILITIES), len(figures)
    names = distinct_labels(drawn["annotator_id"].tolist())
    omitted = f", {n - len(drawn):,} more reliable ones left out" if n > len(drawn) else ""
    rows = range(len(drawn))
    labels = zip(rows, names, drawn["n_votes"], strict=True)
    nobody = Mark(style="word", role="small", label="no annotator has judged anything yet")
    coin = Mark(style="line", role="perfect", x=(0.5, 0.5), name="a coin")
    return Chart(
        kind="reliabilities",
        title=f"Reliability of {n:,} annotator{'' if n == 1 else 's'}{omitted}",
        alt="Each annotator's chance to take the better side, with its interval",
        width=800,
        panels=(
            Panel(
                x=Axis(
                    low=0,
                    high=1.02,
                    label="chance to take the better side of a typical comparison",
                    unit="probability",
                    ticks=round_ticks(0, 1, 5),
                ),
                y=Axis(
                    low=max(len(drawn), 1) - 0.5,
                    high=-0.5,
                    label="annotator",
                    ticks=tuple(Tick(value=i, label=f"{name}  n={k:,}") for i, name, k in labels),
                    has_grid=False,
                ),
                height=40 + 24 * len(drawn),
                marks=(coin,) if len(drawn) else (coin, nobody),
                series=(_interval_series(drawn, "reliability", rows, along="x"),),
            ),
        ),
    )


# Figure, its label, its value by chance or for an ideal annotator, and the ends of its axis.
Column = tuple[str, str, float | None, tuple[float, float | None]]
OVER_TIME: tuple[Column, ...] = (
    ("agreement", "agreement with the others", None, (0.0, 1.0)),
    ("gold_accuracy", "right on gold", 0.5, (0.0, 1.0)),
    ("median_seconds", "median seconds", None, (0.0, None)),
    ("share_left", "share of left", 0.5, (0.0, 1.0)),
    ("self_consistency", "same again", 0.5, (0.0, 1.0)),
)


def chart_annotators_over_time(
    figures: pd.DataFrame, together: pd.DataFrame, first: Sequence[str] = ()
) -> Chart:
    """Small multiples of ANNOTATORS_OVER_TIME: a row per annotator, a column per figure, points
    with intervals by window; on top the alpha of all annotators, AGREEMENT_OVER_TIME.

    Above MAX_OVER_TIME annotators, those in `first` are drawn in its order, then those with the
    most votes. Windows without a figure are gaps.
    """
    votes = figures.groupby("annotator_id")["n_votes"].sum().sort_index()
    ranked = votes.sort_values(ascending=False, kind="stable").index
    drawn = [
        *(name for name in first if name in ranked),
        *(name for name in ranked if name not in set(first)),
    ][:MAX_OVER_TIME]
    days = sorted(together["first_day"])
    calendar = pd.date_range(days[0], days[-1]).strftime("%Y-%m-%d") if days else []
    place = {day: i for i, day in enumerate(calendar)}
    shown = [days[i] for i in sorted({0, len(days) - 1})] if days else []
    axis = Axis(
        low=-3,
        high=max(place.values(), default=0) + 3,
        label="first day of the window",
        unit="day",
        has_grid=False,
    )
    last_axis = axis.model_copy(
        update={"ticks": tuple(Tick(value=place[day], label=day[2:]) for day in shown)}
    )
    n, n_windows = len(votes), len(days)
    more = f", {n - len(drawn):,} more left out" if n > len(drawn) else ""
    alpha = ("alpha", "alpha of all", 0.0, (-1.0, 1.0))
    # alpha has its own row
    panels = [_measure_panel(together, alpha, place, axis), *[None] * (len(OVER_TIME) - 1)]
    for name, words in zip(drawn, distinct_labels(drawn), strict=True):
        own = figures[figures["annotator_id"] == name].sort_values("first_day")
        across = last_axis if name == drawn[-1] else axis
        for i, column in enumerate(OVER_TIME):
            title = f"{words}  n={votes[name]:,}" if i == 0 else ""
            panels.append(_measure_panel(own, column, place, across, title=title))
    return Chart(
        kind="annotators-over-time",
        title=f"{n:,} annotator{'' if n == 1 else 's'} over {n_windows:,} "
        f"window{'' if n_windows == 1 else 's'}{more}",
        alt="Figures of each annotator by window, with intervals",
        columns=len(OVER_TIME),
        width=1250,
        panels=tuple(panels),
    )


def _measure_panel(
    rows: pd.DataFrame,
    column: Column,
    place: Mapping[str, int],
    x: Axis,
    title: str = "",
) -> Panel:
    measure, words, usual, (low, high) = column
    known = rows[rows[measure].notna()]
    end = float(known[f"{measure}_high"].max() if len(known) else 1) if high is None else high
    marks = [] if usual is None else [Mark(style="line", role="perfect", y=(usual, usual))]
    if known.empty:
        marks = [Mark(style="word", role="small", label="not measured")]
    return Panel(
        title=title,
        notes=(words,),
        x=x,
        y=Axis(low=low, high=end, label=words, ticks=round_ticks(low, end, 2)),
        height=64,
        marks=tuple(marks),
        series=(_interval_series(known, measure, [place[day] for day in known["first_day"]]),),
    )


def _interval_series(
    rows: pd.DataFrame, measure: str, places: Sequence[float], along: Literal["x", "y"] = "y"
) -> Series:
    value, low, high = (to_numbers(rows[name]) for name in interval_columns(measure))
    at = to_numbers(places)
    x, y = (at, value) if along == "y" else (value, at)
    return Series(style="dots", role="now", x=x, y=y, low=low, high=high, along=along)

"""Builds the chart of annotators' reliabilities."""

from collections.abc import Sequence

import pandas as pd

from rlhf_pipeline.feedback.votes.statistics import interval_columns
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

MAX_RELIABILITIES = 40


def chart_annotators(figures: pd.DataFrame) -> Chart:
    """Each annotator's reliability with its interval, least reliable first. Above MAX_RELIABILITIES
    annotators, only the least reliable are drawn.
    """
    least_reliable, n = figures.head(MAX_RELIABILITIES), len(figures)
    names = distinct_labels(least_reliable["annotator_id"].tolist())
    omitted = (
        f", {n - len(least_reliable):,} more reliable ones left out"
        if n > len(least_reliable)
        else ""
    )
    rows = range(len(least_reliable))
    labels = zip(rows, names, least_reliable["n_votes"], strict=True)
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
                    low=max(len(least_reliable), 1) - 0.5,
                    high=-0.5,
                    label="annotator",
                    ticks=tuple(Tick(value=i, label=f"{name}  n={k:,}") for i, name, k in labels),
                    has_grid=False,
                ),
                height=40 + 24 * len(least_reliable),
                marks=(coin,) if len(least_reliable) else (coin, nobody),
                series=(_interval_series(least_reliable, "reliability", rows),),
            ),
        ),
    )


def _interval_series(rows: pd.DataFrame, measure: str, places: Sequence[float]) -> Series:
    x, low, high = (to_numbers(rows[name]) for name in interval_columns(measure))
    return Series(
        style="dots", role="now", x=x, y=to_numbers(places), low=low, high=high, along="x"
    )

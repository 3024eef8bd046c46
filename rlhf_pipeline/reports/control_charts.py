"""Builds the picture of control charts: error rate with its limits, and its moving average."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Series,
    Tick,
    percent_ticks,
    pick_spaced,
    to_numbers,
)
from rlhf_pipeline.watch.drift.spc import CHARTS, ControlCharts

MAX_SUBGROUPS = 60  # drawn, the latest: more would hide each other
MAX_LABELS = 12


def chart_control(charts: ControlCharts, day: str | None = None) -> Chart:
    """The p-chart with the points that break a Western Electric rule, and below it the EWMA chart.
    `day` is shaded.
    """
    points = charts.points.iloc[-MAX_SUBGROUPS:].reset_index(drop=True)
    days, n = points["day"].astype(str).tolist(), len(points)
    x = Axis(
        low=-0.5,
        high=n - 0.5,
        label="day of the subgroup's last vote",
        unit="subgroup",
        has_grid=False,
    )
    today = [i for i, at in enumerate(days) if at == day]
    shade = (
        [Mark(style="band", role="today", x=(today[0] - 0.5, today[-1] + 0.5), name="this day")]
        if today
        else []
    )
    subgroups = points[~points["is_baseline"]]
    centre = pd.Series(charts.baseline.centre, points.index)
    high = float(np.ceil(max(points["high"].max(), points["rate"].max()) * 10 - 1e-9) / 10)
    limit = subgroups["average_limit"]
    most = float(np.ceil(max(limit.max(), subgroups["average"].abs().max())))
    ticks = tuple(
        Tick(value=i, label=days[i][5:], strong=days[i] == day)
        for i in pick_spaced(range(n), -(-n // MAX_LABELS))
    )
    return Chart(
        kind="control-charts",
        title=f"Control charts of the error rate, {days[0]} to {days[-1]}",
        alt="Error rate of each subgroup with its limits, and the moving average of the judged "
        "subgroups with its limits; the table lists the marked ones",
        panels=(
            Panel(
                x=x,
                y=Axis(
                    low=0,
                    high=high,
                    label="error rate of the subgroup",
                    unit="share",
                    ticks=percent_ticks(np.arange(0, high + 0.01, 0.1 if high <= 0.5 else 0.2)),
                ),
                height=170,
                marks=tuple(shade),
                series=(
                    _limits(centre, points["low"], points["high"], "centre line and limits"),
                    Series(
                        style="dots",
                        role="ref",
                        name="baseline",
                        x=to_numbers(points.index[points["is_baseline"]]),
                        y=to_numbers(points.loc[points["is_baseline"], "rate"]),
                    ),
                    *_judged_series(subgroups, "rate", CHARTS["western_electric"]),
                ),
            ),
            Panel(
                x=x.model_copy(update={"ticks": ticks}),
                y=Axis(
                    low=-most,
                    high=most,
                    label="moving average (EWMA), in σ",
                    ticks=tuple(Tick(value=v, label=f"{v:.0f}") for v in (-most, 0, most)),
                ),
                marks=tuple(shade),
                series=(
                    _limits(0 * limit, -limit, limit, "centre line and limits"),
                    *_judged_series(subgroups, "average", CHARTS["ewma"]),
                ),
            ),
        ),
    )


def _limits(centre: pd.Series, low: pd.Series, high: pd.Series, name: str) -> Series:
    return Series(
        style="curve",
        role="ref",
        name=name,
        x=to_numbers(centre.index),
        y=to_numbers(centre),
        low=to_numbers(low),
        high=to_numbers(high),
    )


def _judged_series(
    points: pd.DataFrame, column: str, rules: Sequence[str]
) -> tuple[Series, Series]:
    breaks_rule = points["rules"].map(lambda names: bool({*names} & {*rules})).astype(bool)
    return (
        Series(
            style="dots",
            role="now",
            name="in control",
            x=to_numbers(points.index[~breaks_rule]),
            y=to_numbers(points.loc[~breaks_rule, column]),
        ),
        Series(
            style="dots",
            role="changed",
            name="breaks a rule",
            x=to_numbers(points.index[breaks_rule]),
            y=to_numbers(points.loc[breaks_rule, column]),
        ),
    )

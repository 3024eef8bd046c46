"""Builds charts of drift: error rate and signals in vote order, and clusters of prompts."""

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import wilson_bounds
from rlhf_pipeline.core.records import DriftEvent, Interval
from rlhf_pipeline.learn.calibration.group_calibration import UNKNOWN_CEILING
from rlhf_pipeline.reports.calibration import INTERVALS
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Role,
    Series,
    Tick,
    mark_ceiling,
    percent_ticks,
    pick_spaced,
    point_series,
    to_numbers,
)
from rlhf_pipeline.reports.words import display_name
from rlhf_pipeline.watch.drift import DETECTORS
from rlhf_pipeline.watch.drift.choice import DetectorChoice
from rlhf_pipeline.watch.drift.cluster_history import PromptCluster

MIN_VOTES, WINDOW = 30, 100  # of a moving error rate
NO_RATE = f"fewer than {MIN_VOTES} votes: no rate is drawn yet"
TOO_FEW = "today: too few"
MAX_POINTS = 600  # more would not be visible
MAX_DAY_LABELS, MAX_GAP_LABELS, MAX_DAY_LINES = 13, 10, 60  # more would be unreadable


def chart_timeline(
    errors: pd.DataFrame,
    events: Sequence[DriftEvent] = (),
    *,
    noise_ceiling: Interval | None = None,
    day: str | None = None,
) -> Chart:
    """The trailing error rate in vote order with its 95% band (votes taken one by one), and above
    it a lane per detector with its drift.

    `errors`: seq, day, error of one model in any order. `noise_ceiling` is an accuracy; its error
    is drawn as the best that any model can reach. `day` is shaded. Raises NotEnoughData for an
    empty stream.
    """
    if errors.empty:
        raise NotEnoughData(
            "There are no judged votes yet, so there is no drift timeline. Draw it after the first "
            "votes."
        )
    rows = errors.sort_values("seq", ignore_index=True)
    first, last = int(rows["seq"].min()), int(rows["seq"].max())
    rates = _draw_error_rate(rows)
    ends = [end for series in rates for end in series.high if end is not None]
    highest = max([0.5, *ends])
    high = float(np.ceil(highest * 10 - 1e-9) / 10)
    x = Axis(
        low=first,
        high=max(last, first + 1),
        label=f"vote seq {first:,} to {last:,}",
        unit="vote seq",
        has_grid=False,
    )
    seqs = rows.loc[rows["day"].astype(str) == day, "seq"]
    shade = (
        [Mark(style="band", role="today", x=(seqs.min(), seqs.max()), name="votes of this day")]
        if len(seqs)
        else []
    )
    few = [] if rates else [Mark(style="word", role="small", label=NO_RATE)]
    ticks, borders = _divide_into_days(rows, day)
    return Chart(
        kind="timeline",
        title="Errors of the reward model in vote order",
        alt=f"Error rate over the last {WINDOW} votes, in vote order, and what the detectors said",
        notes=() if noise_ceiling else (f"best reachable {UNKNOWN_CEILING}",),
        panels=(
            _signal_panel(
                x,
                [event for event in events if event.seq >= first],
                [*shade, *(border.model_copy(update={"label": ""}) for border in borders)],
            ),
            Panel(
                x=x.model_copy(update={"ticks": ticks}),
                y=Axis(
                    low=0,
                    high=high,
                    label="error rate",
                    unit="share",
                    ticks=percent_ticks(np.arange(0, high + 0.01, 0.1)),
                ),
                height=210,
                series=rates,
                marks=(*shade, *borders, *_mark_best_error(noise_ceiling), *few),
            ),
        ),
    )


def _draw_error_rate(rows: pd.DataFrame) -> tuple[Series, ...]:
    """Thinned to MAX_POINTS; none of too few votes."""
    trailing = rows["error"].astype(float).rolling(WINDOW, min_periods=MIN_VOTES)
    rate = pd.DataFrame({"seq": rows["seq"], "mean": trailing.mean(), "n": trailing.count()})
    rate = rate.iloc[np.unique(np.linspace(0, len(rows) - 1, MAX_POINTS).astype(int))].dropna()
    if rate.empty:
        return ()
    low, high = wilson_bounds(rate["mean"], rate["n"])
    return (
        Series(
            style="curve",
            role="now",
            name=f"error rate of the last {WINDOW} votes, with its 95% band",
            x=to_numbers(rate["seq"]),
            y=to_numbers(rate["mean"]),
            low=to_numbers(low),
            high=to_numbers(high),
        ),
    )


def _mark_best_error(noise_ceiling: Interval | None) -> tuple[Mark, ...]:
    if noise_ceiling is None:
        return ()
    name = "best reachable, from the noise ceiling"
    best = noise_ceiling.complement()
    return mark_ceiling(best, name if best.basis is None else f"{name} ({best.basis})")


def _signal_panel(
    x: Axis,
    events: Sequence[DriftEvent],
    marks: Sequence[Mark],
) -> Panel:
    """Draw a lane per detector, so signals at the same vote do not hide each other: the detectors
    chosen by default, or those with a signal if others have one.
    """
    fired_names = {e.detector for e in events if e.kind == "drift"}
    usual = DetectorChoice().chosen()
    names = (
        usual if fired_names <= {*usual} else [name for name in DETECTORS if name in fired_names]
    )
    lanes = {name: i for i, name in enumerate([*names, "calibration"])}
    signals = [
        (event, lanes[lane])
        for event in events
        for lane in ["calibration" if event.kind == "calibration" else event.detector]
        if lane in lanes
    ]
    since = [
        Mark(
            style="line", role="since", x=(event.change_seq or event.seq, event.seq), y=(lane, lane)
        )
        for event, lane in signals
    ]
    return Panel(
        x=x,
        y=Axis(
            low=len(lanes) - 0.5,
            high=-0.5,
            label="detector",
            ticks=tuple(Tick(value=i, label=display_name(name)) for name, i in lanes.items()),
        ),
        height=22 * len(lanes),
        marks=(*marks, *since),
        series=(
            Series(
                style="triangles",
                role="fired",
                name="drift, with where the change is thought to begin",
                x=to_numbers(event.seq for event, _ in signals),
                y=to_numbers(lane for _, lane in signals),
            ),
        ),
    )


def _divide_into_days(rows: pd.DataFrame, day: str | None) -> tuple[tuple[Tick, ...], list[Mark]]:
    """Labels of days, and lines where a new day begins; each line's label counts the missing days.

    The axis is the order of votes, so days without votes take no room. Late votes lie outside their
    day's stretch, which is the range of the middle half of the day's votes.
    """
    quartiles = rows.groupby(rows["day"].astype(str))["seq"].quantile([0.25, 0.5, 0.75]).unstack()
    spans = quartiles.sort_values(0.5)
    width = max(1.0, float(rows["seq"].max() - rows["seq"].min()))
    middles = spans[0.5].tolist()
    labelled = pick_spaced(middles, width / MAX_DAY_LABELS)
    several_years = len({name[:4] for name in spans.index}) > 1
    ticks = tuple(
        Tick(
            value=middles[i],
            label=spans.index[i][2 if several_years else 5 :],
            strong=spans.index[i] == day,
        )
        for i in labelled
    )
    if len(spans) > MAX_DAY_LINES:
        return ticks, []
    borders: list[Mark] = []
    last_label = -np.inf
    for before, after in pairwise(spans.index):
        begin = (float(spans.loc[before, 0.75]) + float(spans.loc[after, 0.25])) / 2
        n_missing = (date.fromisoformat(after) - date.fromisoformat(before)).days - 1
        label = ""
        if n_missing > 0 and begin - last_label > width / MAX_GAP_LABELS:
            last_label = begin
            label = "1 day without" if n_missing == 1 else f"{n_missing:,} days without"
        role: Role = "perfect" if n_missing > 0 else "day"
        borders.append(Mark(style="line", role=role, x=(begin, begin), label=label))
    return ticks, borders


def chart_clusters(clusters: Sequence[PromptCluster]) -> Chart:
    """Share of the prompts and error rate of each cluster, in the reference and on the day."""
    steady = [cluster.change == "steady" for cluster in clusters]
    right = [not cluster.is_worse for cluster in clusters]
    unknown = [
        Mark(style="word", role="small", x=(0.04, 0.04), y=(i + 0.3, i + 0.3), label=TOO_FEW)
        for i, cluster in enumerate(clusters)
        if cluster.error_current is None
    ]
    return Chart(
        kind="clusters",
        title="Clusters of prompts, reference against day",
        alt="Share of the prompts and error rate of each cluster, in the reference and on the day",
        columns=2,
        notes=(INTERVALS,),
        panels=(
            _cluster_panel(
                "share of the prompts",
                clusters,
                [cluster.share_reference for cluster in clusters],
                [cluster.share_current for cluster in clusters],
                steady,
            ),
            _cluster_panel(
                "error rate",
                clusters,
                [cluster.error_reference for cluster in clusters],
                [cluster.error_current for cluster in clusters],
                right,
                unknown,
            ),
        ),
    )


def _cluster_panel(
    title: str,
    clusters: Sequence[PromptCluster],
    before: Sequence[Interval | None],
    now: Sequence[Interval | None],
    is_steady: Sequence[bool],
    marks: Iterable[Mark] = (),
) -> Panel:
    rows = range(len(clusters))
    steady = [i if same else None for i, same in zip(now, is_steady, strict=True)]
    changed = [None if same else i for i, same in zip(now, is_steady, strict=True)]
    highest = max([i.high for i in (*before, *now) if i is not None], default=0.5)
    high = float(np.ceil(highest * 10 - 1e-9) / 10)
    return Panel(
        title=title,
        x=Axis(
            low=0,
            high=high,
            label="error rate",
            unit="share",
            ticks=percent_ticks(np.arange(0, high + 0.01, 0.1 if high <= 0.5 else 0.2)),
        ),
        y=Axis(
            low=len(clusters) - 0.5,
            high=-0.5,
            label="cluster",
            ticks=tuple(Tick(value=i, label=cluster.name) for i, cluster in enumerate(clusters)),
            has_grid=False,
        ),
        height=34 * len(clusters),
        marks=tuple(marks),
        series=(
            point_series(rows, before, along="x", role="ref", name="reference", offset=-6),
            point_series(rows, steady, along="x", role="now", name="this day", offset=6),
            point_series(rows, changed, along="x", role="changed", name="changed", offset=6),
        ),
    )

"""The drift timeline as a picture. Knows one error stream and what happened along it."""

import io
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.calibration.group_calibration import UNKNOWN_CEILING
from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.stream import StreamWarning
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.intervals import wilson_bounds
from rlhf_pipeline.records import DriftEvent, Interval

COLOURS = ("#d62728", "#9467bd", "#e377c2", "#8c564b", "#bcbd22")
MAX_DAY_LABELS, MAX_GAP_LABELS, MAX_DAY_LINES = 13, 60, 60  # more cannot be read
MARKERS = ("v", "s", "D", "P", "X")


def draw_drift_timeline(
    errors: pd.DataFrame,
    events: Sequence[DriftEvent] = (),
    warnings: Sequence[StreamWarning] = (),
    *,
    models: Mapping[int, str] | None = None,
    noise_ceiling: Interval | None = None,
    window: int = 100,
    title: str = "Errors of the reward model in vote order",
) -> bytes:
    """PNG of the trailing error rate over vote seq, with warnings, drift and model changes.

    `errors`: seq, day, error in any order. `models`: first seq -> label of every model that served;
    the mean starts afresh with each. `noise_ceiling` is an accuracy; its error is drawn as the best
    any model can reach. Raises NotEnoughData for an empty stream.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if errors.empty:
        raise NotEnoughData(
            "No judged votes yet: there is no drift timeline to draw. Draw it after the first "
            "votes."
        )
    rows = errors.sort_values("seq", ignore_index=True)
    served = dict(sorted((models or {}).items()))
    # as wide as the dialog in which Dagster shows it
    figure = Figure(figsize=(11, 5), dpi=95, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw_errors(axes, rows, served, window)
    _draw_ceiling(axes, noise_ceiling)
    _draw_models(axes, served)
    _draw_signals(axes, events, warnings)
    _draw_days(axes, rows)
    axes.set(
        title=title, xlabel="vote seq", ylabel=f"error rate, trailing {window} votes", ylim=(0, 1)
    )
    axes.set_xlim(rows["seq"].min(), max(rows["seq"].max(), rows["seq"].min() + 1))
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(loc="upper left", fontsize=9, ncols=2, framealpha=0.9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_errors(axes: Any, rows: pd.DataFrame, served: Mapping[int, str], window: int) -> None:
    model = np.searchsorted(
        np.array(list(served), dtype=np.int64), rows["seq"].to_numpy(), side="right"
    )
    for number, part in rows.groupby(model):
        trailing = part["error"].astype(float).rolling(window, min_periods=min(30, window))
        mean, n = trailing.mean(), trailing.count()
        low, high = wilson_bounds(mean, n)
        is_first = number == model[0]
        axes.fill_between(part["seq"], low, high, color="#1f77b4", alpha=0.15, linewidth=0)
        axes.plot(
            part["seq"],
            mean,
            color="#1f77b4",
            linewidth=1.8,
            label="error rate (95 % band)" if is_first else None,
        )


def _draw_ceiling(axes: Any, noise_ceiling: Interval | None) -> None:
    if noise_ceiling is None:
        axes.plot([], [], " ", label=f"best reachable {UNKNOWN_CEILING}")
        return
    axes.axhspan(
        1 - noise_ceiling.high, 1 - noise_ceiling.low, color="#2ca02c", alpha=0.12, linewidth=0
    )
    of = (
        "noise ceiling"
        if noise_ceiling.basis is None
        else f"noise ceiling from {noise_ceiling.basis}"
    )
    axes.axhline(
        1 - noise_ceiling.value,
        color="#2ca02c",
        linestyle="--",
        linewidth=1.2,
        label=f"best reachable ({of})",
    )


def _draw_models(axes: Any, served: Mapping[int, str]) -> None:
    for seq, label in served.items():
        axes.axvline(seq, color="#444444", linewidth=1.2, linestyle="-.")
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        axes.annotate(
            label,
            (seq, 0.03),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=9,
            color="#444444",
            bbox=box,
        )


def _draw_signals(
    axes: Any, events: Sequence[DriftEvent], warnings: Sequence[StreamWarning]
) -> None:
    """Each detector in its own row above the curve, so that signals at the same vote do not hide
    each other.
    """
    calibration = [e for e in events if e.kind == "calibration"]
    for i, name in enumerate(DETECTORS):
        height, colour, marker = (
            0.70 - 0.045 * i,
            COLOURS[i % len(COLOURS)],
            MARKERS[i % len(MARKERS)],
        )
        warned = [w.seq for w in warnings if w.detector == name]
        fired = [e for e in events if e.kind == "drift" and e.detector == name]
        if warned:
            axes.plot(
                warned,
                [height] * len(warned),
                marker,
                color=colour,
                mfc="none",
                ms=6,
                linestyle="",
                label=f"{name} warning",
            )
        for event in fired:  # from where the change is thought to begin to where it was detected
            axes.plot(
                [event.change_seq or event.seq, event.seq],
                [height, height],
                color=colour,
                linewidth=1.5,
            )
        if fired:
            axes.plot(
                [e.seq for e in fired],
                [height] * len(fired),
                marker,
                color=colour,
                ms=9,
                linestyle="",
                label=f"{name} drift",
            )
    if calibration:
        seqs = sorted({e.seq for e in calibration})
        axes.plot(
            seqs,
            [0.745] * len(seqs),
            "*",
            color="#ff7f0e",
            ms=11,
            linestyle="",
            label="calibration test failed",
        )


def _draw_days(axes: Any, rows: pd.DataFrame) -> None:
    """A second axis with the day that each stretch of votes was cast on, a line where a new day
    begins, two where days are missing.

    The x axis is the order of votes, so days without any take no room: the lines say that there is
    a gap. Late votes lie outside their day's stretch; a stretch is where the middle half of the
    day's votes lies.
    """
    days = (
        rows.groupby(rows["day"].astype(str))["seq"]
        .quantile([0.25, 0.5, 0.75])
        .unstack()
        .sort_values(0.5)
    )
    labels = _day_labels(days.index.tolist())
    top = axes.secondary_xaxis("top")
    width = max(1.0, float(rows["seq"].max() - rows["seq"].min()))
    shown = _spaced_indices(days[0.5].tolist(), width / MAX_DAY_LABELS)
    top.set_xticks([days[0.5].iloc[i] for i in shown], [labels[i] for i in shown], fontsize=8)
    top.tick_params(length=0)
    if len(days) > MAX_DAY_LINES:
        return
    said = -np.inf
    for before, after in pairwise(days.index):
        begin = (float(days.loc[before, 0.75]) + float(days.loc[after, 0.25])) / 2
        missing = (date.fromisoformat(after) - date.fromisoformat(before)).days - 1
        axes.axvline(
            begin,
            color="#888888" if missing > 0 else "#cccccc",
            linewidth=1.6 if missing > 0 else 0.6,
            linestyle=":",
            zorder=0,
        )
        if missing > 0 and begin - said > width / MAX_GAP_LABELS:
            said = begin
            gap = f"{missing} days without" if missing > 1 else "1 day without"
            axes.annotate(
                gap,
                (begin, 0.09),
                rotation=90,
                ha="right",
                va="bottom",
                fontsize=7,
                color="#666666",
            )


def _spaced_indices(places: Sequence[float], least: float) -> list[int]:
    """Which of these ascending places to label, so that no two labels touch."""
    kept: list[int] = []
    for i, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= least:
            kept.append(i)
    return kept


def _day_labels(days: Sequence[str]) -> list[str]:
    """Month and day; the year where it is not that of the day before."""
    years = [None, *(day[:4] for day in days)]
    several = len(set(years)) > 2
    return [
        f"{day[5:]}\n{day[:4]}" if several and day[:4] != year else day[5:]
        for day, year in zip(days, years, strict=False)
    ]

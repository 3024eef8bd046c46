"""Builds charts of calibration: reliability, overall and by group, and figures over time."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from rlhf_pipeline.core.records import CalibrationReport, GroupCalibration, Interval, ReliabilityBin
from rlhf_pipeline.learn.calibration.calibration_windows import CalibrationWindow, new_models
from rlhf_pipeline.learn.calibration.group_calibration import UNKNOWN_CEILING, largest_groups
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
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.words import shorten

MIN_IN_BIN = 10  # comparisons or votes; a share of fewer is too uncertain
N_COLUMNS, MAX_PANELS = 3, 12
NAME_WIDTH = 24  # characters of a group's name
COIN_BRIER = 0.25  # Brier score of always predicting 0.5
INTERVALS = "bars: 95% intervals"
MAX_WINDOW_LABELS = 14  # more would be unreadable
CONFIDENCE = Axis(
    low=0.49,
    high=1.01,
    label="stated confidence in the predicted side",
    unit="share",
    has_grid=False,
)
SHARE = Axis(
    low=0,
    high=1,
    label="share predicted right",
    unit="share",
    ticks=percent_ticks(np.arange(6) / 5),
)
PERFECT = Mark(style="line", role="perfect", x=(0.5, 1), y=(0.5, 1), name="perfect")


def draw_calibration(report: CalibrationReport) -> dict[str, bytes]:
    """Return PNGs by name: the reliability diagram, and small multiples of the groups if there are
    any.
    """
    charts = {"reliability_diagram": chart_calibration(report)}
    if report.by_group:
        charts["reliability_by_group"] = chart_groups(report)
    return {name: draw_png(chart) for name, chart in charts.items()}


def chart_calibration(report: CalibrationReport) -> Chart:
    """Draw reliability before and after a calibration."""
    raw, calibrated = report.raw.ece, report.calibrated.ece
    return chart_reliability(
        {
            f"raw: ECE {raw}": report.raw_bins,
            f"{report.method}: ECE {calibrated}": report.calibrated_bins,
        },
        report.noise_ceiling,
        title=f"{report.reward_model}: reliability on {report.raw.n} test comparisons",
        notes=(f"accuracy {report.raw.accuracy}",),
    )


def chart_reliability(
    sides: Mapping[str, Sequence[ReliabilityBin]],
    ceiling: Interval | None,
    *,
    title: str,
    ceiling_name: str | None = None,
    notes: Sequence[str] = (),
    width: int = 640,
    unit: str = "rows",
    link: Callable[[ReliabilityBin], str] | None = None,
) -> Chart:
    """Stated confidence against the share predicted right, and below it the number of `unit` in
    each bin.

    `sides` maps name to bins and has one or two entries; two are drawn next to each other. Each bin
    of the last side leads to its `link`, and screen readers can read it aloud.
    """
    roles: tuple[Role, ...] = ("now",) if len(sides) == 1 else ("ref", "now")
    shifts = (0.0,) if len(sides) == 1 else (-5.0, 5.0)
    styled_sides = list(zip(sides.items(), roles, shifts, strict=True))
    most = max((b.n for bins in sides.values() for b in bins), default=1)
    if any(b.n < MIN_IN_BIN for bins in sides.values() for b in bins):
        notes = (*notes, f"faint: fewer than {MIN_IN_BIN} {unit}")
    if ceiling is None:
        notes = (*notes, f"noise ceiling {UNKNOWN_CEILING}")
    name = f"noise ceiling {ceiling}" if ceiling_name is None else ceiling_name

    def links(bins: Sequence[ReliabilityBin], role: Role) -> tuple[str, ...]:
        return tuple(link(b) for b in bins) if link and role == "now" else ()

    targets = [
        Mark(style="area", role="now", x=(b.low, b.high), label=describe_bin(b), link=address)
        for (_, bins), role, _ in styled_sides
        for b in bins
        if role == "now" and (len(sides) == 1 or link)
        for address in [link(b) if link else ""]
    ]
    return Chart(
        kind="reliability",
        title=title,
        alt=f"Stated confidence against the share predicted right: {', '.join(sides)}"
        + ("; each bin leads to its votes" if link else ""),
        width=width,
        notes=(*notes, INTERVALS),
        panels=(
            Panel(
                x=CONFIDENCE,
                y=SHARE,
                height=300,
                marks=(PERFECT, *mark_ceiling(ceiling, name), *targets),
                series=tuple(
                    _bin_series(bins, role, name=name, offset=shift).model_copy(
                        update={"links": links(bins, role)}
                    )
                    for (name, bins), role, shift in styled_sides
                ),
            ),
            Panel(
                x=CONFIDENCE.model_copy(update={"ticks": percent_ticks(np.arange(5, 11) / 10)}),
                y=Axis(
                    low=0,
                    high=1.5 * most,
                    label=unit,
                    unit=unit,
                    ticks=(Tick(value=most, label=f"{most:,}"),),
                ),
                height=60,
                series=tuple(
                    Series(
                        style="bars",
                        role=role,
                        name=name,
                        links=links(bins, role),
                        x=to_numbers((b.low + b.high) / 2 for b in bins),
                        y=to_numbers(b.n for b in bins),
                        labels=tuple(f"{b.n:,}" for b in bins) if len(sides) == 1 else (),
                        width=0.036 if len(sides) == 1 else 0.012,
                        offset=shift * 1.3,
                    )
                    for (name, bins), role, shift in styled_sides
                ),
            ),
        ),
    )


def describe_bin(b: ReliabilityBin) -> str:
    return (
        f"confidence {b.low:.0%} to {b.high:.0%}: {b.n:,} {'vote' if b.n == 1 else 'votes'}, "
        f"{b.mean_confidence:.1%} stated, {b.accuracy:.1%} right ({b.accuracy_low:.1%} to "
        f"{b.accuracy_high:.1%})"
    )


def chart_groups(report: CalibrationReport) -> Chart:
    """The reliability of each group with its own noise ceiling, the largest groups first.

    A group too small for an interval shows its size and no points. The title counts the groups
    beyond MAX_PANELS.
    """
    groups = largest_groups(report.by_group, MAX_PANELS)
    n_columns = min(N_COLUMNS, len(groups))
    n_omitted = len(report.by_group) - len(groups)
    more = f"; {n_omitted} smaller groups are in the report" if n_omitted else ""
    return Chart(
        kind="reliability-by-group",
        title=f"{report.reward_model}, {report.method}: reliability by group{more}",
        alt="Stated confidence against the share predicted right, in each group",
        columns=n_columns,
        width=max(340 * n_columns, 640),
        notes=("across: stated confidence; up: share predicted right", INTERVALS),
        panels=tuple(_group_panel(group) for group in groups),
    )


def _group_panel(group: GroupCalibration) -> Panel:
    metrics = group.calibrated
    notes: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = (
        PERFECT,
        Mark(style="word", role="small", label=f"{group.n} pairs: too few"),
    )
    if metrics:
        notes = (
            f"accuracy {metrics.accuracy}",
            f"ECE {metrics.ece}",
            f"noise ceiling {group.noise_ceiling or 'unknown'}",
        )
        marks = (PERFECT, *mark_ceiling(group.noise_ceiling, "noise ceiling"))
    return Panel(
        title=f"{group.by}: {shorten(group.group, NAME_WIDTH)}, {group.n:,} pairs",
        notes=notes,
        x=CONFIDENCE.model_copy(update={"ticks": percent_ticks([0.5, 0.75, 1])}),
        y=SHARE,
        height=190,
        marks=marks,
        series=(_bin_series(group.calibrated_bins, "now"),) if metrics else (),
    )


def _bin_series(
    bins: Sequence[ReliabilityBin], role: Role, name: str = "", offset: float = 0
) -> Series:
    return Series(
        style="dots",
        role=role,
        name=name,
        x=to_numbers(b.mean_confidence for b in bins),
        y=to_numbers(b.accuracy for b in bins),
        low=to_numbers(b.accuracy_low for b in bins),
        high=to_numbers(b.accuracy_high for b in bins),
        n=tuple(b.n for b in bins),
        faint=tuple(b.n < MIN_IN_BIN for b in bins),
        offset=offset,
    )


def chart_windows(windows: Sequence[CalibrationWindow], *, marks_last: bool = False) -> Chart:
    """Share predicted right with its noise ceiling, ECE, Brier score and votes,
    window by window. `marks_last` shades the last window.
    """
    places, n = range(len(windows)), len(windows)
    changes = [
        Mark(style="line", role="model", x=(i - 0.5, i - 0.5), label=f"{label} from here")
        for i, label in new_models(windows)
    ]
    lines = [mark.model_copy(update={"label": ""}) for mark in changes]
    if marks_last:
        last = (n - 1.5, n - 0.5)
        shade = Mark(style="band", role="today", x=last, name="window of this day")
        changes, lines = [shade, *changes], [shade, *lines]
    ceilings = [
        mark
        for i, w in enumerate(windows)
        for mark in mark_ceiling(w.noise_ceiling, "noise ceiling of its votes", (i - 0.5, i + 0.5))
    ]
    coin = Mark(style="line", role="perfect", y=(COIN_BRIER, COIN_BRIER))
    lows = [i.low for w in windows for i in (w.accuracy, w.noise_ceiling) if i is not None]
    lowest = float(np.floor(min([0.5, *lows]) * 10) / 10)
    most = max(w.n_votes for w in windows)
    x = Axis(low=-0.5, high=n - 0.5, label="last day of the window", unit="window", has_grid=False)
    days = tuple(
        Tick(value=i, label=windows[i].day[5:], strong=i == n - 1)
        for i in pick_spaced(places, -(-n // MAX_WINDOW_LABELS))
    )
    votes = to_numbers(w.n_votes for w in windows)
    figures: list[tuple[Axis, list[Interval | None], list[Mark]]] = [
        (
            Axis(low=lowest, high=1, label="share predicted right", ticks=_three_ticks(lowest, 1)),
            [w.accuracy for w in windows],
            [*ceilings, *changes],
        ),
        (
            _ends_axis("ECE", [w.ece for w in windows], 0.1),
            [w.ece for w in windows],
            lines,
        ),
        (
            _ends_axis("Brier score; dashed: a coin", [w.brier for w in windows], COIN_BRIER),
            [w.brier for w in windows],
            [coin, *lines],
        ),
    ]
    return Chart(
        kind="calibration-over-time",
        title=f"Calibration of {windows[0].day} to {windows[-1].day}, as served",
        alt="Share predicted right beside the noise ceiling, ECE, Brier score and number of votes, "
        "window by window",
        notes=(INTERVALS, *(() if ceilings else (f"noise ceiling {UNKNOWN_CEILING}",))),
        panels=(
            *(
                Panel(
                    x=x,
                    y=y,
                    series=(point_series(places, intervals, role="now", name="of the window"),),
                    marks=tuple(marks),
                )
                for y, intervals, marks in figures
            ),
            Panel(
                x=x.model_copy(update={"ticks": days}),
                y=Axis(
                    low=0,
                    high=most or 1,
                    label="votes",
                    unit="votes",
                    ticks=(Tick(value=most, label=f"{most:,}"),),
                    has_grid=False,
                ),
                height=60,
                series=(
                    Series(style="bars", role="now", x=to_numbers(places), y=votes, width=0.7),
                ),
                marks=tuple(lines),
            ),
        ),
    )


def _ends_axis(label: str, intervals: Iterable[Interval | None], least: float) -> Axis:
    """An axis from 0 to the highest end of an interval, at least `least`."""
    high = max([least, *(i.high for i in intervals if i is not None)])
    high = float(np.ceil(high * 20 - 1e-9) / 20)
    return Axis(low=0, high=high, label=label, ticks=_three_ticks(0, high))


def _three_ticks(low: float, high: float) -> tuple[Tick, ...]:
    return tuple(Tick(value=v, label=f"{v:.3g}") for v in (low, (low + high) / 2, high))

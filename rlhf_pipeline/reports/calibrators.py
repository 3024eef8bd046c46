"""Builds charts of calibrators: reliability before and after, error by group and by calibrator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    DimensionCalibration,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)
from rlhf_pipeline.learn.calibration.dimension_calibration import DIMENSION
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS, UNKNOWN_CEILING
from rlhf_pipeline.reports.calibration import INTERVALS, chart_reliability
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Panel,
    Series,
    Tick,
    percent_ticks,
    point_series,
    round_ticks,
    to_numbers,
)
from rlhf_pipeline.reports.words import name_models, shorten

GROUPINGS = ("category", "source")
MAX_LANES = 20  # groups in a panel
LANE = 24  # pixels
NAME_WIDTH = 24  # characters of a group's name
MAX_NAMES = 5  # withheld groups that are named
OVERALL = "Overall score"  # no dimension's name has a capital letter
BOTH_SIDES = "hollow: before, filled: after calibration"


@dataclass(frozen=True)
class CalibratorError:
    """Calibration error (ECE) before and after one calibration."""

    label: str
    name: str
    before: Interval
    after: Interval
    link: str = ""


@dataclass(frozen=True)
class _Measured:
    """Test pairs of a calibration: all, or those of a group."""

    title: str
    n: int
    raw: CalibrationMetrics | None
    calibrated: CalibrationMetrics | None
    raw_bins: Sequence[ReliabilityBin]
    calibrated_bins: Sequence[ReliabilityBin]
    noise_ceiling: Interval | None
    note: str = ""


def chart_before_after(report: CalibrationReport, groups: Mapping[str, str]) -> Chart:
    """Reliability on the test split before and after a calibration, with the counts of each bin: of
    all pairs, or of the chosen group of each grouping, a dimension's head among them. Groups too
    small for intervals are withheld.
    """
    name = f"{name_models(report.reward_model)}, {report.method}"
    notes: list[str] = []
    parts: list[_Measured] = []
    for part in _parts_of(report, groups):
        if part.calibrated is None and part.raw is None:
            notes.append(f"{part.title}: {part.n} test pairs, withheld below {MIN_PAIRS}")
        else:
            parts.append(part)
    charts = [_chart_part(part) for part in parts]
    title = f"Reliability before and after calibration: {name}"
    return Chart(
        kind="calibration-before-after",
        title=title,
        alt=f"{title}; stated confidence against the share predicted right on the test split",
        columns=max(1, len(charts)),
        width=640 * max(1, len(charts)),
        notes=(*dict.fromkeys(note for chart in charts for note in chart.notes), *notes),
        # first the shares of all parts, below them the counts
        panels=tuple(chart.panels[row] for row in (0, 1) for chart in charts),
    )


def chart_group_errors(
    by_group: Sequence[GroupCalibration],
    *,
    title: str,
    link: Callable[[str, str], str] | None = None,
) -> Chart:
    """Calibration error of each category and source before and after, with intervals and counts.
    `link` leads from a grouping and its group to the group's curves.
    """
    panels, notes = [], []
    for by in GROUPINGS:
        groups = [group for group in by_group if group.by == by]
        large = [group for group in groups if group.calibrated is not None]
        small = [group for group in groups if group.calibrated is None]
        if large:
            above = f"By {by}, the largest on top"
            panels.append(_error_panel(by, large[:MAX_LANES], link, above))
        if large[MAX_LANES:]:
            notes.append(
                f"the {len(large) - MAX_LANES} smallest of {len(large)} groups by {by} are left out"
            )
        if small:
            names = ", ".join(f"{shorten(g.group, NAME_WIDTH)} ({g.n})" for g in small[:MAX_NAMES])
            more = f" and {len(small) - MAX_NAMES} more" if small[MAX_NAMES:] else ""
            notes.append(f"withheld, fewer than {MIN_PAIRS} pairs, by {by}: {names}{more}")
    if not by_group:
        notes.append("No figures of groups yet.")
    return Chart(
        kind="calibration-error-by-group",
        title=title,
        alt=title,
        columns=max(1, len(panels)),
        panels=tuple(panels),
        notes=(*((INTERVALS, BOTH_SIDES) if panels else ()), *notes),
    )


def chart_dimension_errors(
    report: CalibrationReport, *, title: str, link: Callable[[str, str], str] | None = None
) -> Chart:
    """Calibration error of the overall score and of the head of each dimension of the rubric,
    before and after, with intervals and counts. `link` leads from the grouping and a dimension, or
    OVERALL, to its curves.
    """
    overall = GroupCalibration(
        by=DIMENSION,
        group=OVERALL,
        n=report.raw.n,
        raw=report.raw,
        calibrated=report.calibrated,
        noise_ceiling=report.noise_ceiling,
    )
    large = [head for head in report.by_dimension if head.raw is not None]
    small = [f"{head.group} ({head.n})" for head in report.by_dimension if head.raw is None]
    panels = [_error_panel(DIMENSION, [overall, *large], link, "By dimension")] if large else []
    notes = [INTERVALS, BOTH_SIDES] if large else []
    if small:
        notes.append(f"withheld, fewer than {MIN_PAIRS} pairs, by dimension: {', '.join(small)}")
    if not report.by_dimension:
        notes.append("No test vote judges a dimension of the rubric that the model has a head of.")
    return Chart(
        kind="calibration-error-by-dimension",
        title=title,
        alt=title,
        panels=tuple(panels),
        notes=tuple(notes),
    )


def chart_calibrators(entries: Sequence[CalibratorError]) -> Chart:
    """ECE before and after each calibration, oldest first."""
    places = range(len(entries))
    shared: dict[str, Any] = {
        "links": tuple(entry.link for entry in entries)
        if any(entry.link for entry in entries)
        else (),
        "evidence": tuple(entry.name for entry in entries),
    }
    before = [entry.before for entry in entries]
    after = [entry.after for entry in entries]
    ticks = tuple(Tick(value=i, label=entry.label) for i, entry in enumerate(entries))
    title = "Calibration error (ECE) before and after each calibration"
    return Chart(
        kind="calibration-error-by-calibrator",
        title=title,
        alt=f"{title}, in the order of their fitting",
        notes=(INTERVALS,),
        panels=(
            Panel(
                title="ECE on the test split",
                x=Axis(
                    low=-0.5,
                    high=max(len(entries) - 0.5, 0.5),
                    label="version of the reward model, calibrator; oldest left",
                    unit="calibrator",
                    ticks=ticks,
                    has_grid=False,
                ),
                y=_error_axis([*before, *after]),
                height=166,
                series=(
                    point_series(places, before, role="ref", name="before", offset=-4, **shared),
                    point_series(places, after, role="now", name="after", offset=4, **shared),
                ),
            ),
        )
        if entries
        else (),
    )


def _parts_of(report: CalibrationReport, groups: Mapping[str, str]) -> list[_Measured]:
    if not groups:
        return [
            _Measured(
                "All test pairs",
                report.raw.n,
                report.raw,
                report.calibrated,
                report.raw_bins,
                report.calibrated_bins,
                report.noise_ceiling,
            )
        ]
    groups_by_name = {
        (group.by, group.group): group for group in (*report.by_group, *report.by_dimension)
    }
    return [_part_of(by, name, groups_by_name.get((by, name))) for by, name in groups.items()]


def _part_of(by: str, name: str, group: GroupCalibration | None) -> _Measured:
    title = f"{by.capitalize()} {shorten(name, NAME_WIDTH)}"
    if group is None:
        return _Measured(title, 0, None, None, (), (), None)
    return _Measured(
        title,
        group.n,
        group.raw,
        group.calibrated,
        group.raw_bins,
        group.calibrated_bins,
        group.noise_ceiling,
        _describe_calibrator(group) if isinstance(group, DimensionCalibration) else "",
    )


def _describe_calibrator(head: DimensionCalibration) -> str:
    if head.method is None:
        return (
            f"no calibrator of its own: too few of {head.n_fit} calib pairs, or all votes of one "
            "side"
        )
    return f"calibrator of its own: {head.method}, measured and not applied"


def _chart_part(part: _Measured) -> Chart:
    # of the accuracy, which calibration does not change
    measured = part.raw or part.calibrated
    assert measured is not None  # others are withheld
    sides = {"before": part.raw_bins, "after": part.calibrated_bins}
    errors = [
        f"ECE {name} {_percents(metrics.ece)}"
        for name, metrics in (("before", part.raw), ("after", part.calibrated))
        if metrics is not None
    ]
    ceiling = "unknown" if part.noise_ceiling is None else _percents(part.noise_ceiling)
    chart = chart_reliability(
        {name: bins for name, bins in sides.items() if bins},
        part.noise_ceiling,
        title=part.title,
        ceiling_name="noise ceiling",
        unit="pairs",
    )
    shares, counts = chart.panels
    assert shares is not None
    assert counts is not None
    notes = (
        "; ".join(errors),
        f"accuracy {_percents(measured.accuracy)}; noise ceiling {ceiling}",
        *((part.note,) if part.note else ()),
    )
    titles = {"title": f"{part.title}, {part.n:,} pairs", "notes": notes}
    below = {"title": f"{part.title}, in each bin; a disputed pair counts once per side"}
    return chart.model_copy(
        update={
            "panels": (shares.model_copy(update=titles), counts.model_copy(update=below)),
            "notes": tuple(n for n in chart.notes if UNKNOWN_CEILING not in n),
        }
    )


def _error_panel(
    by: str,
    groups: Sequence[GroupCalibration],
    link: Callable[[str, str], str] | None,
    title: str,
) -> Panel:
    def draw(is_after: bool) -> Series:
        dots = [
            (lane, group, metrics)
            for lane, group in enumerate(groups)
            if (metrics := group.calibrated if is_after else group.raw) is not None
        ]
        return point_series(
            [lane for lane, _, _ in dots],
            [metrics.ece for _, _, metrics in dots],
            along="x",
            role="now" if is_after else "ref",
            name="after" if is_after else "before",
            offset=4 if is_after else -4,
            links=tuple(link(by, group.group) for _, group, _ in dots) if link else (),
        )

    series = (draw(False), draw(True))
    errors = [
        metrics.ece
        for group in groups
        for metrics in (group.raw, group.calibrated)
        if metrics is not None
    ]
    return Panel(
        title=title,
        x=_error_axis(errors).model_copy(update={"has_grid": True}),
        y=Axis(
            low=len(groups) - 0.5,
            high=-0.5,
            label=by,
            ticks=tuple(
                Tick(value=lane, label=shorten(group.group, NAME_WIDTH))
                for lane, group in enumerate(groups)
            ),
        ),
        height=LANE * len(groups),
        series=tuple(curve for curve in series if curve.x),
    )


def _error_axis(errors: Sequence[Interval]) -> Axis:
    """From 0 or the lowest end of an interval to the highest end, at least 10%."""
    low = min(0.0, *to_numbers(interval.low for interval in errors))
    high = max(0.1, *to_numbers(interval.high for interval in errors))
    ticks = round_ticks(100 * low, 100 * high)
    return Axis(
        low=low,
        high=high,
        label="calibration error (ECE)",
        unit="share",
        ticks=percent_ticks(tick.value / 100 for tick in ticks),
    )


def _percents(interval: Interval) -> str:
    return f"{interval.value:.1%} ({interval.low:.1%} to {interval.high:.1%})"

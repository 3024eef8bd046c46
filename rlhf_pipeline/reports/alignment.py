"""Builds the chart of alignment: accuracy and its noise ceiling, calibration, drift, by day."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise

import numpy as np

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Estimate,
    Mark,
    Panel,
    Role,
    Series,
    Tick,
    day_axis,
    day_curves,
    day_value,
    estimate_of,
    percent_ticks,
    point_series,
    round_ticks,
    to_day,
)
from rlhf_pipeline.reports.day_marks import add_marks, keep_within, mark_taste_changes
from rlhf_pipeline.reports.words import display_name, format_count

ACCURACY, CEILING, ECE, SLOPE, VERDICT = ALIGNMENT_METRICS = (
    "model.accuracy",
    "model.accuracy_ceiling",
    "model.ece",
    "model.calibration_slope",
    "drift.verdict",
)
TITLE = "Accuracy beside its noise ceiling, calibration and drift by day"
ACCURACY_METRICS = DAY_ACCURACY, DAY_CEILING, _ = (
    "model.day_accuracy",
    "model.day_accuracy_ceiling",
    ACCURACY,
)
TITLE_OF_DAYS = "Accuracy of each day beside its noise ceiling"
TITLE_OF_GROUP = "Accuracy beside its noise ceiling, and calibration by day"
# metrics of a group, and the figure of the chart that each is
GROUP_METRICS = {
    "groups.accuracy": ACCURACY,
    "groups.accuracy_ceiling": CEILING,
    "groups.ece": ECE,
    "groups.calibration_slope": SLOPE,
}
NO_POINTS = (
    "No figures of these days yet. Each day's drift report writes them, once a reward model has "
    "predicted comparisons that people then judged."
)
# verdict value: words, style and role
VERDICTS: tuple[tuple[str, str, Role], ...] = (
    ("stable", "dots", "ref"),
    ("warning", "triangles", "warned"),
    ("drift", "triangles", "fired"),
)
LANE = 20  # pixels
MAX_SLOPE = 3.0  # larger values are drawn at the edge
Link = Callable[[date, date], str]  # first and last day -> address of their votes


def chart_alignment(
    points: Sequence[MetricPoint],
    first: date,
    last: date,
    link: Link | None = None,
    taste_changes: Mapping[date, str] | None = None,
    *,
    window_days: int | None = None,
    group: str | None = None,
    no_points: str = NO_POINTS,
) -> Chart:
    """One panel per figure over the same days; a day without a value is a gap. Lines mark days on
    which another reward model predicts than on the day before, or taste changed. `link` leads from
    a first and a last day to their votes; a calibration window has `window_days`.

    With `group`, the points are GROUP_METRICS of the group of that name; drift has none.
    `no_points` says why there are no figures.
    """
    by_name: dict[str, list[MetricPoint]] = {name: [] for name in ALIGNMENT_METRICS}
    for point in points:
        name = GROUP_METRICS.get(point.name, "") if group else point.name
        if name in by_name and point.value is not None:
            by_name[name].append(point)
    title = f"{TITLE_OF_GROUP}: {group}" if group else TITLE
    if not any(by_name.values()):
        return Chart(kind="alignment", title=title, alt=title, panels=(), notes=(no_points,))
    x = day_axis(first, last)
    changes = [
        *keep_within(x, mark_taste_changes(taste_changes or {})),
        *_mark_changes(by_name[ACCURACY]),
    ]
    of_windows = [
        _accuracy_panel(x, by_name[ACCURACY], by_name[CEILING]),
        _ece_panel(x, by_name[ECE]),
        _slope_panel(x, by_name[SLOPE]),
    ]
    of_days = _drift_panel(x, by_name[VERDICT])
    if link is not None:
        of_windows = [_link_days(panel, link, window_days or 1) for panel in of_windows]
        of_days = _link_days(of_days, link, 1)
    panels = [*of_windows, of_days]
    marked_panels = add_marks([panel for panel in panels if panel.series], changes)
    bare = {"x": x.model_copy(update={"ticks": ()})}  # the lowest panel has the days
    marked_panels[:-1] = [panel.model_copy(update=bare) for panel in marked_panels[:-1]]
    n_unknown = len({p.day for p in by_name[ACCURACY]} - {p.day for p in by_name[CEILING]})
    return Chart(
        kind="alignment",
        title=title,
        alt=f"{title}, from {first} to {last}",
        panels=tuple(marked_panels),
        notes=(
            "bands: 95% intervals",
            *(
                [f"noise ceiling unknown on {n_unknown} days: no comparison was judged twice"]
                if n_unknown
                else []
            ),
        ),
    )


def chart_accuracy(
    points: Sequence[MetricPoint],
    first: date,
    last: date,
    marks: Sequence[Mark] = (),
    window_days: int | None = None,
    link: Link | None = None,
) -> Chart:
    """The accuracy of each day beside the noise ceiling of its votes, with the mean of the last
    `window_days` days behind it, on which a change of one day hardly shows. `marks` are lines of
    changes; `link` leads from a day to its votes.
    """
    measured_points = [point for point in points if point.value is not None]
    by_name = {name: [p for p in measured_points if p.name == name] for name in ACCURACY_METRICS}
    if not measured_points:
        return Chart(
            kind="accuracy", title=TITLE_OF_DAYS, alt=TITLE_OF_DAYS, panels=(), notes=(NO_POINTS,)
        )
    x = day_axis(first, last)
    days = by_name[DAY_ACCURACY]
    ordered = sorted(days, key=lambda point: point.day)
    mean = [
        series.model_copy(update={"low": (), "high": ()})
        for series in _curves(
            by_name[ACCURACY],
            "ref",
            "mean of several days"
            if window_days is None
            else f"mean of {format_count(window_days, 'day')}",
        )
    ]
    panel = _accuracy_panel(x, days or by_name[ACCURACY], by_name[DAY_CEILING])
    accuracy_panel = panel.model_copy(
        update={
            "title": "",
            "height": 150,
            "series": (
                *_curves(by_name[DAY_CEILING], "ceiling", "noise ceiling of the day's votes"),
                *mean,
                point_series(
                    [day_value(point.day) for point in ordered],
                    [_interval(point) for point in ordered],
                    role="now",
                    name="accuracy of the day",
                ),
            ),
        }
    )
    if link is not None:
        accuracy_panel = _link_days(accuracy_panel, link, 1)
    (marked,) = add_marks(
        [accuracy_panel], [*keep_within(x, marks), *_mark_changes(days or by_name[ACCURACY])]
    )
    return Chart(
        kind="accuracy",
        title=TITLE_OF_DAYS,
        alt=f"{TITLE_OF_DAYS}, from {first} to {last}",
        panels=(marked,),
        notes=("bars and band: 95% intervals",),
    )


def _accuracy_panel(
    x: Axis, accuracy: Sequence[MetricPoint], ceiling: Sequence[MetricPoint]
) -> Panel:
    ends = [p.low if p.low is not None else p.value or 0.0 for p in (*accuracy, *ceiling)]
    low = float(max(0.0, np.floor(10 * min([0.5, *ends]) + 1e-9) / 10))
    return Panel(
        title="Accuracy on the calibration window that ends on the day",
        x=x,
        y=Axis(
            low=low,
            high=1,
            label="share predicted right",
            unit="share",
            ticks=percent_ticks(np.arange(round(10 * low), 11, 2 if low < 0.4 else 1) / 10),
        ),
        height=190,
        series=(
            *_curves(ceiling, "ceiling", "noise ceiling: accuracy of a perfect model"),
            *_curves(accuracy, "now", "accuracy"),
        ),
    )


def _ece_panel(x: Axis, ece: Sequence[MetricPoint]) -> Panel:
    low, high = min([0.0, *_ends(ece)]), max([0.1, *_ends(ece)])
    ticks = round_ticks(100 * low, 100 * high)
    return Panel(
        title="Calibration error (ECE)",
        x=x,
        y=Axis(
            low=low,
            high=high,
            label="ECE",
            unit="share",
            ticks=percent_ticks(tick.value / 100 for tick in ticks),
        ),
        height=100,
        series=_curves(ece, "now"),
    )


def _slope_panel(x: Axis, slope: Sequence[MetricPoint]) -> Panel:
    low, high = max(-1.0, min([0.0, *_ends(slope)])), min(MAX_SLOPE, max([1.5, *_ends(slope)]))
    calibrated = Mark(style="line", role="perfect", y=(1, 1), name="calibrated: slope 1")
    return Panel(
        title="Calibration slope: below 1 is overconfident",
        x=x,
        y=Axis(low=low, high=high, label="slope", ticks=round_ticks(low, high, 3)),
        height=100,
        series=_curves(slope, "now"),
        marks=(calibrated,),
    )


def _drift_panel(x: Axis, verdicts: Sequence[MetricPoint]) -> Panel:
    space_names = {point.labels["space"] for point in verdicts}
    spaces = sorted(space_names, key=lambda space: (space != "overall", space))
    lanes = {space: float(i) for i, space in enumerate(spaces)}
    return Panel(
        title="Worst verdict of the day's drift report, by space",
        x=x,
        y=Axis(
            low=len(spaces) - 0.5,
            high=-0.5,
            label="space",
            ticks=tuple(Tick(value=at, label=display_name(space)) for space, at in lanes.items()),
        ),
        height=LANE * len(spaces),
        series=tuple(
            Series(
                style=style,
                role=role,
                name=words,
                x=tuple(day_value(p.day) for p in points),
                y=tuple(lanes[p.labels["space"]] for p in points),
                n=tuple(p.n for p in points),
            )
            for value, (words, style, role) in enumerate(VERDICTS)
            if (points := [p for p in verdicts if p.value == value])
        ),
    )


def _link_days(panel: Panel, link: Link, n_days: int) -> Panel:
    """To the votes of the days that end on each day."""

    def find(x: float) -> str:
        day = to_day(x)
        return link(day - timedelta(days=n_days - 1), day)

    linked = tuple(
        series.model_copy(update={"links": tuple(find(x) for x in series.x)})
        for series in panel.series
    )
    return panel.model_copy(update={"series": linked})


def _curves(points: Sequence[MetricPoint], role: Role, name: str = "") -> tuple[Series, ...]:
    ordered = sorted(points, key=lambda point: point.day)
    days = [point.day for point in ordered]
    return day_curves(days, [_interval(point) for point in ordered], role=role, name=name)


def _interval(point: MetricPoint) -> Estimate:
    assert point.value is not None  # others are gaps
    return estimate_of(point.value, point.low, point.high, point.n)


def _ends(points: Sequence[MetricPoint]) -> list[float]:
    return [end for p in points for end in (p.value, p.low, p.high) if end is not None]


def _mark_changes(accuracy: Sequence[MetricPoint]) -> list[Mark]:
    ordered = sorted(accuracy, key=lambda point: point.day)
    return [
        Mark(
            style="line",
            role="model",
            x=(day_value(now.day),) * 2,
            label="reward model @" + now.labels["reward_model"].rpartition("@")[2],
            name="reward model changed",
        )
        for before, now in pairwise(ordered)
        if before.labels.get("reward_model") != now.labels.get("reward_model")
    ]

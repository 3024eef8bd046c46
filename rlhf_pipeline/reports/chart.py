"""Defines charts as plain records: `draw` renders them, and a browser can draw their JSON.

A chart is a grid of panels. Values keep their units; only `Series.offset` and `Panel.height` are in
pixels. Missing points are omitted: no record contains NaN.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from rlhf_pipeline.core.records import Interval, Record

# The meaning of a series or mark, which determines its colour.
Role = Literal[
    "now",
    "ref",
    "changed",
    "ceiling",
    "perfect",
    "today",
    "fired",
    "warned",
    "since",
    "model",
    "day",
    "small",
    "group1",
    "group2",
    "group3",
    "group4",
    "group5",
    "group6",
]
# for series that differ by a group, such as a source; of more groups, the rest is one group
GROUP_ROLES: tuple[Role, ...] = ("group1", "group2", "group3", "group4", "group5", "group6")
Numbers = tuple[float, ...]
Ends = tuple[float | None, ...]
EPOCH = date(1970, 1, 1).toordinal()
MAX_DAY_TICKS = 8  # more labels would overlap
CURVE_X, CURVE_Y = (0.05, 0.35, 0.65, 0.95), (0.3, 0.6, 0.45, 0.8)  # of a legend key


class BareValue(NamedTuple):
    """A value whose interval is unknown."""

    value: float
    n: int
    low: None = None
    high: None = None


Estimate = Interval | BareValue


class Tick(Record):
    """A labelled value of an axis."""

    value: float
    label: str
    strong: bool = False


class Axis(Record):
    """One direction of a panel: meaning, unit, ends and labelled values. `low` may exceed `high`,
    for example on an axis that lists names from top to bottom. On the scale `day`, values are days
    since 1970-01-01 UTC. The label across is left out where there are no ticks: a panel below has
    it.
    """

    low: float
    high: float
    label: Annotated[str, Field(min_length=1)]
    unit: str = ""
    ticks: tuple[Tick, ...] = ()
    has_grid: bool = True
    scale: Literal["number", "day"] = "number"


class Series(Record):
    """Points with their intervals. `low` and `high` are the interval ends along `along`, one per
    point, None where they are unknown, or empty.

    `name` is the legend's entry, shared by series with the same name. `width` is the width of bars,
    in units of x. `offset` shifts points by pixels, so two series do not hide each other. `n` holds
    how many measurements each point rests on, `links` where a click on it leads, `evidence` more
    words about it; all may be empty.
    """

    style: Literal["dots", "curve", "bars", "triangles", "diamonds"]
    role: Role
    x: Numbers
    y: Numbers
    name: str = ""
    low: Ends = ()
    high: Ends = ()
    along: Literal["x", "y"] = "y"
    faint: tuple[bool, ...] = ()
    labels: tuple[str, ...] = ()
    n: tuple[int, ...] = ()
    links: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    width: float = 0.0
    offset: float = 0.0

    @property
    def sample(self) -> "Series":
        """The series drawn in a legend, between 0 and 1."""
        x, y = (CURVE_X, CURVE_Y) if self.style == "curve" else ((0.5,), (0.5,))
        return Series(style=self.style, role=self.role, x=x, y=y, width=0.8)


class Mark(Record):
    """A line, band, word or clickable area that belongs to no series; without `x` or `y` it spans
    the panel in that direction.

    `label` is drawn next to it (for an area: the text for screen readers), `name` is its legend
    entry.
    """

    style: Literal["line", "band", "word", "area"]
    role: Role
    x: tuple[float, float] | None = None
    y: tuple[float, float] | None = None
    label: str = ""
    name: str = ""
    link: str = ""

    @property
    def sample(self) -> "Mark":
        """The mark drawn in a legend, between 0 and 1."""
        ends = (0.5, 0.5) if self.style == "line" else (0.1, 0.9)
        return Mark(style=self.style, role=self.role, y=ends)


class Panel(Record):
    """One pair of axes. `notes` are lines of small text below the title."""

    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    marks: tuple[Mark, ...] = ()
    title: str = ""
    notes: tuple[str, ...] = ()
    height: int = 110


class Chart(Record):
    """Panels in `columns`, row by row; None leaves a place empty.

    `kind` names charts of one shape, `alt` describes them in words, `notes` end the legend. Without
    panels, `notes` says why there is nothing to draw and what to do.
    """

    kind: str
    title: str
    alt: str
    panels: tuple[Panel | None, ...]
    columns: int = 1
    width: int = 960
    notes: tuple[str, ...] = ()

    @property
    def legend(self) -> "list[Series | Mark]":
        """One series or mark per name, in the order of the panels."""
        items_by_name: dict[str, Series | Mark] = {}
        for panel in self.panels:
            items: tuple[Series | Mark, ...] = (*panel.series, *panel.marks) if panel else ()
            for item in items:
                items_by_name.setdefault(item.name, item)
        return [item for name, item in items_by_name.items() if name]


def to_numbers(values: Iterable[Any]) -> Numbers:
    return tuple(float(value) for value in values)


def point_series(
    places: Sequence[float], intervals: Sequence[Estimate | None], *, along: str = "y", **more: Any
) -> Series:
    """Dots with intervals at `places`; no dot if the interval is None."""
    dots = [(at, i) for at, i in zip(places, intervals, strict=True) if i is not None]
    at, value = to_numbers(at for at, _ in dots), to_numbers(i.value for _, i in dots)
    return Series(
        style="dots",
        x=at if along == "y" else value,
        y=value if along == "y" else at,
        low=_to_ends(i.low for _, i in dots),
        high=_to_ends(i.high for _, i in dots),
        n=tuple(i.n for _, i in dots),
        along=along,
        **more,
    )


def day_curves(
    days: Sequence[date], intervals: Sequence[Estimate], *, links: Sequence[str] = (), **more: Any
) -> tuple[Series, ...]:
    """A curve with its band over ascending days. A missing day is a gap: each run of days is a
    series of its own, and all share the name. `links` are by day.
    """
    places = [day_value(day) for day in days]
    starts = [i for i, (a, b) in enumerate(pairwise(places), 1) if b - a > 1]
    return tuple(
        Series(
            style="curve",
            x=tuple(places[start:end]),
            y=to_numbers(i.value for i in intervals[start:end]),
            low=_to_ends(i.low for i in intervals[start:end]),
            high=_to_ends(i.high for i in intervals[start:end]),
            n=tuple(i.n for i in intervals[start:end]),
            links=tuple(links[start:end]),
            **more,
        )
        for start, end in zip([0, *starts], [*starts, len(places)], strict=True)
        if end > start
    )


def estimate_of(value: float, low: float | None, high: float | None, n: int) -> Estimate:
    if low is None or high is None:
        return BareValue(value, n)
    return Interval(value=value, low=low, high=high, n=n)


def list_ends(estimates: Iterable[Estimate | None]) -> list[float]:
    """The values and the ends of their intervals: what an axis has to hold."""
    intervals = [i for i in estimates if i is not None]
    return [end for i in intervals for end in (i.value, i.low, i.high) if end is not None]


def _to_ends(values: Iterable[float | None]) -> Ends:
    """Empty where all are unknown."""
    ends = tuple(None if value is None else float(value) for value in values)
    return ends if any(end is not None for end in ends) else ()


def day_value(day: date) -> float:
    """The place of a day on an axis of scale `day`.

    >>> day_value(date(1970, 1, 3))
    2.0
    """
    return float(day.toordinal() - EPOCH)


def to_day(value: float) -> date:
    """
    >>> to_day(day_value(date(2026, 1, 2)))
    datetime.date(2026, 1, 2)
    """
    return date.fromordinal(round(value) + EPOCH)


def day_axis(first: date, last: date, label: str = "day (UTC)", step: int = 1) -> Axis:
    """An axis of days with half a day to spare at each end. With `step`, only every so many days
    from the first one have a label: the Mondays of weeks.
    """
    low, high = day_value(first), day_value(last)
    days = range(first.toordinal(), last.toordinal() + 1, step)
    every = max(1, math.ceil(len(days) / MAX_DAY_TICKS))
    ticks = tuple(
        Tick(value=value - EPOCH, label=date.fromordinal(value).isoformat())
        for value in days[:: -every if step == 1 else every]
    )[:: -1 if step == 1 else 1]
    return Axis(
        low=low - 0.5,
        high=high + 0.5,
        label=label,
        unit="day",
        ticks=ticks,
        scale="day",
        has_grid=False,
    )


def mark_ceiling(
    ceiling: Interval | None, name: str = "", x: tuple[float, float] | None = None
) -> tuple[Mark, ...]:
    """A noise ceiling as a line in its band; empty if it is unknown."""
    if ceiling is None:
        return ()
    return (
        Mark(style="band", role="ceiling", x=x, y=(ceiling.low, ceiling.high)),
        Mark(style="line", role="ceiling", x=x, y=(ceiling.value, ceiling.value), name=name),
    )


def percent_ticks(values: Iterable[float]) -> tuple[Tick, ...]:
    return tuple(Tick(value=float(v), label=f"{100 * v:.0f}%") for v in values)


def round_ticks(low: float, high: float, n: int = 4) -> tuple[Tick, ...]:
    """About `n` round values from `low` to `high`.

    >>> [tick.label for tick in round_ticks(0.0, 1.13)]
    ['0', '0.5', '1']
    """
    raw = (high - low) / n or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999) * power
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [i * step for i in range(first, last + 1)]
    return tuple(Tick(value=v, label=f"{v:,.6g}") for v in values)


def pick_spaced(places: Sequence[float], least: float) -> list[int]:
    """Indices of the ascending places that are at least `least` apart; always includes the last
    one.

    >>> pick_spaced([0, 1, 5, 9, 10], 2)
    [1, 2, 4]
    """
    indices: list[int] = []
    for i in reversed(range(len(places))):
        if not indices or places[indices[-1]] - places[i] >= least:
            indices.append(i)
    return indices[::-1]

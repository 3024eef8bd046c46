"""Builds the charts of what people prefer, from sums of votes, by day or by group."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import cycle

from rlhf_pipeline.core.intervals import interval_of_sums
from rlhf_pipeline.core.records import (
    AGREEMENT,
    DIMENSION,
    Interval,
    RatioSums,
)
from rlhf_pipeline.reports.chart import (
    GROUP_ROLES,
    Axis,
    Chart,
    Mark,
    Panel,
    Role,
    Series,
    Tick,
    day_axis,
    day_curves,
    percent_ticks,
    point_series,
    round_ticks,
)
from rlhf_pipeline.reports.day_marks import add_marks, keep_within

NO_VOTES = "No votes match. With filters set, widen them."
INTERVALS = "95% intervals, in which votes on one comparison are not independent"
ROW = 26  # pixels of a group
SPREAD = 7  # pixels between series of one group
MAX_ROWS = 30


@dataclass(frozen=True)
class Plot:
    """One panel: means of measures with the same meaning, by the name of each in the legend."""

    title: str
    label: str
    measures: Mapping[str, str]
    is_share: bool = True
    low: float | None = None  # fixed ends of the axis; by default the data's
    high: float | None = None
    middle: float | None = None  # what no preference would give
    middle_name: str = ""
    omits_unused: bool = False  # measures that are 0 everywhere, such as choices nobody is offered


@dataclass(frozen=True)
class Figure:
    """One chart."""

    name: str
    title: str
    plots: tuple[Plot, ...]

    @property
    def measures(self) -> tuple[str, ...]:
        return tuple(name for plot in self.plots for name in plot.measures)


Sums = Mapping[str, Mapping[str, RatioSums]]  # measure -> day or group -> sums
Link = Callable[[str], str]  # day or group -> address of its votes

_LENGTH = Plot(
    "Length: share that prefers the longer completion",
    "prefer the longer one",
    {"longer": "longer completion preferred"},
    middle=0.5,
    middle_name="no preference",
)
_GAP = Plot(
    "Length: by how much the preferred completion is longer, over the longer one's length",
    "relative gap",
    {"length_gap": "mean gap; below 0 the preferred one is shorter"},
    is_share=False,
    middle=0.0,
)


def figures(dimensions: Iterable[str]) -> dict[str, Figure]:
    """The charts by name; with these dimensions of the rubric."""
    rated = Plot(
        "Dimensions: share that prefers the side rated better in it",
        "prefer the better side",
        {DIMENSION + name: name for name in sorted(dimensions)},
        middle=0.5,
        middle_name="no preference",
    )
    all_figures = (
        Figure(
            "choices",
            "What annotators choose",
            (
                Plot(
                    "Choices",
                    "share of votes",
                    {
                        "choice.a": "A preferred",
                        "choice.b": "B preferred",
                        "choice.tie": "equally good",
                        "choice.both_bad": "both bad",
                    },
                    low=0.0,
                    omits_unused=True,
                ),
                Plot(
                    "Side on the screen, where it is known",
                    "prefer the left side",
                    {"left": "left side preferred"},
                    middle=0.5,
                    middle_name="no preference",
                ),
                Plot(
                    "Skipped cards",
                    "share of cards",
                    {"choice.skip": "skipped"},
                    low=0.0,
                    omits_unused=True,
                ),
            ),
        ),
        Figure(
            "ties",
            "Ties: votes without a preferred side",
            (
                Plot(
                    "Equally good or both bad",
                    "share of votes",
                    {"undecided": "equally good or both bad"},
                    low=0.0,
                ),
            ),
        ),
        Figure(
            "strength",
            "How strongly a side is preferred",
            (
                Plot(
                    "Mean strength: 1 slight to 4 strong",
                    "strength",
                    {"strength": "mean strength"},
                    is_share=False,
                    low=1.0,
                    high=4.0,
                ),
            ),
        ),
        Figure(
            "agreement",
            "How far annotators agree",
            (
                Plot(
                    "Pairs of a day's votes on one comparison with the same choice",
                    "share of pairs",
                    {AGREEMENT: "same choice"},
                ),
            ),
        ),
        Figure("preferred", "What is preferred", (_LENGTH, _GAP, rated)),
    )
    return {figure.name: figure for figure in all_figures}


def chart_by_day(
    figure: Figure,
    sums: Sums,
    first: date,
    last: date,
    *,
    notes: Sequence[str] = (),
    marks: Sequence[Mark] = (),
    link: Link | None = None,
) -> Chart:
    """Each measure as a curve over days; a day without votes is a gap. `marks` are lines at days;
    `link` leads from a day to its votes.
    """
    x = day_axis(first, last)
    panels = [
        _day_panel(plot, plot_sums, x, roles, link)
        for plot, plot_sums, roles in _list_plots(figure, sums)
    ]
    marked_panels = add_marks([panel for panel in panels if panel.series], keep_within(x, marks))
    bare = {"x": x.model_copy(update={"ticks": ()})}  # the lowest panel has the days
    marked_panels[:-1] = [panel.model_copy(update=bare) for panel in marked_panels[:-1]]
    return _build_chart(figure, f"{figure.title}, by day", marked_panels, notes)


def chart_by_group(
    figure: Figure,
    by: str,
    sums: Sums,
    withheld: Mapping[str, str],
    notes: Sequence[str] = (),
    link: Link | None = None,
) -> Chart:
    """Each measure as dots, a row for each group, those with the most votes first. `withheld` says
    in words which groups are too small; they get a row without dots.
    """
    n_votes: dict[str, float] = dict.fromkeys(withheld, 0.0)
    for measure in figure.measures:
        for name, group_sum in sums.get(measure, {}).items():
            n_votes[name] = max(n_votes.get(name, 0.0), group_sum.n)
    names = sorted(n_votes, key=lambda name: (name in withheld, -n_votes[name], name))
    if len(names) > MAX_ROWS:
        notes = [*notes, f"{len(names) - MAX_ROWS} smaller ones are left out"]
        names = names[:MAX_ROWS]
    panels = [
        _group_panel(plot, plot_sums, (names, by, withheld), roles, link)
        for plot, plot_sums, roles in _list_plots(figure, sums)
    ]
    filled_panels = [panel for panel in panels if panel.series]
    if not filled_panels and withheld:
        notes = [*notes, *(f"{name}: {why}" for name, why in sorted(withheld.items()))]
    return _build_chart(figure, f"{figure.title}, by {by}", filled_panels, notes)


def _build_chart(
    figure: Figure, title: str, panels: Sequence[Panel], notes: Sequence[str]
) -> Chart:
    return Chart(
        kind=f"preferences-{figure.name}",
        title=title,
        alt=title,
        panels=tuple(panels),
        notes=(INTERVALS, *notes) if panels else tuple(notes) or (NO_VOTES,),
    )


def _select(plot: Plot, sums: Sums) -> Sums:
    return {
        name: sums[name]
        for name in plot.measures
        if sums.get(name)
        and not (
            plot.omits_unused and all(group_sum.total <= 0 for group_sum in sums[name].values())
        )
    }


def _list_plots(figure: Figure, sums: Sums) -> list[tuple[Plot, Sums, list[Role]]]:
    """The plots with their sums, and a role for each series: the legend is one for all panels."""
    plots = [(plot, _select(plot, sums)) for plot in figure.plots]
    if sum(len(plot_sums) for _, plot_sums in plots) == 1:
        return [(plot, plot_sums, ["now"] * len(plot_sums)) for plot, plot_sums in plots]
    roles = cycle(GROUP_ROLES)
    return [(plot, plot_sums, [next(roles) for _ in plot_sums]) for plot, plot_sums in plots]


def _day_panel(plot: Plot, sums: Sums, x: Axis, roles: Sequence[Role], link: Link | None) -> Panel:
    series: list[Series] = []
    ends: list[Interval] = []
    for (measure, by_day), role in zip(sums.items(), roles, strict=True):
        intervals = sorted(
            (day, i) for day, day_sum in by_day.items() if (i := _interval(plot, day_sum))
        )
        ends += [interval for _, interval in intervals]
        series += day_curves(
            [date.fromisoformat(day) for day, _ in intervals],
            [interval for _, interval in intervals],
            links=[link(day) for day, _ in intervals] if link else (),
            role=role,
            name=plot.measures[measure],
        )
    return Panel(
        title=plot.title,
        x=x,
        y=_axis(plot, ends),
        height=190,
        series=tuple(series),
        marks=_middle(plot, along="y"),
    )


def _group_panel(
    plot: Plot,
    sums: Sums,
    groups: tuple[Sequence[str], str, Mapping[str, str]],
    roles: Sequence[Role],
    link: Link | None,
) -> Panel:
    """`groups` are their names, what they are, and why some are withheld."""
    names, by, withheld = groups
    series: list[Series] = []
    ends: list[Interval] = []
    places = [float(i) for i in range(len(names))]
    for i, ((measure, by_group), role) in enumerate(zip(sums.items(), roles, strict=True)):
        intervals = [
            _interval(plot, by_group[name]) if name in by_group and name not in withheld else None
            for name in names
        ]
        ends += [interval for interval in intervals if interval]
        links = [
            link(name) for name, interval in zip(names, intervals, strict=True) if link and interval
        ]
        if any(intervals):
            series.append(
                point_series(
                    places,
                    intervals,
                    along="x",
                    role=role,
                    name=plot.measures[measure],
                    links=tuple(links),
                    offset=SPREAD * (i - (len(sums) - 1) / 2),
                )
            )
    axis = _axis(plot, ends)
    small = tuple(
        Mark(style="word", role="small", y=(place, place), label=withheld[name])
        for place, name in zip(places, names, strict=True)
        if name in withheld
    )
    return Panel(
        title=plot.title,
        x=axis,
        y=Axis(
            low=len(names) - 0.5,
            high=-0.5,
            label=by,
            ticks=tuple(Tick(value=at, label=name) for at, name in zip(places, names, strict=True)),
        ),
        height=max(ROW, SPREAD * (len(sums) + 1)) * len(names),
        series=tuple(series),
        marks=(*_middle(plot, along="x"), *small),
    )


def _interval(plot: Plot, sums: RatioSums) -> Interval | None:
    return interval_of_sums(sums, of_shares=plot.is_share)


def _middle(plot: Plot, *, along: str) -> tuple[Mark, ...]:
    if plot.middle is None:
        return ()
    at = (plot.middle, plot.middle)
    place = {"y": at} if along == "y" else {"x": at}
    return (Mark(style="line", role="perfect", name=plot.middle_name, **place),)


def _axis(plot: Plot, intervals: Sequence[Interval]) -> Axis:
    if plot.low is not None and plot.high is not None:
        ticks = round_ticks(plot.low, plot.high)
        return Axis(low=plot.low, high=plot.high, label=plot.label, ticks=ticks)
    values = [end for i in intervals for end in (i.low, i.high)]
    values += [end for end in (plot.low, plot.middle) if end is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if not plot.is_share:
        room = 0.05 * (high - low) + 0.01
        low, high = low - room, high + room
        return Axis(low=low, high=high, label=plot.label, ticks=round_ticks(low, high))
    tens = math.floor(low * 10 + 1e-9), max(1, math.ceil(high * 10 - 1e-9))
    step = 1 if tens[1] - tens[0] <= 6 else 2
    ticks = percent_ticks(n / 10 for n in range(tens[0], tens[1] + 1, step))
    return Axis(low=tens[0] / 10, high=tens[1] / 10, label=plot.label, unit="share", ticks=ticks)

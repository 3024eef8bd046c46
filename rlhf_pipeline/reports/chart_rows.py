"""Lists the numbers behind a chart, and renders them as an HTML table."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from markupsafe import Markup

from rlhf_pipeline.reports.chart import Axis, Chart, Mark, Panel, Series, to_day
from rlhf_pipeline.reports.rendering import render_part

Cell = str | float
Write = Callable[[float, Axis], Cell]


class ChartRow(NamedTuple):
    """A point, or a change that is marked: then `series` has its words. Empty where unknown."""

    panel: str
    series: str
    x: Cell
    y: Cell
    low: Cell = ""
    high: Cell = ""
    n: Cell = ""
    evidence: str = ""
    link: str = ""


def render_table(chart: Chart) -> Markup:
    """An HTML table of the columns that have values."""
    rows = list(list_rows(chart, write_words))
    panels = [panel for panel in chart.panels if panel]
    heads = {
        "panel": "Panel" if len(panels) > 1 else "",
        "series": "Series",
        "x": panels[-1].x.label if panels else "",
        "y": panels[0].y.label if len(panels) == 1 else "value",
        "low": "95% low",
        "high": "95% high",
        "n": "n",
        "evidence": "Evidence",
    }
    used_heads = {
        name: head
        for name, head in heads.items()
        if head and any(getattr(row, name) != "" for row in rows)
    }
    return render_part("chart_table.html", title=chart.title, heads=used_heads, rows=rows)


def list_rows(chart: Chart, write: Write) -> Iterator[ChartRow]:
    """The points of all panels, then the marks beside them, those of several panels once. `write`
    formats a value of an axis.
    """
    panels = [panel for panel in chart.panels if panel]
    for panel in panels:
        for series in panel.series:
            for i in range(len(series.x)):
                yield _point_row(panel, series, i, write)
    places = set()
    for panel in panels:
        for mark in panel.marks:
            is_change = mark.x is not None and mark.y is None
            is_shown = mark.label or (mark.name and is_change)
            place = mark.name, mark.x, mark.y
            if is_shown and mark.style != "area" and place not in places:
                places.add(place)
                yield _mark_row("" if is_change else _title(panel), panel, mark, write)


def write_words(value: float, axis: Axis) -> str:
    """
    >>> write_words(0.7, Axis(low=0, high=1, label="accuracy", unit="share"))
    '70.0%'
    """
    exact = write_exactly(value, axis)
    if isinstance(exact, str):
        return exact
    if axis.unit == "share":
        return f"{value:.1%}"
    if axis.unit == "version":
        return f"version {value:g}"
    return f"{f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'} {axis.unit}".strip()


def write_exactly(value: float, axis: Axis) -> Cell:
    """A day, the name at a place of an axis that lists names, or the number.

    >>> write_exactly(2.0, Axis(low=0, high=9, label="day", scale="day"))
    '1970-01-03'
    """
    if axis.scale == "day":
        return to_day(value).isoformat()
    has_names = axis.unit != "share" and any(t.label.strip("-+.,0123456789%") for t in axis.ticks)
    name = next((tick.label for tick in axis.ticks if tick.value == value), "") if has_names else ""
    return name or (int(value) if value.is_integer() else value)


def _point_row(panel: Panel, series: Series, i: int, write: Write) -> ChartRow:
    value_axis = panel.x if series.along == "x" else panel.y
    low, high = (ends[i] if ends else None for ends in (series.low, series.high))
    return ChartRow(
        _title(panel),
        series.name,
        write(series.x[i], panel.x),
        write(series.y[i], panel.y),
        "" if low is None else write(low, value_axis),
        "" if high is None else write(high, value_axis),
        series.n[i] if series.n else "",
        series.evidence[i] if series.evidence else "",
        series.links[i] if series.links else "",
    )


def _mark_row(title: str, panel: Panel, mark: Mark, write: Write) -> ChartRow:
    x, y = (
        " to ".join(dict.fromkeys(str(write(end, axis)) for end in ends or ()))
        for ends, axis in ((mark.x, panel.x), (mark.y, panel.y))
    )
    return ChartRow(title, ": ".join(filter(None, (mark.name, mark.label))), x, y)


def _title(panel: Panel) -> str:
    return panel.title or panel.y.label

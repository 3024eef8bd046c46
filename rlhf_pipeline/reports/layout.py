"""Places the parts of a chart in pixels: axes, points, marks and legend become simple shapes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Literal

from rlhf_pipeline.reports.chart import Axis, Chart, Mark, Panel, Series

Point = tuple[float, float]

CHARACTER = 7.2  # pixels of an average character of 13 px
LINE = 19  # pixels between lines of text
RIGHT = 28  # margin
KEY = 18  # side of a legend's key
DOT_RADIUS = 4.5


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels; a value beyond an end is placed at that end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


@dataclass(frozen=True)
class Shape:
    """What a painter can draw. `paint` is its CSS classes, and a key of `draw.PAINTS`."""

    form: Literal["line", "polygon", "dot", "text", "target"]
    paint: str
    points: tuple[Point, ...]
    words: str = ""
    anchor: Literal["start", "middle", "end"] = "start"
    link: str = ""


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Shape, ...]
    width: float
    height: float


def lay_out(chart: Chart) -> Drawing:
    """The panels without title and legend, which a page writes as text."""
    rows = [
        chart.panels[start : start + chart.columns]
        for start in range(0, len(chart.panels), chart.columns)
    ]
    columns = [chart.panels[start :: chart.columns] for start in range(chart.columns)]
    labels = [[tick.label for p in column if p for tick in p.y.ticks] for column in columns]
    margins = [18 + CHARACTER * max(map(len, column), default=0) for column in labels]
    cell, top = chart.width / chart.columns, 4.0
    shapes: list[Shape] = []
    for row in rows:
        panels = [panel for panel in row if panel is not None]
        top += LINE * max(len(_header(panel)) for panel in panels) + 6
        bottom = top + max(panel.height for panel in panels)
        for column, panel in enumerate(row):
            if panel is None:
                continue
            left, right = column * cell + margins[column], (column + 1) * cell - RIGHT
            x = Scale(panel.x.low, panel.x.high, left, right)
            shapes += _draw_panel(panel, x, Scale(panel.y.low, panel.y.high, bottom, top))
        top = bottom + LINE * max(bool(p.x.ticks) + bool(p.x.label) for p in panels) + 8
    return Drawing(tuple(shapes), chart.width, top)


def lay_out_with_words(chart: Chart) -> Drawing:
    """The panels between title and legend, for a picture that stands alone."""
    drawing = lay_out(chart)
    n_characters = int(chart.width / CHARACTER)
    title = wrap(chart.title, n_characters - 2)
    down = LINE * len(title) + 6
    shapes = [
        Shape("text", "title", ((chart.width / 2, LINE * (i + 1)),), line, "middle")
        for i, line in enumerate(title)
    ]
    shapes += [_move(shape, 0, down) for shape in drawing.shapes]
    x, y = 16.0, down + drawing.height + LINE
    entries = [
        *((legend_key(entry.style, entry.role), entry.name) for entry in chart.legend),
        *(((), note) for note in chart.notes),
    ]
    for key, words in entries:
        if x > 16 and x + 30 + CHARACTER * len(words) > chart.width:
            x, y = 16.0, y + LINE
        shapes += [_move(shape, x, y - 14) for shape in key]
        beside = x + 24 if key else x
        for i, line in enumerate(wrap(words, n_characters - 8)):
            y += LINE if i else 0
            shapes.append(Shape("text", "", ((beside, y),), line))
        x = beside + CHARACTER * len(words) + 24
    return Drawing(tuple(shapes), chart.width, y + 12)


def legend_key(style: str, role: str) -> tuple[Shape, ...]:
    """The shape of a series or mark, KEY pixels wide and high."""
    match style:
        case "dots":
            return (Shape("dot", f"dot {role}", ((9, 9),)),)
        case "triangles":
            return (Shape("polygon", role, _triangle(9, 9)),)
        case "line" if role in {"now", "ref"}:
            return (Shape("line", f"curve {role}", ((1, 12), (7, 7), (12, 10), (17, 4))),)
        case "line":
            return (Shape("line", role, ((0, 9), (18, 9))),)
    paint = f"bar {role}" if style == "bars" else role
    return (Shape("polygon", paint, _rectangle(2, 16, 2, 16)),)


def _header(panel: Panel) -> list[tuple[str, str]]:
    title = panel.title or panel.y.label
    return [*([(title, "strong")] if title else []), *((note, "small") for note in panel.notes)]


def _draw_panel(panel: Panel, x: Scale, y: Scale) -> Iterator[Shape]:
    for i, (words, paint) in enumerate(_header(panel)):
        yield Shape(
            "text", paint, ((x.start, y.end - 8 - LINE * (len(_header(panel)) - 1 - i)),), words
        )
    bands = [mark for mark in panel.marks if mark.style == "band"]
    others = [mark for mark in panel.marks if mark.style != "band"]
    for mark in bands:
        yield from _draw_mark(mark, x, y)
    yield from _draw_axes(panel.x, panel.y, x, y)
    for mark in others:
        yield from _draw_mark(mark, x, y)
    for series in panel.series:
        yield from _SERIES[series.style](series, x, y)


def _draw_axes(across: Axis, up: Axis, x: Scale, y: Scale) -> Iterator[Shape]:
    for tick in up.ticks:
        at = y(tick.value)
        if up.has_grid:
            yield Shape("line", "grid", ((x.start, at), (x.end, at)))
        if tick.label:
            yield Shape("text", "", ((x.start - 8, at + 4),), tick.label, "end")
    for tick in across.ticks:
        at = x(tick.value)
        if across.has_grid:
            yield Shape("line", "grid", ((at, y.start), (at, y.end)))
        yield Shape(
            "text",
            "strong" if tick.strong else "",
            ((at, y.start + LINE),),
            tick.label,
            "middle",
        )
    if across.label:
        below = y.start + LINE * (1 + bool(across.ticks))
        yield Shape("text", "", (((x.start + x.end) / 2, below),), across.label, "middle")


def _draw_mark(mark: Mark, x: Scale, y: Scale) -> Iterator[Shape]:
    left, right = (x.start, x.end) if mark.x is None else (x(mark.x[0]), x(mark.x[1]))
    low, high = (y.start, y.end) if mark.y is None else (y(mark.y[0]), y(mark.y[1]))
    if mark.style == "line":
        yield Shape("line", mark.role, ((left, low), (right, high)))
        if mark.label and left > (x.start + x.end) / 2:
            yield Shape("text", "small", ((left - 4, high + 12),), mark.label, "end")
        elif mark.label:
            yield Shape("text", "small", ((left + 4, high + 12),), mark.label)
    elif mark.style == "word":
        yield Shape(
            "text", mark.role, (((left + right) / 2, (low + high) / 2),), mark.label, "middle"
        )
    else:
        area = _rectangle(left, max(right, left + 1), min(high, low - 1), low)
        if mark.style == "area":
            yield Shape("target", "hit", area, mark.label, link=mark.link)
        else:
            yield Shape("polygon", f"{mark.role}-band", area)


def _draw_dots(series: Series, x: Scale, y: Scale) -> Iterator[Shape]:
    across = series.along == "x"
    for i, (at_x, at_y) in enumerate(zip(series.x, series.y, strict=True)):
        left = x(at_x) + (0 if across else series.offset)
        up = y(at_y) + (series.offset if across else 0)
        few = " few" if series.faint and series.faint[i] else ""
        if series.low:
            ends = (
                ((x(series.low[i]), up), (x(series.high[i]), up))
                if across
                else ((left, y(series.low[i])), (left, y(series.high[i])))
            )
            yield Shape("line", f"whisker {series.role}{few}", ends)
        yield Shape("dot", f"dot {series.role}{few}", ((left, up),))


def _draw_line(series: Series, x: Scale, y: Scale) -> Iterator[Shape]:
    if series.low:
        upper = tuple((x(at), y(end)) for at, end in zip(series.x, series.high, strict=True))
        lower = tuple((x(at), y(end)) for at, end in zip(series.x, series.low, strict=True))
        yield Shape("polygon", "band", upper + lower[::-1])
    points = tuple((x(at), y(value)) for at, value in zip(series.x, series.y, strict=True))
    yield Shape("line", f"curve {series.role}", points)


def _draw_bars(series: Series, x: Scale, y: Scale) -> Iterator[Shape]:
    yield Shape("line", "axis", ((x.start, y.start), (x.end, y.start)))
    half = abs(x(x.low + series.width) - x(x.low)) / 2
    for i, (at, value) in enumerate(zip(series.x, series.y, strict=True)):
        middle = x(at) + series.offset
        area = _rectangle(round(middle - half, 1), round(middle + half, 1), y(value), y.start)
        yield Shape("polygon", f"bar {series.role}", area)
        if series.labels:
            yield Shape("text", "small", ((middle, y(value) - 4),), series.labels[i], "middle")


def _draw_triangles(series: Series, x: Scale, y: Scale) -> Iterator[Shape]:
    for at, value in zip(series.x, series.y, strict=True):
        yield Shape("polygon", series.role, _triangle(x(at), y(value)))


_SERIES = {
    "dots": _draw_dots,
    "line": _draw_line,
    "bars": _draw_bars,
    "triangles": _draw_triangles,
}


def _triangle(x: float, y: float) -> tuple[Point, ...]:
    return (x, y - 6), (x + 6, y + 5), (x - 6, y + 5)


def _rectangle(left: float, right: float, top: float, bottom: float) -> tuple[Point, ...]:
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _move(shape: Shape, right: float, down: float) -> Shape:
    return replace(shape, points=tuple((x + right, y + down) for x, y in shape.points))

"""Lays out a chart in pixels: axes, points, marks and legend become simple shapes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, Literal

from rlhf_pipeline.reports.chart import Axis, Chart, Mark, Panel, Series

Point = tuple[float, float]

CHARACTER = 7.2  # pixels of an average character of 13 px
LINE = 19  # pixels between lines of text
RIGHT = 28  # margin
KEY = 18  # side length of a legend key
DOT_RADIUS = 4.5


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels; a value beyond an end maps to that end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


@dataclass(frozen=True)
class Shape:
    """A primitive shape for a painter. `paint` holds its CSS classes, and is a key of
    `draw.PAINTS`.
    """

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
    """Lay out the panels without title and legend, which the page renders as text."""
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
        top = bottom + LINE * max(2 * bool(p.x.ticks) for p in panels) + 8
    return Drawing(tuple(shapes), chart.width, top)


def lay_out_with_words(chart: Chart) -> Drawing:
    """Lay out the panels with title and legend, for a standalone picture."""
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
        *((legend_key(item), item.name) for item in chart.legend),
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


def legend_key(item: Series | Mark) -> tuple[Shape, ...]:
    """The key of a series or mark, KEY pixels wide and high."""
    return tuple(_DRAW[item.style](item.sample, Scale(0, 1, 0, KEY), Scale(0, 1, KEY, 0)))


def _header(panel: Panel) -> list[tuple[str, str]]:
    title = panel.title or panel.y.label
    return [*([(title, "strong")] if title else []), *((note, "small") for note in panel.notes)]


def _draw_panel(panel: Panel, x: Scale, y: Scale) -> Iterator[Shape]:
    for i, (words, paint) in enumerate(_header(panel)):
        yield Shape(
            "text", paint, ((x.start, y.end - 8 - LINE * (len(_header(panel)) - 1 - i)),), words
        )
    items: tuple[Series | Mark, ...] = (*panel.marks, *panel.series)
    for is_behind in (True, False):
        for item in items:
            if (item.style == "band") == is_behind:
                yield from _DRAW[item.style](item, x, y)
        if is_behind:
            yield from _draw_axes(panel.x, panel.y, x, y)


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
    if across.ticks:
        below = y.start + 2 * LINE
        yield Shape("text", "", (((x.start + x.end) / 2, below),), across.label, "middle")


def _span(mark: Mark, x: Scale, y: Scale) -> tuple[float, float, float, float]:
    """Left, right, low and high end of a mark."""
    left, right = (x.start, x.end) if mark.x is None else (x(mark.x[0]), x(mark.x[1]))
    low, high = (y.start, y.end) if mark.y is None else (y(mark.y[0]), y(mark.y[1]))
    return left, right, low, high


def _draw_line(mark: Mark, x: Scale, y: Scale) -> Iterator[Shape]:
    left, right, low, high = _span(mark, x, y)
    yield Shape("line", mark.role, ((left, low), (right, high)))
    if mark.label:
        is_right = left > (x.start + x.end) / 2
        beside = (left - 4 if is_right else left + 4, high + 12)
        yield Shape("text", "small", (beside,), mark.label, "end" if is_right else "start")


def _draw_word(mark: Mark, x: Scale, y: Scale) -> Iterator[Shape]:
    left, right, low, high = _span(mark, x, y)
    middle = (left + right) / 2, (low + high) / 2
    yield Shape("text", mark.role, (middle,), mark.label, "middle")


def _draw_band(mark: Mark, x: Scale, y: Scale) -> Iterator[Shape]:
    left, right, low, high = _span(mark, x, y)
    area = _rectangle(left, max(right, left + 1), min(high, low - 1), low)
    yield Shape("polygon", f"{mark.role}-band", area)


def _draw_area(mark: Mark, x: Scale, y: Scale) -> Iterator[Shape]:
    left, right, low, high = _span(mark, x, y)
    yield Shape("target", "hit", _rectangle(left, right, high, low), mark.label, link=mark.link)


def _draw_dots(series: Series, x: Scale, y: Scale) -> Iterator[Shape]:
    across = series.along == "x"
    for i, (at_x, at_y) in enumerate(zip(series.x, series.y, strict=True)):
        left = x(at_x) + (0 if across else series.offset)
        up = y(at_y) + (series.offset if across else 0)
        few = " few" if series.faint and series.faint[i] else ""
        low, high = (series.low[i], series.high[i]) if series.low else (None, None)
        if low is not None and high is not None:
            ends = ((x(low), up), (x(high), up)) if across else ((left, y(low)), (left, y(high)))
            yield Shape("line", f"whisker {series.role}{few}", ends)
        if series.style == "triangles":
            triangle = (left, up - 6), (left + 6, up + 5), (left - 6, up + 5)
            yield Shape("polygon", series.role, triangle)
        elif series.style == "diamonds":
            diamond = (left, up - 6), (left + 6, up), (left, up + 6), (left - 6, up)
            yield Shape("polygon", f"diamond {series.role}", diamond)
        else:
            yield Shape("dot", f"dot {series.role}{few}", ((left, up),))


def _draw_curve(series: Series, x: Scale, y: Scale) -> Iterator[Shape]:
    if series.low:
        upper, lower = (
            tuple(
                (x(at), y(value if end is None else end))
                for at, value, end in zip(series.x, series.y, ends, strict=True)
            )
            for ends in (series.high, series.low)
        )
        paint = "band" if series.role in ("now", "ref") else f"band {series.role}"
        yield Shape("polygon", paint, upper + lower[::-1])
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


_DRAW: dict[str, Callable[[Any, Scale, Scale], Iterator[Shape]]] = {
    "dots": _draw_dots,
    "curve": _draw_curve,
    "bars": _draw_bars,
    "triangles": _draw_dots,
    "diamonds": _draw_dots,
    "line": _draw_line,
    "band": _draw_band,
    "word": _draw_word,
    "area": _draw_area,
}


def _rectangle(left: float, right: float, top: float, bottom: float) -> tuple[Point, ...]:
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _move(shape: Shape, right: float, down: float) -> Shape:
    return replace(shape, points=tuple((x + right, y + down) for x, y in shape.points))

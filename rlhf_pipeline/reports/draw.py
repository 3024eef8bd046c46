"""Draws a chart as SVG for pages, styled by CSS classes, or as PNG for Dagster and MLflow."""

from io import BytesIO
from typing import Any

from markupsafe import Markup

from rlhf_pipeline.reports.chart import GROUP_ROLES, Chart
from rlhf_pipeline.reports.layout import DOT_RADIUS, Shape, lay_out, lay_out_with_words, legend_key
from rlhf_pipeline.reports.rendering import render_part, replace_unprintable

# name: colour on a light and on a dark background
COLOURS = {
    "paper": ("#ffffff", "#0f1419"),
    "ink": ("#1b1f24", "#e6edf3"),
    "muted": ("#57606a", "#9da7b3"),
    "rule": ("#d8dee4", "#313a45"),
    "ref": ("#6e7781", "#a3adb8"),
    "now": ("#0b62c4", "#58a6ff"),
    "ceiling": ("#1a7f37", "#56d364"),
    "bad": ("#a40e26", "#ffa198"),
    "warn": ("#7a4b00", "#f2cc60"),
    "warn-on": ("#fff1c2", "#3b2e05"),
    "group1": ("#0b62c4", "#58a6ff"),
    "group2": ("#b0491b", "#f5a273"),
    "group3": ("#1a7f37", "#56d364"),
    "group4": ("#8250df", "#c8a8ff"),
    "group5": ("#a40e26", "#ffa198"),
    "group6": ("#57606a", "#9da7b3"),
}
# Classes of a shape -> CSS properties, which `_paint` also reads.
PAINTS: dict[str, dict[str, Any]] = {
    "paper": {"fill": "paper"},
    "grid": {"stroke": "rule"},
    "day": {"stroke": "rule"},
    "axis": {"stroke": "muted"},
    "perfect": {"stroke": "muted", "stroke-dasharray": "5 4"},
    "model": {"stroke": "muted", "stroke-width": 1.5, "stroke-dasharray": "7 3 2 3"},
    "band": {"fill": "now", "opacity": 0.17},
    "curve now": {"stroke": "now", "stroke-width": 2.2},
    "curve ref": {"stroke": "now", "opacity": 0.4},
    "ceiling": {"stroke": "ceiling", "stroke-width": 1.5, "stroke-dasharray": "6 4"},
    "ceiling-band": {"fill": "ceiling", "opacity": 0.12},
    "today-band": {"fill": "warn-on", "opacity": 0.75},
    "fired": {"fill": "bad"},
    "warned": {"fill": "none", "stroke": "warn", "stroke-width": 1.6},
    "diamond now": {"fill": "now"},
    "since": {"stroke": "bad", "stroke-width": 2},
    "whisker ref": {"stroke": "ref", "stroke-width": 2},
    "whisker now": {"stroke": "now", "stroke-width": 2},
    "whisker changed": {"stroke": "bad", "stroke-width": 2},
    "dot ref": {"fill": "paper", "stroke": "ref", "stroke-width": 2},
    "dot now": {"fill": "now", "stroke": "now", "stroke-width": 2},
    "dot small": {"fill": "muted", "stroke": "muted", "stroke-width": 2},
    "dot changed": {"fill": "bad", "stroke": "bad", "stroke-width": 2},
    "bar ref": {"fill": "ref"},
    "bar now": {"fill": "now"},
}
for _group in GROUP_ROLES:
    PAINTS |= {
        f"band {_group}": {"fill": _group, "opacity": 0.12},
        f"curve {_group}": {"stroke": _group, "stroke-width": 2.2},
        f"whisker {_group}": {"stroke": _group, "stroke-width": 2},
        f"dot {_group}": {"fill": _group, "stroke": _group, "stroke-width": 2},
        f"bar {_group}": {"fill": _group},
    }
PAINTS |= {
    "band ceiling": {"fill": "ceiling", "opacity": 0.12},
    "curve ceiling": {"stroke": "ceiling", "stroke-width": 1.5, "stroke-dasharray": "6 4"},
    "whisker ceiling": {"stroke": "ceiling", "stroke-width": 2},
    "dot ceiling": {"fill": "ceiling", "stroke": "ceiling", "stroke-width": 2},
}
FAINT = 0.45  # opacity of points based on little data
SIZES = {"title": 15, "small": 11.5}  # pixels; other text is 13
PNG_SCALE = 1.1  # makes a chart of 960 pixels as wide as the dialog in which Dagster shows it


def draw_svg(chart: Chart) -> Markup:
    """Draw the panels as an `<svg>` element; the page adds title and legend."""
    return render_part("chart.svg", chart=chart, drawing=lay_out(chart))


def draw_legend(chart: Chart) -> Markup:
    """Draw the legend as a list; each entry has its key."""
    keys = [(item.name, legend_key(item)) for item in chart.legend]
    return render_part("legend.html", keys=keys, notes=chart.notes)


def draw_png(chart: Chart) -> bytes:
    """Draw a picture with title and legend; the same chart gives the same bytes."""
    # The bare renderer: figures and axes cost five times as much for hundreds of shapes.
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.image import imsave

    drawing = lay_out_with_words(chart)
    width, height = round(drawing.width * PNG_SCALE), round(drawing.height * PNG_SCALE)
    renderer = RendererAgg(width, height, 72 * PNG_SCALE)
    ground = ((0, 0), (drawing.width, 0), (drawing.width, drawing.height), (0, drawing.height))
    for shape in (Shape("polygon", "paper", ground), *drawing.shapes):
        if shape.form != "target":
            _paint(renderer, height, shape)
    png = BytesIO()
    no_version: dict[str, Any] = {"Software": None}
    imsave(png, renderer.buffer_rgba(), format="png", metadata=no_version)
    return png.getvalue()


def chart_css() -> str:
    """The style sheet of `draw_svg` and `draw_legend`, light and dark."""
    light, dark = (
        " ".join(f"--{name}: {pair[theme]};" for name, pair in COLOURS.items()) for theme in (0, 1)
    )
    rules = [
        f"svg .{classes.replace(' ', '.')} {{ "
        + " ".join(
            f"{name}: {f'var(--{value})' if value in COLOURS else value};"
            for name, value in {"fill": "none", **paint}.items()
        )
        + " }"
        for classes, paint in PAINTS.items()
    ]
    return "\n".join(
        [
            f":root {{ {light} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
            *rules,
            f"svg .few {{ opacity: {FAINT}; }}",
        ]
    )


def _paint(renderer: Any, height: int, shape: Shape) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    if shape.form == "text":
        _paint_text(renderer, shape)
        return
    classes = shape.paint.removesuffix(" few")
    paint = PAINTS[classes]
    alpha = paint.get("opacity", 1.0) * (1 if classes == shape.paint else FAINT)
    stroke, fill = (
        to_rgba(COLOURS[name][0], alpha) if name in COLOURS else None
        for name in (paint.get("stroke"), paint.get("fill"))
    )
    pen = renderer.new_gc()
    pen.set_foreground(stroke or fill, isRGBA=True)
    pen.set_linewidth(paint.get("stroke-width", 1.0) if stroke else 0)
    pen.set_dashes(0, [float(part) for part in paint.get("stroke-dasharray", "").split()] or None)
    # matplotlib counts pixels from the bottom
    place = Affine2D().scale(PNG_SCALE, -PNG_SCALE).translate(0, height)
    match shape.form:
        case "dot":
            dot = Affine2D().scale(DOT_RADIUS).translate(*shape.points[0])
            renderer.draw_path(pen, Path.unit_circle(), dot + place, fill)
        case "polygon":
            outline = Path([*shape.points, shape.points[0]], closed=True)
            renderer.draw_path(pen, outline, place, fill)
        case "line":
            renderer.draw_path(pen, Path(shape.points), place)


def _paint_text(renderer: Any, shape: Shape) -> None:
    from matplotlib.font_manager import FontProperties

    is_strong = shape.paint in {"strong", "title"}
    font = FontProperties(
        family="DejaVu Sans",
        size=SIZES.get(shape.paint, 13) * 0.94,
        weight="bold" if is_strong else "normal",
    )
    pen = renderer.new_gc()
    pen.set_foreground(COLOURS["ink" if is_strong else "muted"][0])
    words = replace_unprintable(shape.words.replace("\n", " "))
    width = renderer.get_text_width_height_descent(words, font, ismath=False)[0]
    x, y = (PNG_SCALE * value for value in shape.points[0])
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[shape.anchor]
    renderer.draw_text(pen, left, y, words, font, 0, ismath=False)

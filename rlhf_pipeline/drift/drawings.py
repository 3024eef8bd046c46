"""The three pictures of the day's page as SVG elements. Knows numbers to draw; knows no page and no
colour but class names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import numpy as np
import pandas as pd

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.clusters import Cluster
from rlhf_pipeline.drift.markup import Child, make_element
from rlhf_pipeline.drift.page_text import display_name
from rlhf_pipeline.drift.reliability import MIN_IN_BIN
from rlhf_pipeline.drift.stream import StreamWarning
from rlhf_pipeline.intervals import wilson_bounds
from rlhf_pipeline.records import DriftEvent, Interval, ReliabilityBin

TRAILING = 100  # votes of the moving error rate
MAX_VOTES, MAX_POINTS = 20_000, 600  # more votes are not drawn, more points are not seen
LABEL_WIDTH = 60  # of a day's label


@dataclass(frozen=True)
class AxisScale:
    """From values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


def draw_timeline(
    errors: pd.DataFrame,
    events: Sequence[DriftEvent],
    warnings: Sequence[StreamWarning],
    *,
    day: str,
    noise_ceiling: Interval | None,
) -> Element:
    """Trailing error rate in vote order with its 95 % band (the votes taken one by one), a lane of
    signals for each detector above it.

    `errors`: seq, day, error in any order, not empty. Of a longer stream the last MAX_VOTES are
    drawn.
    """
    rows = errors.sort_values("seq", ignore_index=True).iloc[-MAX_VOTES:]
    trailing = rows["error"].astype(float).rolling(TRAILING, min_periods=min(30, TRAILING))
    mean, n = trailing.mean(), trailing.count()
    low, upper = wilson_bounds(mean, n)
    lanes = [*DETECTORS, "calibration"]
    top = 40 + 22 * len(lanes)
    high = float(np.ceil(max(0.5, np.nanmax(upper.fillna(0))) * 10) / 10)
    x, y = (
        AxisScale(rows["seq"].min(), rows["seq"].max(), 90, 945),
        AxisScale(0, high, top + 210, top),
    )
    drawn = np.unique(np.linspace(0, len(rows) - 1, min(MAX_POINTS, len(rows))).astype(int))
    drawn = drawn[mean.iloc[drawn].notna().to_numpy()]
    first = int(rows["seq"].min())
    return svg(
        (960, top + 262),
        f"Error rate over the last {TRAILING} votes, in vote order, and what the detectors said",
        _draw_days(rows, x, day, top),
        _draw_y_grid(y, np.arange(0, high + 0.01, 0.1), 90, 945),
        _draw_ceiling(noise_ceiling, y),
        _draw_curve(
            [
                (x(rows["seq"].iloc[i]), y(mean.iloc[i]), y(upper.iloc[i]), y(low.iloc[i]))
                for i in drawn
            ]
        ),
        [
            mark
            for i, name in enumerate(lanes)
            for mark in _draw_lane(
                name,
                30 + 22 * i,
                [e for e in events if e.seq >= first],
                [w for w in warnings if w.seq >= first],
                x,
            )
        ],
        text(
            (90 + 945) / 2, top + 254, f"vote seq {first:,} to {int(rows['seq'].max()):,}", "middle"
        ),
    )


def draw_cluster_changes(clusters: Sequence[Cluster]) -> Element:
    """Share and error rate of each cluster, reference and day, with intervals."""
    height = 34 * len(clusters)
    shares = [i for c in clusters for i in (c.share_reference, c.share_current)]
    errors = [i for c in clusters for i in (c.error_reference, c.error_current) if i is not None]
    left = AxisScale(0, _axis_end(shares), 60, 455)
    right = AxisScale(0, _axis_end(errors), 535, 945)
    parts: list[Element] = []
    for i, cluster in enumerate(clusters):
        middle = 52 + 34 * i
        parts += [
            make_element("line", x1=20, x2=945, y1=middle + 17, y2=middle + 17, class_="grid"),
            text(30, middle + 5, cluster.name, "middle", "strong"),
            *_draw_pair(
                cluster.share_reference,
                cluster.share_current,
                left,
                middle,
                cluster.change != "steady",
            ),
            *_draw_pair(
                cluster.error_reference, cluster.error_current, right, middle, cluster.is_worse
            ),
        ]
        if cluster.error_current is None:
            parts.append(text(540, middle + 14, "today: too few", "start", "small"))
    return svg(
        (960, height + 80),
        "Share of the prompts and error rate of each cluster, in the reference and on the day",
        text(60, 20, "share of the prompts", "start", "strong"),
        text(535, 20, "error rate", "start", "strong"),
        _draw_x_grid(left, height + 36),
        _draw_x_grid(right, height + 36),
        parts,
    )


def draw_reliability(
    reference: Sequence[ReliabilityBin],
    current: Sequence[ReliabilityBin],
    *,
    noise_ceiling: Interval | None = None,
) -> Element:
    """Stated confidence against the share that was right. Bins of few rows are hollow and faint:
    they say little.
    """
    x, y = AxisScale(0.5, 1, 60, 600), AxisScale(0, 1, 330, 20)
    most = max([b.n for b in (*reference, *current)], default=1)
    bars = AxisScale(0, most, 0, 60)
    return svg(
        (640, 470),
        "Stated confidence against the share predicted right, in the reference and on the day",
        _draw_y_grid(y, np.arange(0, 1.01, 0.2), 60, 600),
        make_element("line", x1=x(0.5), y1=y(0.5), x2=x(1), y2=y(1), class_="perfect"),
        text(x(0.93), y(0.955), "perfect", "end", "small"),
        []
        if noise_ceiling is None
        else _draw_band(noise_ceiling.value, noise_ceiling.low, noise_ceiling.high, y, 60, 600),
        [mark for b in reference for mark in _draw_bin(b, x, y, "ref", -4)],
        [mark for b in current for mark in _draw_bin(b, x, y, "now", 4)],
        [
            make_element(
                "rect",
                x=x((b.low + b.high) / 2) + shift,
                y=420 - bars(b.n),
                width=9,
                height=bars(b.n),
                class_=f"bar {kind}",
            )
            for bins, kind, shift in ((reference, "ref", -10), (current, "now", 1))
            for b in bins
        ],
        make_element("line", x1=60, x2=600, y1=420, y2=420, class_="axis"),
        [text(x(v), 438, f"{100 * v:.0f} %", "middle") for v in np.arange(0.5, 1.01, 0.1)],
        text(330, 462, "stated confidence in the side predicted; bars: how many", "middle"),
    )


def legend_mark(kind: str) -> Element:
    """The mark of a series, to stand in a legend."""
    shapes = {
        "curve": make_element("path", d="M1 12 L7 7 L12 10 L17 4", class_="curve"),
        "ceiling": make_element("line", x1=0, x2=18, y1=9, y2=9, class_="ceiling"),
        "today": make_element("rect", x=2, y=2, width=14, height=14, class_="today swatch"),
        "fired": make_element("path", d="M9 3 l6 11 h-12 Z", class_="fired"),
        "warned": make_element("path", d="M9 3 l6 11 h-12 Z", class_="warned"),
    }
    shape = shapes.get(kind, make_element("circle", cx=9, cy=9, r=5))
    return make_element(
        "svg",
        shape,
        class_=f"key {kind}" if kind not in shapes else "key",
        viewBox="0 0 18 18",
        aria_hidden="true",
    )


def svg(size: tuple[int, float], label: str, *children: Child) -> Element:
    return make_element(
        "svg",
        *children,
        class_="narrow" if size[0] < 800 else None,
        viewBox=f"0 0 {size[0]} {size[1]:g}",
        role="img",
        aria_label=label,
    )


def text(
    x: float, y: float, words: str, anchor: str = "start", class_: str | None = None
) -> Element:
    return make_element("text", words, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, class_=class_)


def _draw_curve(points: Sequence[tuple[float, float, float, float]]) -> list[Element]:
    if not points:
        return [text(517, 220, "fewer than 30 votes: no rate is drawn yet", "middle")]
    band = [f"{x},{high}" for x, _, high, _ in points] + [
        f"{x},{low}" for x, _, _, low in reversed(points)
    ]
    line = " ".join(f"{x},{y}" for x, y, _, _ in points)
    return [
        make_element("polygon", points=" ".join(band), class_="band"),
        make_element("polyline", points=line, class_="curve"),
    ]


def _draw_ceiling(noise_ceiling: Interval | None, y: AxisScale) -> list[Element]:
    if noise_ceiling is None:
        return []
    return _draw_band(
        1 - noise_ceiling.value, 1 - noise_ceiling.high, 1 - noise_ceiling.low, y, 90, 945
    )


def _draw_band(
    value: float, low: float, high: float, y: AxisScale, left: int, right: int
) -> list[Element]:
    top, bottom = y(high), y(low)
    return [
        make_element(
            "rect",
            x=left,
            width=right - left,
            y=top,
            height=max(1.0, round(bottom - top, 1)),
            class_="ceiling-band",
        ),
        make_element("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="ceiling"),
    ]


def _draw_days(rows: pd.DataFrame, x: AxisScale, day: str, top: int) -> list[Element]:
    """A line and a label where a day's votes begin; the day of the page is shaded."""
    spans = (
        rows.groupby(rows["day"].astype(str))["seq"]
        .quantile([0.0, 0.5, 1.0])
        .unstack()
        .sort_values(0.5)
    )
    places = [x(middle) for middle in spans[0.5]]
    labelled = [place for name, place in zip(spans.index, places, strict=True) if name == day]
    made: list[Element] = []
    for name, place, low, high in zip(spans.index, places, spans[0.0], spans[1.0], strict=True):
        if name == day:
            made.append(
                make_element(
                    "rect",
                    x=x(low),
                    width=max(2.0, round(x(high) - x(low), 1)),
                    y=14,
                    height=top + 196,
                    class_="today",
                )
            )
        made.append(make_element("line", x1=x(low), x2=x(low), y1=14, y2=top + 210, class_="grid"))
        if name == day or all(abs(place - other) >= LABEL_WIDTH for other in labelled):
            labelled.append(place)
            made.append(
                text(place, top + 230, str(name)[5:], "middle", "strong" if name == day else None)
            )
    return made


def _draw_lane(
    name: str,
    middle: float,
    events: Sequence[DriftEvent],
    warnings: Sequence[StreamWarning],
    x: AxisScale,
) -> list[Element]:
    mine = [
        e
        for e in events
        if (
            e.kind == "calibration"
            if name == "calibration"
            else e.kind == "drift" and e.detector == name
        )
    ]
    made = [
        make_element("line", x1=90, x2=945, y1=middle, y2=middle, class_="grid"),
        text(82, middle + 4, display_name(name), "end"),
    ]
    for warning in warnings:
        if warning.detector == name:
            made.append(
                make_element("path", d=_triangle_path(x(warning.seq), middle), class_="warned")
            )
    for event in mine:
        begin = x(event.change_seq or event.seq)
        made += [
            make_element("line", x1=begin, x2=x(event.seq), y1=middle, y2=middle, class_="since"),
            make_element("path", d=_triangle_path(x(event.seq), middle), class_="fired"),
        ]
    return made


def _triangle_path(x: float, y: float) -> str:
    return f"M{x:g} {y - 6:g} l6 11 h-12 Z"


def _draw_y_grid(y: AxisScale, values: Iterable[float], left: float, right: float) -> list[Element]:
    made: list[Element] = []
    for value in values:
        made.append(
            make_element("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid")
        )
        made.append(text(left - 8, y(value) + 4, f"{100 * value:.0f} %", "end"))
    return made


def _draw_x_grid(x: AxisScale, y: float) -> list[Element]:
    step = 0.1 if x.high <= 0.5 else 0.2
    values = np.arange(0, x.high + 0.01, step)
    lines = [make_element("line", x1=x(v), x2=x(v), y1=34, y2=y, class_="grid") for v in values]
    return [*lines, *(text(x(v), y + 18, f"{100 * v:.0f} %", "middle") for v in values)]


def _axis_end(intervals: Iterable[Interval]) -> float:
    return float(np.ceil(max([i.high for i in intervals], default=0.5) * 10) / 10)


def _draw_pair(
    reference: Interval | None,
    current: Interval | None,
    x: AxisScale,
    middle: float,
    is_changed: bool,
) -> list[Element]:
    made: list[Element] = []
    for interval, kind, y in (
        (reference, "ref", middle - 5),
        (current, "now changed" if is_changed else "now", middle + 6),
    ):
        if interval is not None:
            made += [
                make_element(
                    "line",
                    x1=x(interval.low),
                    x2=x(interval.high),
                    y1=y,
                    y2=y,
                    class_=f"whisker {kind}",
                ),
                make_element("circle", cx=x(interval.value), cy=y, r=5, class_=f"dot {kind}"),
            ]
    return made


def _draw_bin(
    b: ReliabilityBin, x: AxisScale, y: AxisScale, kind: str, shift: float
) -> list[Element]:
    faint = " few" if b.n < MIN_IN_BIN else ""
    at = x(b.mean_confidence) + shift
    return [
        make_element(
            "line",
            x1=at,
            x2=at,
            y1=y(b.accuracy_low),
            y2=y(b.accuracy_high),
            class_=f"whisker {kind}{faint}",
        ),
        make_element("circle", cx=at, cy=y(b.accuracy), r=5, class_=f"dot {kind}{faint}"),
    ]

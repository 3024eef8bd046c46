"""Calibration over time on the day's page: a picture with counts, and the same as a table. Knows
windows; knows neither page nor storage.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from xml.etree.ElementTree import Element

import numpy as np

from rlhf_pipeline.calibration.calibration_windows import new_models
from rlhf_pipeline.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.drift.drawings import LABEL_WIDTH, AxisScale, svg, text
from rlhf_pipeline.drift.markup import Child, make_element, make_table
from rlhf_pipeline.drift.page_parts import make_figure, make_legend
from rlhf_pipeline.drift.page_text import missing_note
from rlhf_pipeline.records import CalibrationWindow, Interval

COIN_BRIER = 0.25  # Brier score of a coin
BRIER = "Brier score; dashed: a coin"
LEFT, RIGHT, TOP, HEIGHT, BETWEEN = 90, 945, 34, 110, 34
BARS = 60


def render_calibration_over_time(windows: Sequence[CalibrationWindow] | str) -> Iterable[Element]:
    """The windows up to the day, the oldest first, or in words why they are left out."""
    if isinstance(windows, str) or not any(window.n_votes for window in windows):
        yield missing_note(
            windows
            if isinstance(windows, str)
            else "No vote has met a prediction in the windows up to this day."
        )
        return
    length = _n_days(windows[-1])
    of = (
        "Each day by itself"
        if length == 1
        else f"Each point is a day with the {length - 1} before it, so that neighbours share votes"
    )
    yield make_element(
        "p",
        f"{of}. All predictions count as they were served, whichever model made them, and were "
        "made before their votes. A vote that comes in late changes the windows that hold its day, "
        "and no other.",
    )
    yield make_figure(
        _draw_panels(windows),
        make_legend(
            ("now", "of the window"),
            ("ceiling", "noise ceiling of its votes"),
            ("today", "window of this day"),
            intervals=True,
        ),
    )
    yield make_table(
        "Calibration over time, the latest first",
        [
            "Window up to",
            "Votes",
            "Share predicted right",
            "Noise ceiling",
            "ECE without its noise",
            "Brier score",
            "Reward model",
        ],
        [_window_cells(window) for window in reversed(windows)],
        numeric=range(1, 6),
    )
    yield make_element(
        "p",
        f"95 % intervals, drawn over prompts. Of fewer than {MIN_PAIRS} comparisons no figure is "
        f"given: it would be read as knowledge. A Brier score of {COIN_BRIER} is a coin's.",
        class_="note",
    )


def _window_cells(window: CalibrationWindow) -> list[Child]:
    counts: Child = [
        f"{window.n_votes:,}",
        make_element("small", f"on {window.n_comparisons:,} comparisons"),
    ]
    if window.brier is None:
        words = "nothing was judged" if window.n_votes == 0 else "too few"
        figures: list[Child] = [words, *["–"] * 3]
    else:
        figures = [
            _figure_cell(i)
            for i in (window.accuracy, window.noise_ceiling, window.ece, window.brier)
        ]
    # The project's name is the page's.
    models: Child = [
        make_element("span", label.rpartition(".")[2], class_="line")
        for label in window.reward_models
    ]
    return [
        make_element("span", window.day, class_="line"),
        counts,
        *figures,
        models if window.reward_models else "–",
    ]


def _figure_cell(interval: Interval | None) -> Child:
    """Its interval below it: seven columns fit a page."""
    if interval is None:
        return "unknown"
    beside = str(interval).rpartition("]")[2]
    return [
        f"{interval.value:.3f}",
        make_element("small", f"{interval.low:.3f} to {interval.high:.3f}"),
        make_element("small", beside.strip()) if beside else None,
    ]


def _draw_panels(windows: Sequence[CalibrationWindow]) -> Element:
    """Panels under one another over the same days: predicted right beside its ceiling, ECE, Brier,
    how many votes.
    """
    x = AxisScale(-0.5, len(windows) - 0.5, LEFT, RIGHT)
    panels: list[tuple[str, Callable[[CalibrationWindow], Interval | None], float, float]] = [
        ("share predicted right", lambda w: w.accuracy, _axis_start(windows), 1.0),
        ("ECE without its noise", lambda w: w.ece, 0.0, _axis_end([w.ece for w in windows], 0.1)),
        (BRIER, lambda w: w.brier, 0.0, _axis_end([w.brier for w in windows], COIN_BRIER)),
    ]
    bottom = TOP + len(panels) * (HEIGHT + BETWEEN)
    half = (RIGHT - LEFT) / len(windows) / 2
    parts: list[Element] = [
        make_element(
            "rect",
            x=round(x(len(windows) - 1) - half, 1),
            width=round(2 * half, 1),
            y=TOP - 8,
            height=bottom + BARS - TOP + 8,
            class_="today",
        )
    ]
    for row, (name, of, low, high) in enumerate(panels):
        top = TOP + row * (HEIGHT + BETWEEN)
        y = AxisScale(low, high, top + HEIGHT, top)
        parts += [text(LEFT, top - 10, name, "start", "strong"), *_draw_grid(y)]
        if row == 0:
            parts += [
                mark
                for i, w in enumerate(windows)
                for mark in _draw_ceiling(w.noise_ceiling, x(i), half, y)
            ]
        if name == BRIER:
            parts += [
                make_element(
                    "line", x1=LEFT, x2=RIGHT, y1=y(COIN_BRIER), y2=y(COIN_BRIER), class_="perfect"
                ),
            ]
        parts += [mark for i, w in enumerate(windows) for mark in _draw_whisker(of(w), x(i), y)]
    return svg(
        (960, bottom + BARS + 46),
        "Share predicted right beside the noise ceiling, ECE, Brier score and number of votes, "
        "window by window",
        parts,
        _draw_counts(windows, x, half, bottom),
        _draw_model_changes(windows, x, half, bottom + BARS),
        _draw_labels(windows, x, bottom + BARS + 18),
        text((LEFT + RIGHT) / 2, bottom + BARS + 40, "last day of the window", "middle"),
    )


def _draw_whisker(interval: Interval | None, x: float, y: AxisScale) -> list[Element]:
    if interval is None:
        return []
    return [
        make_element(
            "line", x1=x, x2=x, y1=y(interval.low), y2=y(interval.high), class_="whisker now"
        ),
        make_element("circle", cx=x, cy=y(interval.value), r=4, class_="dot now"),
    ]


def _draw_ceiling(interval: Interval | None, x: float, half: float, y: AxisScale) -> list[Element]:
    if interval is None:
        return []
    left, top, bottom = round(x - half, 1), y(interval.high), y(interval.low)
    return [
        make_element(
            "rect",
            x=left,
            width=round(2 * half, 1),
            y=top,
            height=max(1.0, round(bottom - top, 1)),
            class_="ceiling-band",
        ),
        make_element(
            "line",
            x1=left,
            x2=round(x + half, 1),
            y1=y(interval.value),
            y2=y(interval.value),
            class_="ceiling",
        ),
    ]


def _draw_grid(y: AxisScale) -> list[Element]:
    made: list[Element] = []
    for value in np.linspace(y.low, y.high, 3):
        made += [
            make_element("line", x1=LEFT, x2=RIGHT, y1=y(value), y2=y(value), class_="grid"),
            text(LEFT - 8, y(value) + 4, f"{value:.3g}", "end"),
        ]
    return made


def _draw_counts(
    windows: Sequence[CalibrationWindow], x: AxisScale, half: float, top: float
) -> list[Element]:
    most = max(window.n_votes for window in windows)
    height = AxisScale(0, most, 0, BARS)
    bars = [
        make_element(
            "rect",
            x=round(x(i) - 0.7 * half, 1),
            width=round(1.4 * half, 1),
            y=top + BARS - height(w.n_votes),
            height=height(w.n_votes),
            class_="bar now",
        )
        for i, w in enumerate(windows)
    ]
    base = make_element("line", x1=LEFT, x2=RIGHT, y1=top + BARS, y2=top + BARS, class_="axis")
    return [
        text(LEFT, top - 10, "votes", "start", "strong"),
        text(LEFT - 8, top + 10, f"{most:,}", "end"),
        base,
        *bars,
    ]


def _draw_model_changes(
    windows: Sequence[CalibrationWindow], x: AxisScale, half: float, bottom: float
) -> list[Element]:
    """A line before the first window in which a new reward model was judged."""
    made: list[Element] = []
    for i, label in new_models(windows):
        at = round(x(i) - half, 1)
        anchor, beside = ("end", at - 4) if at > (LEFT + RIGHT) / 2 else ("start", at + 4)
        made += [
            make_element("line", x1=at, x2=at, y1=TOP - 8, y2=bottom, class_="perfect"),
            text(beside, TOP - 20, f"{label} from here", anchor, "small"),
        ]
    return made


def _draw_labels(windows: Sequence[CalibrationWindow], x: AxisScale, y: float) -> list[Element]:
    """Month and day, as many as can be read, the report's own among them."""
    step, last = int(np.ceil(LABEL_WIDTH * len(windows) / (RIGHT - LEFT))), len(windows) - 1
    return [
        text(x(i), y, window.day[5:], "middle", "strong" if i == last else None)
        for i, window in enumerate(windows)
        if (last - i) % step == 0
    ]


def _axis_start(windows: Sequence[CalibrationWindow]) -> float:
    """Where the axis of shares begins: at a half, or below where an interval does."""
    lows = [i.low for w in windows for i in (w.accuracy, w.noise_ceiling) if i is not None]
    return float(np.floor(min([0.5, *lows]) * 10) / 10)


def _axis_end(intervals: Sequence[Interval | None], least: float) -> float:
    return float(np.ceil(max([least, *(i.high for i in intervals if i is not None)]) * 20) / 20)


def _n_days(window: CalibrationWindow) -> int:
    return (date.fromisoformat(window.day) - date.fromisoformat(window.first_day)).days + 1

"""Where the marks of a reliability diagram and of ECE over time stand, in the units of their SVG.
Knows numbers; templates draw.

Styles come from the style sheet, because the policy for content allows none in the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_pipeline.api_types.predictions import CalibrationOut
from rlhf_pipeline.records import Interval, ReliabilityBin


@dataclass(frozen=True)
class DiagramScale:
    """From values to places on the drawing; what lies beyond an end is drawn there."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)


@dataclass(frozen=True)
class Tick:
    at: float
    words: str


@dataclass(frozen=True)
class IntervalMark:
    """A value with its interval: a dot and a whisker."""

    x: float
    y: float
    top: float
    bottom: float


@dataclass(frozen=True)
class DrawnBin:
    """One bin: all of its column is to be clicked. `middle` is its stated confidence in an address,
    `words` what somebody hears who cannot see it."""

    bin: ReliabilityBin
    left: float
    width: float
    mark: IntervalMark
    middle: str
    words: str


@dataclass(frozen=True)
class Diagram:
    """Stated confidence against the share that was right, and the noise ceiling across it."""

    bins: list[DrawnBin]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    ceiling: IntervalMark | None
    width: int = 480
    height: int = 372
    left: int = 50
    right: int = 456
    top: int = 12
    bottom: int = 300


def build_diagram(bins: Sequence[ReliabilityBin], ceiling: Interval | None) -> Diagram:
    shape = Diagram([], [], [], None)
    x, y = (
        DiagramScale(0.5, 1, shape.left, shape.right),
        DiagramScale(0, 1, shape.bottom, shape.top),
    )

    def draw_bin(b: ReliabilityBin) -> DrawnBin:
        mark = IntervalMark(
            x(b.mean_confidence), y(b.accuracy), y(b.accuracy_high), y(b.accuracy_low)
        )
        words = (
            f"confidence {b.low:.0%} to {b.high:.0%}: {b.n:,} {'vote' if b.n == 1 else 'votes'}, "
            f"{b.mean_confidence:.1%} stated, {b.accuracy:.1%} right ({b.accuracy_low:.1%} to "
            f"{b.accuracy_high:.1%})"
        )
        return DrawnBin(
            b,
            x(b.low),
            round(x(b.high) - x(b.low), 1),
            mark,
            f"{(b.low + b.high) / 2:.4f}".rstrip("0"),
            words,
        )

    return Diagram(
        bins=[draw_bin(b) for b in bins],
        x_ticks=[Tick(x(value), f"{value:.0%}") for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)],
        y_ticks=[Tick(y(value), f"{value:.0%}") for value in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)],
        ceiling=None
        if ceiling is None
        else IntervalMark(shape.left, y(ceiling.value), y(ceiling.high), y(ceiling.low)),
    )


@dataclass(frozen=True)
class Step:
    """ECE before and after one calibration."""

    entry: CalibrationOut
    before: IntervalMark
    after: IntervalMark


@dataclass(frozen=True)
class Steps:
    """ECE of calibrators in the order of their fitting, bins of equal weight: what every entry of
    the log has.
    """

    steps: list[Step]
    y_ticks: list[Tick]
    line: str
    width: int = 480
    height: int = 190
    left: int = 50
    right: int = 470
    top: int = 10
    bottom: int = 176


def build_steps(entries: Sequence[CalibrationOut]) -> Steps:
    """`entries` oldest first."""
    shape = Steps([], [], "")
    most = max(
        (end.high for entry in entries for end in (entry.ece_raw, entry.ece_calibrated)),
        default=0.1,
    )
    high = next((step for step in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8) if step >= most), 1.0)
    y = DiagramScale(0, high, shape.bottom, shape.top)
    x = DiagramScale(-0.5, max(len(entries) - 0.5, 0.5), shape.left, shape.right)
    shift = min(4.0, (x(1) - x(0)) / 4)

    def draw_mark(i: int, ece: Interval, shift: float) -> IntervalMark:
        return IntervalMark(round(x(i) + shift, 1), y(ece.value), y(ece.high), y(ece.low))

    made = [
        Step(entry, draw_mark(i, entry.ece_raw, -shift), draw_mark(i, entry.ece_calibrated, shift))
        for i, entry in enumerate(entries)
    ]
    return Steps(
        steps=made,
        y_ticks=[Tick(y(high * part / 2), f"{high * part / 2:.3g}") for part in (0, 1, 2)],
        line=" ".join(f"{step.after.x},{step.after.y}" for step in made),
    )

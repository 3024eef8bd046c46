"""Builds charts of a training's curves."""

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.reports.chart import Axis, Chart, Panel, Series, round_ticks, to_numbers

Curve = Sequence[tuple[int, float]]
SMOOTHING_SHARE = 0.1  # share of the points in one running mean


def chart_loss(loss: Curve, *, title: str, others: Mapping[str, Curve] | None = None) -> Chart:
    """The loss by optimiser step, as logged and smoothed, and below it each of `others` (name ->
    (step, value) pairs). Raises NotEnoughData without a step.
    """
    if not loss:
        raise NotEnoughData("No step was logged: there is no loss curve to draw.")
    curves = {"loss": loss, **{name: curve for name, curve in (others or {}).items() if curve}}
    steps = [step for curve in curves.values() for step, _ in curve]
    ends = min(steps), max(*steps, min(steps) + 1)
    names = list(curves)
    return Chart(
        kind="training",
        title=title,
        alt=f"{', '.join(names)} by optimiser step, as logged and smoothed",
        width=770,
        panels=tuple(
            Panel(
                x=Axis(
                    low=ends[0],
                    high=ends[1],
                    label="optimiser steps",
                    unit="steps",
                    ticks=round_ticks(*ends, 6) if name == names[-1] else (),
                    has_grid=False,
                ),
                y=_value_axis(name, [value for _, value in curve]),
                series=_curve_series(curve),
                height=190,
            )
            for name, curve in curves.items()
        ),
    )


def _curve_series(curve: Curve) -> tuple[Series, Series]:
    steps, values = zip(*curve, strict=True)
    width = max(1, round(len(values) * SMOOTHING_SHARE))
    smooth = [float(np.mean(values[max(0, i - width + 1) : i + 1])) for i in range(len(values))]
    x = to_numbers(steps)
    return (
        Series(style="curve", role="ref", name="as logged", x=x, y=to_numbers(values)),
        Series(
            style="curve", role="now", name=f"mean of the last {width}", x=x, y=to_numbers(smooth)
        ),
    )


def _value_axis(name: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or 0.5
    ends = low - margin, high + margin
    return Axis(low=ends[0], high=ends[1], label=name, ticks=round_ticks(*ends))

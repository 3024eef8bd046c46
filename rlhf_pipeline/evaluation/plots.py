"""Pictures of a training and an evaluation as PNG bytes. Knows numbers by step; knows no
trainer.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_pipeline.errors import NotEnoughData

Curve = Sequence[tuple[int, float]]
SMOOTHING_SHARE = 0.1  # share of the points in one running mean


def draw_loss_curve(loss: Curve, *, title: str, others: Mapping[str, Curve] | None = None) -> bytes:
    """The loss by optimiser step, as logged and smoothed, and below it each of `others` (name ->
    (step, value) pairs).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not loss:
        raise NotEnoughData("No step was logged: there is no loss curve to draw.")
    curves = {"loss": loss, **{name: curve for name, curve in (others or {}).items() if curve}}
    figure = Figure(figsize=(7, 1.2 + 2.2 * len(curves)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, curve) in zip(axes, curves.items(), strict=True):
        _draw_curve(ax, name, curve)
    axes[0].set_title(title)
    axes[-1].set_xlabel("optimiser step")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110, metadata={"Software": None})
    return image.getvalue()


def _draw_curve(ax: Any, name: str, curve: Curve) -> None:
    steps, values = [step for step, _ in curve], [value for _, value in curve]
    width = max(1, round(len(values) * SMOOTHING_SHARE))
    smooth = [
        sum(values[max(0, i - width + 1) : i + 1]) / len(values[max(0, i - width + 1) : i + 1])
        for i in range(len(values))
    ]
    ax.plot(steps, values, color="#9db7d5", linewidth=1, label="as logged")
    ax.plot(steps, smooth, color="#1f4e8c", linewidth=2, label=f"mean of the last {width}")
    ax.set_ylabel(name)
    ax.grid(alpha=0.3)
    ax.legend(loc="best", fontsize="small", frameon=False)

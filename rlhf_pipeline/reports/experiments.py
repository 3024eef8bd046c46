"""Builds the chart of an experiment: the interval of its primary metric over sessions."""

from collections.abc import Sequence

from rlhf_pipeline.core.experiments import Experiment
from rlhf_pipeline.reports.chart import Axis, Chart, Mark, Panel, Series, round_ticks

UNITS = {"rating": "stars", "latency": "seconds", "cost": "in your currency"}
NOTHING = "The interval begins with sessions that have the primary metric."


def chart_experiment(
    experiment: Experiment, n: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> Chart:
    """Both ends of the interval after `n` sessions; empty sequences before the first one."""
    metric = experiment.success_metric
    title = f"Treatment minus control in {metric}"
    chart = Chart(
        kind="experiment",
        title=title,
        alt=f"{title}, with the 95% interval after each number of sessions",
        panels=(),
        notes=(NOTHING,),
    )
    if not len(n):
        return chart
    unit = UNITS.get(metric, "points")
    scale = 100.0 if unit == "points" else 1.0
    lows, highs = ([scale * end for end in ends] for ends in (low, high))
    # the first sessions say next to nothing: the axis leaves their ends out
    late = len(n) // 3
    least, most = min(0.0, *lows[late:]), max(0.0, *highs[late:])
    spare = 0.1 * (most - least) or 1.0
    axis = Axis(
        low=least - spare,
        high=most + spare,
        label="difference",
        unit=unit,
        ticks=round_ticks(least - spare, most + spare),
    )
    lows = [max(end, axis.low) for end in lows]
    highs = [min(end, axis.high) for end in highs]
    curve = Series(
        style="curve",
        role="now",
        x=tuple(n),
        y=tuple((a + b) / 2 for a, b in zip(lows, highs, strict=True)),
        low=tuple(lows),
        high=tuple(highs),
        n=tuple(int(number) for number in n),
        name="middle of the 95% interval",
    )
    panel = Panel(
        x=Axis(
            low=0,
            high=max(n) * 1.02,
            label="sessions with the metric",
            ticks=round_ticks(0, max(n)),
            has_grid=False,
        ),
        y=axis,
        height=170,
        series=(curve,),
        marks=(Mark(style="line", role="ref", y=(0.0, 0.0), name="no difference"),),
    )
    return chart.model_copy(
        update={"panels": (panel,), "notes": ("the interval holds at every look",)}
    )

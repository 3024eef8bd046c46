"""Builds the chart of models in production: quality, cost and more, by day and model."""

from collections.abc import Sequence
from datetime import date

from rlhf_pipeline.core.metric_catalogue import METRICS, PRODUCTION
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.reports.chart import (
    GROUP_ROLES,
    Axis,
    Chart,
    Estimate,
    Panel,
    Role,
    Series,
    day_axis,
    day_curves,
    estimate_of,
    list_ends,
    percent_ticks,
    round_ticks,
)
from rlhf_pipeline.reports.words import name_models

TITLE = "Models in production, by day"
NO_FIGURES = (
    "No figures of these days. Applications send them with POST /api/v1/metrics/production."
)


def chart_production(points: Sequence[MetricPoint], first: date, last: date) -> Chart:
    """One panel per metric with a curve per model; a day without a figure is a gap. Of more than
    six models, the six with the newest figures are drawn.
    """
    measured_points = [point for point in points if point.value is not None]
    newest: dict[str, date] = {}
    for point in measured_points:
        model = point.labels["model"]
        newest[model] = max(point.day, newest.get(model, point.day))
    models = sorted(newest, key=lambda model: (newest[model], model))[-len(GROUP_ROLES) :]
    roles = dict(zip(sorted(models), GROUP_ROLES, strict=False))
    x = day_axis(first, last)
    panels = [
        _panel(name, [point for point in measured_points if point.name == name], roles, x)
        for name in PRODUCTION
    ]
    filled_panels = [panel for panel in panels if panel.series]
    bare = {"x": x.model_copy(update={"ticks": ()})}  # the lowest panel has the days
    filled_panels[:-1] = [panel.model_copy(update=bare) for panel in filled_panels[:-1]]
    n_left_out = len(newest) - len(models)
    notes = [f"{n_left_out} older models are left out"] if n_left_out else []
    return Chart(
        kind="production",
        title=TITLE,
        alt=f"{TITLE}, from {first} to {last}",
        panels=tuple(filled_panels),
        notes=("95% intervals where they are known", *notes) if filled_panels else (NO_FIGURES,),
    )


def _panel(name: str, points: Sequence[MetricPoint], roles: dict[str, Role], x: Axis) -> Panel:
    series: list[Series] = []
    ends: list[float] = []
    for model, role in roles.items():
        model_points = sorted(
            (p for p in points if p.labels["model"] == model), key=lambda p: p.day
        )
        intervals = [_interval(point) for point in model_points]
        ends += list_ends(intervals)
        series += day_curves(
            [point.day for point in model_points], intervals, role=role, name=name_models(model)
        )
    return Panel(
        title=_describe(name),
        x=x,
        y=_axis(name, ends),
        height=130,
        series=tuple(series),
    )


def _describe(name: str) -> str:
    words, unit = METRICS[name].description.rstrip("."), _unit(name)
    return words if unit == "share" else f"{words} ({unit})"


def _unit(name: str) -> str:
    """As it follows a number."""
    unit = METRICS[name].unit
    return "in your currency" if unit == "currency" else unit


def _interval(point: MetricPoint) -> Estimate:
    assert point.value is not None  # others are gaps
    return estimate_of(point.value, point.low, point.high, point.n)


def _axis(name: str, ends: Sequence[float]) -> Axis:
    label = name.partition(".")[2].replace("_", " ")
    high = max(ends, default=1.0) * 1.05 or 1.0
    if _unit(name) != "share":
        ticks = round_ticks(0.0, high)
        return Axis(low=0, high=high, label=label, unit=_unit(name), ticks=ticks)
    high = min(1.0, high)
    ticks = percent_ticks(tick.value / 100 for tick in round_ticks(0.0, 100 * high))
    return Axis(low=0, high=high, label=label, unit="share", ticks=ticks)

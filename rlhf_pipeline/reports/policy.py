"""Builds the chart of the deployed policy by day: mean reward, refusals, length."""

from collections.abc import Sequence

import numpy as np

from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.core.records import Interval, PolicyDay, PromptMean
from rlhf_pipeline.reports.calibration import INTERVALS, MAX_WINDOW_LABELS
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Tick,
    pick_spaced,
    point_series,
    round_ticks,
)

Z = 1.96  # of a 95% interval


def policy_interval(mean: PromptMean | None) -> Interval | None:
    """The mean with its 95% interval over prompts."""
    if mean is None:
        return None
    half = Z * float(np.sqrt(mean.variance / mean.n))
    return Interval(value=mean.mean, low=mean.mean - half, high=mean.mean + half, n=mean.n)


def refusal_interval(day: PolicyDay) -> Interval:
    """The share of refusals; of none, too, it is not certain that it is 0."""
    return interval_of_share(day.refused.mean, day.refused.n)


def chart_policy(days: Sequence[PolicyDay]) -> Chart:
    """Three panels by day, oldest first, with lines where policy or reward model changed."""
    places, n = range(len(days)), len(days)
    x = Axis(low=-0.5, high=n - 0.5, label="day of the prompts", unit="day", has_grid=False)
    ticks = tuple(
        Tick(value=i, label=days[i].day[5:], strong=i == n - 1)
        for i in pick_spaced(places, -(-n // MAX_WINDOW_LABELS))
    )
    judges = _mark_changes([day.reward_model for day in days])
    policies = _mark_changes([day.policy for day in days])
    rewards = [policy_interval(day.reward) for day in days]
    lengths = [policy_interval(day.length) for day in days]
    panels: list[tuple[Axis, list[Interval | None], list[Mark]]] = [
        (_axis("mean reward", rewards), rewards, judges),
        (_refusal_axis(days), [refusal_interval(day) for day in days], policies),
        (_axis("characters", lengths, from_zero=True), lengths, _without_labels(policies)),
    ]
    return Chart(
        kind="policy",
        title=f"The deployed policy, {days[0].day} to {days[-1].day}",
        alt="Mean reward, share of refusals and mean length of the deployed policy's completions, "
        "day by day",
        notes=(INTERVALS,),
        panels=tuple(
            Panel(
                x=x if i < len(panels) - 1 else x.model_copy(update={"ticks": ticks}),
                y=y,
                series=(point_series(places, values, role="now", name="completions of the day"),),
                marks=tuple(marks),
            )
            for i, (y, values, marks) in enumerate(panels)
        ),
    )


def _mark_changes(labels: Sequence[str | None]) -> list[Mark]:
    """A line before each day whose label differs from the latest one before it."""
    marks: list[Mark] = []
    latest = None
    for i, label in enumerate(labels):
        if label is not None and latest is not None and label != latest:
            text = f"{label.rpartition('.')[2]} from here"
            marks.append(Mark(style="line", role="model", x=(i - 0.5, i - 0.5), label=text))
        latest = label or latest
    return marks


def _without_labels(marks: Sequence[Mark]) -> list[Mark]:
    return [mark.model_copy(update={"label": ""}) for mark in marks]


def _axis(label: str, values: Sequence[Interval | None], from_zero: bool = False) -> Axis:
    ends = [end for i in values if i is not None for end in (i.low, i.high)] or [0.0, 1.0]
    low, high = (0.0 if from_zero else min(ends)), max(ends)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    room = 0.08 * (high - low)
    low, high = (low if from_zero else low - room), high + room
    return Axis(low=low, high=high, label=label, ticks=round_ticks(low, high))


def _refusal_axis(days: Sequence[PolicyDay]) -> Axis:
    highest = max(0.1, *(refusal_interval(day).high for day in days))
    high = float(np.ceil(highest * 10 - 1e-9) / 10)
    ends = (0.0, high / 2, high)
    return Axis(
        low=0,
        high=high,
        label="refusals",
        unit="share",
        ticks=tuple(Tick(value=v, label=f"{100 * v:.0f}%") for v in ends),
    )

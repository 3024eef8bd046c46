"""Metric points of what stages return: figures that they computed, none computed anew."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime

import pandas as pd

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    Evaluation,
    GroupCalibration,
    Interval,
    Verdict,
)
from rlhf_pipeline.learn.calibration.calibration_windows import CalibrationWindow
from rlhf_pipeline.watch.drift.policy import PolicyDay
from rlhf_pipeline.watch.metrics.policy_intervals import policy_interval, refusal_interval

VERDICT_VALUES = {Verdict.STABLE: 0, Verdict.WARNING: 1, Verdict.DRIFT: 2}


def agreement_points(agreed: Interval | None, day: str, now: datetime) -> list[MetricPoint]:
    """Without overlapping votes there is none."""
    return _estimates(day, now, {"agreement.rate": agreed})


def window_points(window: CalibrationWindow, now: datetime) -> list[MetricPoint]:
    """Of the calibration window that ends on a day, labelled with the model that predicted."""
    figures: dict[str, Interval | None] = {
        "model.accuracy": window.accuracy,
        "model.accuracy_ceiling": window.noise_ceiling,
        "model.ece": window.ece,
        "model.calibration_slope": window.slope,
    }
    if window.accuracy is not None and window.noise_ceiling is not None:
        figures["model.accuracy_gap"] = _subtract(window.noise_ceiling, window.accuracy)
    return [
        point
        for model in window.reward_models[-1:]
        for point in _estimates(window.day, now, figures, reward_model=model)
    ]


def day_points(window: CalibrationWindow, now: datetime) -> list[MetricPoint]:
    """Of a window of one day: a change shows on its first day, not averaged over a week."""
    figures = {
        "model.day_accuracy": window.accuracy,
        "model.day_accuracy_ceiling": window.noise_ceiling,
    }
    return [
        point
        for model in window.reward_models[-1:]
        for point in _estimates(window.day, now, figures, reward_model=model)
    ]


def _subtract(ceiling: Interval, accuracy: Interval) -> Interval:
    """How far the accuracy is below the ceiling, with the widest bounds that both intervals
    allow.
    """
    return Interval(
        value=ceiling.value - accuracy.value,
        low=ceiling.low - accuracy.high,
        high=ceiling.high - accuracy.low,
        n=accuracy.n,
    )


def group_points(
    window: CalibrationWindow, groups: Sequence[GroupCalibration], now: datetime
) -> list[MetricPoint]:
    """Of the groups of that window, labelled with the model that predicted."""
    return [
        point
        for model in window.reward_models[-1:]
        for calibration in groups
        if calibration.calibrated is not None
        for point in _estimates(
            window.day,
            now,
            {
                "groups.accuracy": calibration.calibrated.accuracy,
                "groups.accuracy_ceiling": calibration.noise_ceiling,
                "groups.ece": calibration.calibrated.ece,
                "groups.calibration_slope": calibration.calibrated.slope,
            },
            reward_model=model,
            by=calibration.by,
            group=calibration.group,
        )
    ]


def version_points(
    measured: Mapping[str, CalibrationMetrics], ceiling: Interval | None, now: datetime
) -> list[MetricPoint]:
    """Of reward models by label, measured on the same votes."""
    return [
        point
        for label, figures in measured.items()
        for point in _estimates(
            now.date().isoformat(),
            now,
            {
                "versions.accuracy": figures.accuracy,
                "versions.accuracy_ceiling": ceiling,
                "versions.ece": figures.ece,
            },
            reward_model=label,
        )
    ]


def verdict_points(report: pd.DataFrame, now: datetime) -> list[MetricPoint]:
    """The worst verdict of each day and space of DRIFT_REPORTS; no value where all are
    insufficient.
    """
    points = []
    for (day, space), rows in report.groupby(["day", "space"]):
        levels = [VERDICT_VALUES[v] for v in map(Verdict, rows["verdict"]) if v in VERDICT_VALUES]
        points.append(
            MetricPoint(
                day=date.fromisoformat(str(day)),
                name="drift.verdict",
                labels={"space": str(space)},
                n=int(rows["n_current"].max()),
                value=max(levels, default=None),
                measured_at=now,
            )
        )
    return points


def policy_points(days: Sequence[PolicyDay], now: datetime) -> list[MetricPoint]:
    """Reward, refusals and length of the deployed policy's completions of these days."""
    points = []
    for day in days:
        reward = {"policy.reward": policy_interval(day.reward)}
        others = {
            "policy.refusals": refusal_interval(day),
            "policy.length": policy_interval(day.length),
        }
        judge = day.reward_model or "none"
        points += _estimates(day.day, now, reward, policy=day.policy, reward_model=judge)
        points += _estimates(day.day, now, others, policy=day.policy)
    return points


def evaluation_points(evaluation: Evaluation) -> list[MetricPoint]:
    """Of the day on which the candidate was evaluated."""
    now = evaluation.evaluated_at
    rates = {"policy.win_rate": evaluation.win_rate}
    return _estimates(now.date().isoformat(), now, rates, policy=evaluation.candidate)


def _estimates(
    day: str, now: datetime, figures: Mapping[str, Interval | None], **labels: str
) -> list[MetricPoint]:
    return [
        MetricPoint.of_interval(date.fromisoformat(day), name, interval, now, labels)
        for name, interval in figures.items()
        if interval is not None
    ]

"""Compares the arms of an experiment by sessions: effects, the split, faults and advice in words.

A session counts in the arm of its first answer, with the answers of that arm, once: the answers of
one session resemble each other. Its value is their mean.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.api_types.production import ProductionMetric
from rlhf_pipeline.core.experiments import (
    Arm,
    Experiment,
    ExperimentMetric,
    ExperimentResults,
    MetricEffect,
    ReportedFigure,
    Winner,
)
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.improve.experiments.effects import (
    Scores,
    Sessions,
    estimate_mean_effect,
    estimate_share_effect,
    find_harm_p_value,
    find_split_p_value,
    score_effects,
    score_preferences,
    trace_mean,
    trace_share,
)
from rlhf_pipeline.improve.experiments.preferences import read_preferences
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.experiments import Exposure, Rating

NANO = 1e-9
# what one unit of a value is, and what its zero is: effects are estimated from 0 to 1
SCALES: dict[ExperimentMetric, tuple[float, float]] = {
    "satisfaction": (1.0, 0.0),
    "rating": (4.0, 1.0),
    "preference": (1.0, 0.0),
    "errors": (1.0, 0.0),
    "latency": (1.0, 0.0),
    "cost": (NANO, 0.0),
}
# from 0 to 1
SHARES: tuple[ExperimentMetric, ...] = ("satisfaction", "rating", "preference", "errors")
LOW_IS_GOOD: tuple[ExperimentMetric, ...] = ("errors", "latency", "cost")
REPORTED: tuple[ProductionMetric, ...] = (
    *("quality", "deflected", "resolve_time", "adoption", "cost"),
)
BROKEN_SPLIT = 0.001  # p-value below which the split is not the planned one
HARMFUL = 0.05  # p-value below which a guardrail stops the treatment


@dataclass(frozen=True)
class Analysis:
    """An experiment with its answers and their ratings, from the time when both arms answered."""

    experiment: Experiment
    exposures: tuple[Exposure, ...]
    ratings: tuple[Rating, ...]
    points: tuple[MetricPoint, ...] = ()
    preferences: tuple[float, ...] = ()

    @classmethod
    def read(cls, store: Store, experiment: Experiment) -> "Analysis":
        since = experiment.start_date
        if since is None:
            return cls(experiment, (), ())
        points = store.metric_points.read(
            [f"production.{metric}" for metric in REPORTED],
            since=since.date(),
            until=experiment.end_date.date() if experiment.end_date else None,
        )
        return cls(
            experiment,
            tuple(store.experiments.exposures(experiment.experiment_id)),
            tuple(store.experiments.ratings(since, experiment.end_date)),
            tuple(points),
            tuple(preference.value for preference in read_preferences(store, experiment)),
        )

    @cached_property
    def results(self) -> ExperimentResults:
        metrics = tuple(self._compare(metric) for metric in SCALES)
        treated, control, splits = self._count(self._first)
        p_value = find_split_p_value(treated, control, splits)
        is_broken = p_value < BROKEN_SPLIT
        primary = next(
            effect for effect in metrics if effect.metric == self.experiment.success_metric
        )
        winner: Winner = "inconclusive" if is_broken else primary.better or "inconclusive"
        return ExperimentResults(
            n_control=sum(control),
            n_treatment=sum(treated),
            n_planned=sum(
                (a + b) * split for a, b, split in zip(treated, control, splits, strict=True)
            ),
            split_p_value=p_value,
            is_broken=is_broken,
            metrics=metrics,
            reported=tuple(self._sum_reported()),
            winner=winner,
            recommendation=_recommend(winner, is_broken, primary, metrics),
        )

    def trace(self) -> tuple[list[float], list[float], list[float]]:
        """The interval of the primary metric over time: numbers of sessions and both ends."""
        metric = self.experiment.success_metric
        sessions = self._values(metric)
        n, low, high = (
            trace_share(self._score(metric, sessions)) if metric in SHARES else trace_mean(sessions)
        )
        unit = SCALES[metric][0]
        return n.tolist(), (unit * low).tolist(), (unit * high).tolist()

    def find_harm(self, slow_s: float, max_ratio: float) -> str | None:
        """What of the treatment is surely more than `max_ratio` times as frequent as in control:
        sessions with errors, or with answers slower than `slow_s`; None if neither.
        """
        faults = {
            "errors": [exposure for exposure in self._own_exposures if exposure.is_failed],
            f"answers slower than {slow_s:g} s": [
                exposure
                for exposure in self._own_exposures
                if exposure.latency_s is not None and exposure.latency_s > slow_s
            ],
        }
        for name, exposures in faults.items():
            counts = self._count(
                {exposure.unit: self._first[exposure.unit] for exposure in exposures}
            )
            if find_harm_p_value(*counts, max_ratio) < HARMFUL:
                treated, control = sum(counts[0]), sum(counts[1])
                return f"{name}: {treated} of its sessions, {control} of the control's"
        return None

    @cached_property
    def _first(self) -> dict[str, Exposure]:
        """The first answer of each session, in their order."""
        first: dict[str, Exposure] = {}
        for exposure in self.exposures:
            first.setdefault(exposure.unit, exposure)
        return {unit: exposure for unit, exposure in first.items() if exposure.split < 1}

    @cached_property
    def _own_exposures(self) -> list[Exposure]:
        """The answers of each session's first arm."""
        first = self._first
        return [
            exposure
            for exposure in self.exposures
            if exposure.unit in first and exposure.arm == first[exposure.unit].arm
        ]

    def _list_values(self, metric: ExperimentMetric) -> Iterable[tuple[str, float]]:
        """Sessions and values of single answers, in the order of time."""
        if metric in ("satisfaction", "rating"):
            units = {exposure.answer_id: exposure.unit for exposure in self._own_exposures}
            kind = "thumbs" if metric == "satisfaction" else "rating"
            return [
                (units[rating.answer_id], rating.value)
                for rating in self.ratings
                if rating.kind == kind and rating.answer_id in units
            ]
        if metric == "errors":
            return [(exposure.unit, float(exposure.is_failed)) for exposure in self._own_exposures]
        name = "latency_s" if metric == "latency" else "cost"
        return [
            (exposure.unit, value)
            for exposure in self._own_exposures
            if (value := getattr(exposure, name)) is not None
        ]

    def _score(self, metric: ExperimentMetric, sessions: Sessions) -> Scores:
        if metric == "preference":
            return score_preferences(np.array(self.preferences))
        # errors are rare: two arms without any differ by 0
        return score_effects(sessions, prior=0.0 if metric == "errors" else 0.5)

    def _values(self, metric: ExperimentMetric) -> Sessions:
        if metric == "preference":  # a vote is for either arm what it is not for the other
            votes = np.array(self.preferences)
            sides = np.repeat([True, False], len(votes))
            return Sessions(np.concatenate((votes, 1 - votes)), sides, np.full(len(sides), 0.5))
        totals: dict[str, float] = {}
        n = Counter[str]()
        for unit, value in self._list_values(metric):
            totals[unit] = totals.get(unit, 0.0) + value
            n[unit] += 1
        unit_size, zero = SCALES[metric]
        means = np.array([total / n[unit] for unit, total in totals.items()], dtype=np.float64)
        firsts = [self._first[unit] for unit in totals]
        return Sessions(
            (means - zero) / (unit_size if metric in SHARES else 1.0),
            np.array([exposure.arm == "treatment" for exposure in firsts], dtype=bool),
            np.array([exposure.split for exposure in firsts], dtype=np.float64),
        )

    def _compare(self, metric: ExperimentMetric) -> MetricEffect:
        sessions = self._values(metric)
        is_share, (unit, zero) = metric in SHARES, SCALES[metric]
        effect = (
            estimate_share_effect(self._score(metric, sessions))
            if is_share
            else estimate_mean_effect(sessions)
        )
        treated = sessions.is_treated

        def mean(chosen: npt.NDArray[np.bool_]) -> float | None:
            values = sessions.values[chosen]
            return float(zero + unit * values.mean()) if len(values) else None

        better: Arm | None = None
        if effect is not None and effect.sign:
            is_better = (effect.sign > 0) is not (metric in LOW_IS_GOOD)
            better = "treatment" if is_better else "control"
        return MetricEffect(
            metric=metric,
            control=mean(~treated),
            treatment=mean(treated),
            n_control=int((~treated).sum()),
            n_treatment=int(treated.sum()),
            effect=effect and _stretch(effect.interval, unit),
            p_value=effect and effect.p_value,
            better=better,
        )

    def _count(self, first: Mapping[str, Exposure]) -> tuple[list[int], list[int], list[float]]:
        """Sessions of the treatment and the control at each step of the ramp."""
        counts = Counter((exposure.split, exposure.arm) for exposure in first.values())
        splits = sorted({split for split, _ in counts})
        return (
            [counts[split, "treatment"] for split in splits],
            [counts[split, "control"] for split in splits],
            splits,
        )

    def _sum_reported(self) -> Iterable[ReportedFigure]:
        labels = (self.experiment.control_model_id, self.experiment.treatment_model_id)
        for metric in REPORTED:
            means = []
            for label in labels:
                points = [
                    point
                    for point in self.points
                    if point.name == f"production.{metric}" and point.labels["model"] == label
                ]
                n = sum(point.n for point in points)
                means.append(sum(point.total or 0.0 for point in points) / n if n else None)
            if means != [None, None]:
                yield ReportedFigure(metric=metric, control=means[0], treatment=means[1])


def _stretch(interval: Interval, unit: float) -> Interval:
    ends = {name: unit * getattr(interval, name) for name in ("value", "low", "high")}
    return interval.model_copy(update=ends)


def _recommend(
    winner: Winner, is_broken: bool, primary: MetricEffect, metrics: Iterable[MetricEffect]
) -> str:
    if is_broken:
        return (
            "Do not use these figures: the sessions are not split as planned. End the experiment "
            "and find the cause."
        )
    if winner == "control":
        return f"Keep the control: it is better in {primary.metric}."
    if winner == "inconclusive":
        return f"Go on: {primary.metric} does not tell the arms apart yet."
    worse = [effect.metric for effect in metrics if effect.better == "control"]
    but = f" But it is worse in {' and '.join(worse)}." if worse else ""
    return f"Deploy the treatment: it is better in {primary.metric}.{but}"

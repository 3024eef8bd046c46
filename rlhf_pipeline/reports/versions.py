"""Builds the chart of reward-model versions: accuracy and calibration on the same votes."""

from collections.abc import Sequence

import numpy as np

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Estimate,
    Panel,
    Role,
    Series,
    Tick,
    estimate_of,
    percent_ticks,
    point_series,
    round_ticks,
)
from rlhf_pipeline.reports.words import name_models

ACCURACY, CEILING, ECE = VERSION_METRICS = (
    "versions.accuracy",
    "versions.accuracy_ceiling",
    "versions.ece",
)
TITLE = "Reward-model versions on the same held-out votes"
NO_VERSIONS = (
    "No versions were compared yet. Each run of calibration measures the new reward model and "
    "those promoted before it on the same held-out votes."
)
CEILING_WORDS = "noise ceiling: accuracy of a perfect model"
SPREAD = 9  # pixels between the dots of one version


def chart_versions(points: Sequence[MetricPoint], model: str | None = None) -> Chart:
    """The newest run among `points`, by version: so all dots are of the same votes. `model` (as
    name@version) is drawn alone.
    """
    newest = max((point.measured_at for point in points), default=None)
    run = [p for p in points if p.measured_at == newest and p.value is not None]
    current = [p for p in run if model in (None, p.labels["reward_model"])]
    labels = sorted({p.labels["reward_model"] for p in current}, key=_number)
    if newest is None or not labels:
        note = f"The newest run did not measure {name_models(model or '')}." if run else NO_VERSIONS
        return Chart(kind="versions", title=TITLE, alt=TITLE, panels=(), notes=(note,))
    points_by_label = {(p.name, p.labels["reward_model"]): p for p in current}
    low = min([0.5, *(p.low or p.value or 0.0 for p in current if p.name != ECE)])
    shares = [float(tick) for tick in np.arange(np.floor(10 * low), 11, 2 if low < 0.4 else 1) / 10]
    high = max([0.1, *(p.high or p.value or 0.0 for p in current if p.name == ECE)])
    # both panels have the names: a place in the list is no version
    x = Axis(
        low=-0.6,
        high=len(labels) - 0.4,
        label="version of the reward model",
        ticks=tuple(Tick(value=i, label=f"@{_number(label)}") for i, label in enumerate(labels)),
        has_grid=False,
    )
    panels = (
        Panel(
            title="Accuracy beside the noise ceiling",
            x=x,
            y=Axis(
                low=shares[0],
                high=1.0,
                label="share predicted right",
                unit="share",
                ticks=percent_ticks(shares),
            ),
            height=150,
            series=(
                _dots(points_by_label, labels, CEILING, "ceiling", CEILING_WORDS),
                _dots(points_by_label, labels, ACCURACY, "now", "accuracy"),
            ),
        ),
        Panel(
            title="Calibration error (ECE)",
            x=x,
            y=Axis(
                low=min([0.0, *(p.low or 0.0 for p in current if p.name == ECE)]),
                high=high,
                label="ECE",
                unit="share",
                ticks=percent_ticks(tick.value / 100 for tick in round_ticks(0, 100 * high, 3)),
            ),
            height=90,
            series=(_dots(points_by_label, labels, ECE, "group4", "ECE"),),
        ),
    )
    n = max(p.n for p in run if p.name == ACCURACY)
    return Chart(
        kind="versions",
        title=TITLE,
        alt=name_models(f"{TITLE}, {labels[0]} to {labels[-1]}"),
        panels=panels,
        notes=(
            f"measured on {newest.date()} on {n:,} comparisons of the test split that were judged "
            "since the last change of taste (Calibration also counts earlier ones, with less "
            "weight); no version was fitted to them",
            "lines: 95% intervals",
        ),
    )


def _dots(
    points_by_label: dict[tuple[str, str], MetricPoint],
    labels: Sequence[str],
    name: str,
    role: Role,
    title: str,
) -> Series:
    points = [points_by_label.get((name, label)) for label in labels]
    intervals = [None if point is None else _interval(point) for point in points]
    offset = -SPREAD / 2 if name == CEILING else SPREAD / 2 if name == ACCURACY else 0
    return point_series(range(len(labels)), intervals, role=role, name=title, offset=offset)


def _interval(point: MetricPoint) -> Estimate:
    return estimate_of(point.value or 0.0, point.low, point.high, point.n)


def _number(label: str) -> int:
    return int(label.rpartition("@")[2])

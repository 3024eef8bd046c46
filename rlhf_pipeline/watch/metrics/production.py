"""Metric points of models in production: as applications report them, and of served answers."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from rlhf_pipeline.core.api_types.production import ProductionFigure
from rlhf_pipeline.core.curation import FeedbackQuery
from rlhf_pipeline.core.intervals import interval_of_sums
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import RatioSums
from rlhf_pipeline.store import Store

NANO = 1e-9


def build_production_point(figure: ProductionFigure, now: datetime) -> MetricPoint:
    """The mean of a figure, with its interval where the sum of squares is known. That of seconds,
    tokens and costs is of their logarithm, as none is below 0 and a few are very long.
    """
    squares = figure.total_squares
    if squares is None and figure.is_share:
        squares = figure.total  # as of measurements of 0 and 1: the widest interval
    n, total = figure.n, figure.total
    interval = (
        None
        if squares is None
        else interval_of_sums(RatioSums(n, n, total, n, total, squares), of_shares=figure.is_share)
    )
    if interval is not None and not figure.is_share and total > 0:
        factor = math.exp((interval.high - interval.value) / interval.value)
        interval = interval.model_copy(
            update={"low": interval.value / factor, "high": interval.value * factor}
        )
    return MetricPoint(
        day=figure.day,
        name=figure.name,
        labels={"model": figure.model},
        n=n,
        total=total,
        total_squares=figure.total_squares,
        value=total / n,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        measured_at=now,
    )


def measure_answers(store: Store, days: Sequence[date], now: datetime) -> list[MetricPoint]:
    """Latency, errors, tokens and cost of the answers of each day, and what users said of them, by
    version.
    """
    points = []
    for day in days:
        rows = store.answers.sum_day(day)
        figures = [*_list_sums(rows, day), *_sum_feedback(store, day)]
        points += [build_production_point(figure, now) for figure in figures]
        points += [
            MetricPoint(
                day=day,
                name=f"production.latency_{quantile}",
                labels={"model": row["version"]},
                n=row["n_complete"],
                value=row[quantile],
                measured_at=now,
            )
            for row in rows
            for quantile in ("p50", "p95")
            if row["n_complete"]
        ]
    return points


def _list_sums(rows: Sequence[Mapping[Any, Any]], day: date) -> Iterator[ProductionFigure]:
    for row in rows:
        sums = {
            "errors": (row["n"], row["n_errors"], None),
            "latency": (row["n_complete"], row["seconds"], row["seconds_squared"]),
            "tokens": (row["n"], row["tokens"], None),
            "cost": (row["n_priced"], float(row["cost"] or 0) * NANO, None),
        }
        for metric, (n, total, squares) in sums.items():
            if n:
                yield ProductionFigure(
                    day=day,
                    metric=metric,
                    model=row["version"],
                    n=n,
                    total=total,
                    total_squares=squares,
                )


def _sum_feedback(store: Store, day: date) -> Iterator[ProductionFigure]:
    """Thumbs and ratings that name a version; of one answer the last of each counts."""
    latest = {
        (entry.kind, entry.model_version, entry.answer_id or entry.feedback_id): entry.value
        for entry in store.feedback.select(
            FeedbackQuery(kinds=("thumbs", "rating"), since=day, until=day)
        )
    }
    values = defaultdict[tuple[str, str], list[float]](list)
    for (kind, version, _), value in latest.items():
        if version is not None and value is not None:
            values["satisfaction" if kind == "thumbs" else "rating", version].append(value)
    for (metric, version), scores in values.items():
        yield ProductionFigure(
            day=day,
            metric=metric,
            model=version,
            n=len(scores),
            total=sum(scores),
            total_squares=sum(value**2 for value in scores),
        )

"""Measures what the store knows of a project: votes, queue, spending and the champions' age.

What needs a day's frames, such as agreement and calibration, is measured by the stages.
"""

from collections.abc import Sequence
from datetime import date, datetime, timedelta

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.metrics.production import NANO, measure_answers

HOUR_S, DAY_S = 3600, 86400


def measure_project(store: Store, project: str, now: datetime) -> list[MetricPoint]:
    """The project at `now`, as points of this day. What is unknown, such as the age of a champion
    that does not exist yet, has no point. `project` names the champions.
    """
    return [
        *measure_votes(store, [now.date()], now),
        *_measure_queue(store, now),
        *_measure_spending(store, now),
        *measure_answers(store, _find_open_days(now), now),
        *_measure_champions(store, project, now),
    ]


def measure_votes(store: Store, days: Sequence[date], now: datetime) -> list[MetricPoint]:
    """Votes of each day by source, and what people took for them."""
    points = []
    for day in days:
        totals = store.votes.day_totals(day)
        points += [_build_count(day, "votes.cast", t.n, now, source=t.origin) for t in totals]
        if n_timed := sum(t.n_timed for t in totals):
            seconds = sum(t.seconds for t in totals)
            points.append(
                MetricPoint(
                    day=day,
                    name="votes.seconds",
                    n=n_timed,
                    total=seconds,
                    total_squares=sum(t.seconds_squared for t in totals),
                    value=seconds / n_timed,
                    measured_at=now,
                )
            )
    return points


def _measure_spending(store: Store, now: datetime) -> list[MetricPoint]:
    """By provider and model."""
    return [
        MetricPoint(
            day=day,
            name="spend.amount",
            labels={"lane": "/".join(lane)},
            n=spent.n_calls,
            value=(spent.cost + spent.cost_unknown) * NANO,
            measured_at=now,
        )
        for day in _find_open_days(now)
        for lane, spent in store.generation.sum_spending("provider", "model", day=day)
    ]


def _find_open_days(now: datetime) -> list[date]:
    """Today; in its first hour also the day before, whose last minutes nobody measured."""
    return sorted({(now - timedelta(hours=1)).date(), now.date()})


def _measure_queue(store: Store, now: datetime) -> list[MetricPoint]:
    waiting = store.cards.remaining_work()
    points = [_build_count(now.date(), "queue.open", waiting.n_open, now)]
    # an empty queue has age 0, which replaces today's earlier point
    oldest_at = waiting.oldest_at if waiting.n_open else now
    if oldest_at is not None:
        points.append(_build_age("queue.oldest_hours", oldest_at, now, HOUR_S))
        idle_since = max(oldest_at, store.votes.last_received_at() or oldest_at)
        points.append(_build_age("votes.idle_hours", idle_since, now, HOUR_S))
    return points


def _measure_champions(store: Store, project: str, now: datetime) -> list[MetricPoint]:
    champions = {
        kind: store.promotions.champion(f"{project}.{kind}") for kind in ("policy", "reward_model")
    }
    return [
        _build_age("champion.age_days", promotion.promoted_at, now, DAY_S, kind=kind)
        for kind, promotion in champions.items()
        if promotion is not None
    ]


def _build_count(day: date, name: str, n: int, now: datetime, **labels: str) -> MetricPoint:
    return MetricPoint(day=day, name=name, labels=labels, n=n, value=n, measured_at=now)


def _build_age(
    name: str, since: datetime, now: datetime, unit_s: int, **labels: str
) -> MetricPoint:
    age = max(0.0, (now - since).total_seconds() / unit_s)
    return MetricPoint(day=now.date(), name=name, labels=labels, n=1, value=age, measured_at=now)

"""Readings: the figures that rules compare, made of metric points and of facts of the store."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any, Self

from rlhf_pipeline.metric_catalogue import METRICS
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import GateDecision

IDLE, OLDEST = "votes.idle_hours", "queue.oldest_hours"
MODEL_LABELS = {"policy", "reward_model"}
MOST_REASONS = 3  # of a refusal, in its sentence
LATE = 3  # times the seconds between two ticks


@dataclass(frozen=True)
class Reading:
    """A figure that rules read: a metric point, or a fact of the store or of Dagster with its
    evidence.
    """

    name: str
    measured_at: datetime
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    detail: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    link: str | None = None
    of_day: date | None = None  # of a figure; None: a fact, which is as true now as it was then
    progress: str = ""  # how far the loop's answer is, such as "answered, not served"
    loop_action: str = ""  # what the loop did, and what a person should do; empty: as the rule says
    next_step: str = ""

    @classmethod
    def of_point(cls, point: MetricPoint) -> Self:
        measured = {"n": point.n or None, "low": point.low, "high": point.high}
        return cls(
            name=point.name,
            measured_at=point.measured_at,
            value=point.value,
            labels=point.labels,
            low=point.low,
            high=point.high,
            of_day=point.day,
            evidence={name: value for name, value in measured.items() if value is not None},
        )

    @property
    def day(self) -> date:
        return self.of_day or self.measured_at.date()

    @property
    def subject(self) -> str:
        """The values of its labels; a figure without labels is of the project."""
        return ", ".join(self.labels.values()) or "project"


def read_gate(decision: GateDecision | None) -> list[Reading]:
    """The latest decision of the gate: 1 if it refused the candidate."""
    if decision is None:
        return []
    failed = {check.name: check.reason for check in decision.checks if not check.passed}
    return [
        Reading(
            name="gate.refused",
            measured_at=decision.decided_at,
            value=0.0 if decision.promoted else 1.0,
            labels={"candidate": decision.candidate},
            detail="; ".join(list(failed.values())[:MOST_REASONS]),
            evidence={"champion": decision.champion} | failed,
            link=f"/evolution#policy-{decision.candidate.rpartition('@')[2]}",
        )
    ]


def read_accuracy_gap(points: Iterable[MetricPoint]) -> list[Reading]:
    """How far each reward model's accuracy is below the noise ceiling of the same votes. The lower
    bound takes the best accuracy and the lowest ceiling that the intervals allow.
    """
    named = {(p.name, p.day, p.labels.get("reward_model", "")): p for p in points}
    readings = []
    for (name, day, model), accuracy in named.items():
        ceiling = named.get(("model.accuracy_ceiling", day, model))
        if name != "model.accuracy" or ceiling is None:
            continue
        if accuracy.value is None or ceiling.value is None:
            continue
        high = accuracy.value if accuracy.high is None else accuracy.high
        low = ceiling.value if ceiling.low is None else ceiling.low
        readings.append(
            Reading(
                name="model.accuracy_gap",
                measured_at=accuracy.measured_at,
                value=ceiling.value - accuracy.value,
                low=low - high,
                of_day=day,
                labels={"reward_model": model},
                evidence={
                    "accuracy": accuracy.value,
                    "noise_ceiling": ceiling.value,
                    "n": accuracy.n,
                },
            )
        )
    return readings


def read_spending(
    points: Iterable[MetricPoint], budget_per_day: float | None, now: datetime
) -> Reading:
    """Today's spending as a share of the daily budget; unknown without a budget."""
    today = [p for p in points if p.name == "spend.amount" and p.day == now.date()]
    spent = sum(p.value or 0.0 for p in today)
    return Reading(
        name="spend.share",
        measured_at=now,
        value=spent / budget_per_day if budget_per_day else None,
        evidence={"spent": spent, "budget_per_day": budget_per_day}
        | {p.labels.get("lane", "all"): p.value for p in today},
    )


def read_silence(
    last_tick: MetricPoint | None, now: datetime, *, expected_s: float
) -> list[Reading]:
    """Seconds since a sensor last ticked; 0 as long as the next tick may just be late. Before the
    first tick, and after a loop that was ended on purpose, nothing is known.
    """
    if last_tick is None:
        return []
    silent_s = max(0.0, (now - last_tick.measured_at).total_seconds())
    silent_s = silent_s if silent_s > LATE * expected_s else 0.0
    return [
        Reading(
            name="daemon.silent_seconds",
            measured_at=now,
            value=None if last_tick.value is None else silent_s,
            evidence={"last_tick": last_tick.measured_at.isoformat()},
        )
    ]


def limit_idle_hours(readings: Sequence[Reading]) -> list[Reading]:
    """The readings; the time without votes lasts no longer than a comparison has waited for one,
    and exactly as long before the first vote.
    """
    idle = {reading.day: reading for reading in readings if reading.name == IDLE}
    limited = [reading for reading in readings if reading.name != IDLE]
    for waited in [reading for reading in readings if reading.name == OLDEST]:
        known = idle.pop(waited.day, None)
        hours = [r.value for r in (known, waited) if r is not None and r.value is not None]
        limited.append(replace(waited, name=IDLE, value=min(hours, default=None)))
    return [*limited, *idle.values()]


def fill_counts(readings: Sequence[Reading], now: datetime) -> list[Reading]:
    """The readings, and a 0 for each later day on which nothing was counted: counts of a day, such
    as failed runs, have a point only once they are above 0.
    """
    counted: dict[tuple[str, str], dict[date, Reading]] = {}
    for reading in readings:
        if reading.name in METRICS and METRICS[reading.name].is_count_of_day:
            counted.setdefault((reading.name, reading.subject), {})[reading.day] = reading
    filled = list(readings)
    for days in counted.values():
        first = days[min(days)]
        later = (first.day + timedelta(days=n) for n in range(1, (now.date() - first.day).days + 1))
        missing = (day for day in later if day not in days)
        filled += [
            replace(first, value=0.0, of_day=day, measured_at=now, evidence={}) for day in missing
        ]
    return filled


def drop_replaced(readings: Collection[Reading]) -> list[Reading]:
    """The readings without those of models of which a later version has the same metric: alerts
    about them end.
    """
    newest = {
        reading.name: reading.subject
        for reading in sorted(readings, key=lambda each: (each.day, each.measured_at))
        if reading.labels.keys() & MODEL_LABELS
    }
    return [each for each in readings if newest.get(each.name, each.subject) == each.subject]

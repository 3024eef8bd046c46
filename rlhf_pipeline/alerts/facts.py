"""Facts that rules read: refused candidates, accuracy gap, share of budget, a silent daemon."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import GateDecision

LATE = 3  # times the seconds between two ticks
MOST_REASONS = 3  # of a refusal, in its sentence


def read_gate(decision: GateDecision | None) -> list[Reading]:
    """The latest decision of the gate: 1 if it refused the candidate."""
    if decision is None:
        return []
    failed = [check for check in decision.checks if not check.passed]
    return [
        Reading(
            name="gate.refused",
            measured_at=decision.decided_at,
            value=0.0 if decision.promoted else 1.0,
            labels={"candidate": decision.candidate},
            detail="; ".join(check.reason for check in failed[:MOST_REASONS]),
            evidence={"champion": decision.champion}
            | {check.name: check.reason for check in failed},
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


def read_budget(
    points: Iterable[MetricPoint], budget_per_day: float | None, now: datetime
) -> list[Reading]:
    """Today's spending as a share of the daily budget; nothing without a budget."""
    if not budget_per_day:
        return []
    today = [p for p in points if p.name == "spend.amount" and p.day == now.date()]
    spent = sum(p.value or 0.0 for p in today)
    return [
        Reading(
            name="spend.share",
            measured_at=now,
            value=spent / budget_per_day,
            evidence={"spent": spent, "budget_per_day": budget_per_day}
            | {p.labels.get("lane", "all"): p.value for p in today},
        )
    ]


def read_silence(
    last_tick: MetricPoint | None, now: datetime, *, expected_s: float
) -> list[Reading]:
    """Seconds since a sensor last ticked; 0 as long as the next tick may just be late. Before the
    first tick, and after a loop that was ended on purpose, nothing is known.
    """
    if last_tick is None:
        return []
    silent = max(timedelta(), now - last_tick.measured_at).total_seconds()
    silent = 0.0 if silent <= LATE * expected_s else silent
    return [
        Reading(
            name="daemon.silent_seconds",
            measured_at=now,
            value=None if last_tick.value is None else silent,
            evidence={"last_tick": last_tick.measured_at.isoformat()},
        )
    ]

"""Readings: the figures that rules compare, made of metric points and of states of the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Self

from rlhf_pipeline.core.config import ServedCheck
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import GateDecision


@dataclass(frozen=True)
class Reading:
    """A figure that rules read: a metric point, or a state of the store or of Dagster with its
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
    of_day: date | None = None  # of a figure; None: a state, which is as true now as it was then
    progress: str = ""  # how far the loop's answer is, such as "answered, not served"
    loop_action: str = ""  # what the loop did, and what a person should do; empty: as the rule says
    next_step: str = ""

    @classmethod
    def of_point(cls, point: MetricPoint) -> Self:
        return cls(
            name=point.name,
            measured_at=point.measured_at,
            value=point.value,
            labels=point.labels,
            low=point.low,
            high=point.high,
            evidence=point.model_dump(include={"n", "low", "high"}),
            of_day=point.day,
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
    failed = {check.name: check.reason for check in decision.blocking}
    return [
        Reading(
            name="gate.refused",
            measured_at=decision.decided_at,
            value=0.0 if decision.promoted else 1.0,
            labels={"candidate": decision.candidate},
            detail="; ".join(failed.values()),
            evidence={"champion": decision.champion} | failed,
            link=f"/evolution#policy-{decision.candidate.rpartition('@')[2]}",
        )
    ]


def read_served(check: ServedCheck | None, now: datetime) -> Reading:
    """The latest check of what serves: 1 if it differs from the judged version. Nothing is known
    without one, and while it is not checkable.
    """
    if check is None or check.state == "not checkable":
        return Reading("served.differs", now, None)
    return Reading(
        name="served.differs",
        measured_at=check.checked_at,
        value=float(check.state == "differs"),
        detail=f"{check.version}: {check.reason}",
        loop_action="It deployed the version before." if check.rolled_back else "",
    )


def read_silence(
    last_tick: MetricPoint | None, now: datetime, *, expected_s: float
) -> list[Reading]:
    """Seconds since a sensor last ticked; 0 as long as the next tick may just be late. Before the
    first tick, and after a loop that was ended on purpose, nothing is known.
    """
    if last_tick is None:
        return []
    silent_s = (now - last_tick.measured_at).total_seconds()
    silent_s = silent_s if silent_s > 3 * expected_s else 0.0
    value = None if last_tick.value is None else silent_s
    return [Reading(name="daemon.silent_seconds", measured_at=now, value=value)]

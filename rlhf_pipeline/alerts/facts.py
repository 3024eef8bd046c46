"""Facts that rules read: unanswered drift, refused candidates, accuracy gap, share of budget."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import ChangeCauses, GateDecision, Promotion, TriggerDecision
from rlhf_pipeline.retraining.triggers import RETRAINS

LATE = 3  # times the seconds between two ticks
MOST_REASONS = 3  # of a refusal, in its sentence
REMEDY_WORDS = {
    "retrain": "retrain",
    "retrain_category": "retrain one category",
    "reweight": "fit again on all votes",
    "refit_calibrator": "fit the calibrator again",
    "quarantine": "leave out the votes of careless annotators",
    "report_two_tastes": "ask people whose taste counts",
}


def read_drift(
    decisions: Sequence[TriggerDecision], champion: Promotion | None, *, dagster_ui: str
) -> list[Reading]:
    """One reading per confirmed change: 1 until its run or a later retraining succeeded, the run of
    a person's answer did, a person dismissed it, or another reward model became champion.
    """
    succeeded = [d for d in decisions if d.action == "fire" and d.state == "succeeded"]
    retrained = [d.stored_id for d in succeeded if d.remedy in (None, *RETRAINS)]
    last_retraining = max(retrained, default=0)
    finished = {d.decision_id for d in succeeded} | {d.answers for d in succeeded}
    dismissed = {d.answers for d in decisions if d.action == "hold"}
    readings = []
    for decision in decisions:
        if decision.remedy is None or decision.actor is not None:
            continue
        is_replaced = champion is not None and champion.promoted_at > decision.decided_at
        is_retrained = decision.action == "fire" and decision.stored_id <= last_retraining
        has_run = is_retrained or decision.stored_id in finished
        is_dismissed = decision.stored_id in dismissed
        is_answered = has_run or is_dismissed or is_replaced
        answer = "its run finished" if has_run else "a person dismissed it" if is_dismissed else ""
        if is_replaced and champion is not None:
            answer = " and ".join(filter(None, [answer, f"{champion.label} is the champion now"]))
        run = f"/runs/{decision.run_id}" if decision.run_id else "/assets/retraining_decision"
        readings.append(
            Reading(
                name="drift.unanswered",
                measured_at=decision.decided_at,
                value=0.0 if is_answered else 1.0,
                labels={"decision": f"decision {decision.decision_id}"},
                detail=answer if is_answered else _describe_change(decision),
                evidence=_collect_evidence(decision),
                link=f"{dagster_ui.rstrip('/')}{run}",
            )
        )
    return readings


def read_gate(decision: GateDecision | None, *, dagster_ui: str) -> list[Reading]:
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
            link=f"{dagster_ui.rstrip('/')}/assets/gate",
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


def leave_out_idle_hours(readings: Sequence[Reading]) -> list[Reading]:
    """Without the time since the last vote where no comparison waits: nobody could vote."""
    waiting = [r.value for r in readings if r.name == "queue.open"]
    is_empty = bool(waiting) and not waiting[-1]
    return [r for r in readings if not (is_empty and r.name == "votes.idle_hours")]


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


def _describe_change(decision: TriggerDecision) -> str:
    causes = _read_causes(decision)
    what = causes.summary if causes else decision.reasons[0] if decision.reasons else "a change"
    answer = REMEDY_WORDS.get(decision.remedy or "", "decide")
    asks = decision.action == "hold" and decision.remedy == "quarantine"
    waits = " once a person agrees" if asks else ""
    return f"{what.rstrip('.')}. Decision {decision.decision_id}: {answer}{waits}"


def _collect_evidence(decision: TriggerDecision) -> dict[str, Any]:
    causes = _read_causes(decision)
    evidence: dict[str, Any] = {
        "decision": decision.decision_id,
        "action": decision.action,
        "remedy": decision.remedy,
        "state": decision.state,
        "reasons": list(decision.reasons),
        "detectors": decision.evidence.get("confirmed", []),
        "n_events": len(decision.event_ids),
        "change_seq": decision.change_seq,
        "run_id": decision.run_id,
    }
    if causes is not None:
        evidence |= {
            "cause": causes.causes[0].name,
            "shares": {
                cause.name: round(cause.share, 3) for cause in causes.causes if cause.share >= 0.01
            },
            "change_seq": causes.change_seq,
            "rise": causes.rise.model_dump(mode="json", exclude_none=True),
        }
    return {name: value for name, value in evidence.items() if value is not None}


def _read_causes(decision: TriggerDecision) -> ChangeCauses | None:
    known = decision.evidence.get("causes")
    return ChangeCauses.model_validate(known) if known else None

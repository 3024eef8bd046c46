"""The fact that rules read of drift: each confirmed change, and whether it is answered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.records import ChangeCauses, Promotion, TriggerDecision
from rlhf_pipeline.retraining.triggers import (
    LIKELY_NOTHING,
    RETRAINING_REMEDIES,
    chance_of_nothing,
)

REMEDY_WORDS = {
    "retrain": "retrain",
    "retrain_category": "retrain one category",
    "reweight": "fit again on all votes",
    "refit_calibrator": "fit the calibrator again",
    "quarantine": "leave out the votes of careless annotators",
    "report_two_tastes": "ask people whose taste counts",
    "dismiss": "nothing; it was a false alarm",
}


@dataclass
class ConfirmedChange:
    """The decisions of the trigger about one change, from the first that found it confirmed: holds
    while it waits, an answer, and the next one after an answer that failed.
    """

    decisions: list[TriggerDecision] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"decision {self.decisions[0].decision_id}"

    @property
    def latest(self) -> TriggerDecision:
        """The last decision that answers it, or else the last one."""
        answers = [each for each in self.decisions if each.remedy is not None]
        return (answers or self.decisions)[-1]

    def continues_in(self, decision: TriggerDecision) -> bool:
        """Whether `decision` is about this change too: made for the same champion, before an answer
        or after one that had failed, was running, or waited for people.
        """
        known, answer = decision.evidence.get("looked_at", {}), self.latest
        if known.get("champion") != answer.evidence.get("looked_at", {}).get("champion"):
            return False
        if "dismiss" in (answer.remedy, decision.remedy) and answer.remedy is not None:
            return False
        if answer.remedy is not None and answer.action == "hold":
            left = known.get("left_to_people") or {}
            return left.get("decision_id") == answer.decision_id and not left["is_answered"]
        return answer.remedy is None or answer.state == "failed" or bool(known.get("n_unfinished"))


def group_by_change(decisions: Sequence[TriggerDecision]) -> list[ConfirmedChange]:
    """The confirmed changes of the trigger's decisions, oldest first; people's decisions are left
    out.
    """
    changes: list[ConfirmedChange] = []
    for decision in decisions:
        is_confirmed = decision.remedy is not None or decision.evidence.get("confirmed")
        if decision.actor is not None or not is_confirmed:
            continue
        if not changes or not changes[-1].continues_in(decision):
            changes.append(ConfirmedChange())
        changes[-1].decisions.append(decision)
    return changes


def read_changes(decisions: Sequence[TriggerDecision], champion: Promotion | None) -> list[Reading]:
    """One reading per confirmed change: 1 until its run or a later retraining succeeded, the run of
    a person's answer did, a person dismissed it, or another reward model became champion. While
    probably nothing rose, it is 0.
    """
    succeeded = [d for d in decisions if d.action == "fire" and d.state == "succeeded"]
    retrained = [
        d.stored_id
        for d in succeeded
        # an ordered training fits no reward model
        if d.remedy in (None, *RETRAINING_REMEDIES) and d.order is None
    ]
    last_retraining = max(retrained, default=0)
    finished = {d.decision_id for d in succeeded} | {d.answers for d in succeeded}
    dismissed = {d.answers for d in decisions if d.action == "hold"}
    readings = []
    for change in group_by_change(decisions):
        decision = change.latest
        last = change.decisions[-1]
        is_replaced = champion is not None and champion.promoted_at > last.decided_at
        is_retrained = decision.action == "fire" and decision.stored_id <= last_retraining
        has_run = is_retrained or decision.stored_id in finished
        is_dismissed = decision.stored_id in dismissed
        is_false_alarm = decision.remedy == "dismiss"
        is_answered = has_run or is_dismissed or is_false_alarm or is_replaced
        is_doubtful = decision.remedy is None and _is_probably_nothing(decision)
        answer = "its run finished" if has_run else "a person dismissed it" if is_dismissed else ""
        answer = "later votes show no rise: a false alarm" if is_false_alarm else answer
        if is_replaced and champion is not None:
            answer = " and ".join(filter(None, [answer, f"{champion.label} is the champion now"]))
        readings.append(
            Reading(
                name="drift.unanswered",
                measured_at=decision.decided_at,
                value=0.0 if is_answered or is_doubtful else 1.0,
                labels={"decision": change.name},
                detail=answer if is_answered else _describe_change(decision),
                evidence=_collect_evidence(decision),
                link=f"/decisions/{decision.stored_id}",
            )
        )
    return readings


def _describe_change(decision: TriggerDecision) -> str:
    causes = _read_causes(decision)
    what = causes.summary if causes else decision.reasons[0] if decision.reasons else "a change"
    if decision.remedy is None:
        held = "; ".join(decision.reasons if causes else decision.reasons[1:])
        return f"{what.rstrip('.')}. Not answered yet: {held}" if held else what
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


def _is_probably_nothing(decision: TriggerDecision) -> bool:
    """Whether a change that waits is more likely than not a false alarm, by what it knew."""
    causes = _read_causes(decision)
    return causes is not None and chance_of_nothing(causes) > LIKELY_NOTHING


def _read_causes(decision: TriggerDecision) -> ChangeCauses | None:
    known = decision.evidence.get("causes")
    return ChangeCauses.model_validate(known) if known else None

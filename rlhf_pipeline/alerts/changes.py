"""The fact that rules read of drift: each confirmed change, and how far the loop answered it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.records import ChangeCauses, GateDecision, Promotion, TriggerDecision
from rlhf_pipeline.retraining.triggers import (
    LIKELY_NOTHING,
    RETRAINING_REMEDIES,
    chance_of_nothing,
)

NOT_SERVED = "answered, not served"
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


@dataclass(frozen=True)
class ServingHistory:
    """Which models have served since when, and what the gate decided."""

    reward_model: Promotion | None = None  # the champion
    policies: Sequence[Promotion] = ()  # oldest first
    gate: GateDecision | None = None  # its latest decision


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


def read_changes(decisions: Sequence[TriggerDecision], serving: ServingHistory) -> list[Reading]:
    """One reading per confirmed change, 1 until `_find_end` says why it ended. While probably
    nothing rose, it is 0.
    """
    return [_read(change, decisions, serving) for change in group_by_change(decisions)]


def _read(
    change: ConfirmedChange, decisions: Sequence[TriggerDecision], serving: ServingHistory
) -> Reading:
    decision, causes = change.latest, _read_causes(change.latest)
    end = _find_end(change, decisions, serving)
    is_doubtful = (
        decision.remedy is None
        and causes is not None
        and chance_of_nothing(causes) > LIKELY_NOTHING
    )
    progress, loop_action, next_step = _describe_progress(decision, decisions, serving)
    return Reading(
        name="drift.unanswered",
        measured_at=decision.decided_at,
        value=0.0 if end or is_doubtful else 1.0,
        labels={"decision": change.name},
        detail=end or _describe_change(decision, causes),
        evidence=_collect_evidence(decision, causes),
        link=f"/decisions/{decision.stored_id}",
        progress="" if end else progress,
        loop_action=end or loop_action,
        next_step="Nothing." if end else next_step,
    )


def _find_end(
    change: ConfirmedChange, decisions: Sequence[TriggerDecision], serving: ServingHistory
) -> str:
    """Why the change needs nobody any more; empty while it does. A retraining ends it only with the
    policy that it leads to: until that serves, people get completions of the old taste.
    """
    decision = change.latest
    answers = [each for each in decisions if each.answers == decision.stored_id]
    if any(each.action == "hold" for each in answers):
        return "a person dismissed it"
    if any(each.state == "succeeded" for each in answers):
        return "the run of a person's answer finished"
    if decision.remedy == "dismiss":
        return "later votes show no rise: a false alarm"
    decided_at = change.decisions[-1].decided_at
    # The first policy of a project is promoted by hand, and answers nothing.
    newer = [p for p in serving.policies if p.promoted_at > decided_at and p.previous_version]
    if newer:
        return f"{newer[-1].label} serves now"
    if decision.action == "fire" and decision.remedy in RETRAINING_REMEDIES:
        return ""
    if decision.action == "fire" and decision.state == "succeeded":
        return "its run finished"
    champion = serving.reward_model
    if champion is not None and champion.promoted_at > decided_at:
        return f"{champion.label} is the champion now"
    return ""


def _describe_progress(
    decision: TriggerDecision, decisions: Sequence[TriggerDecision], serving: ServingHistory
) -> tuple[str, str, str]:
    """How far the answer is, what the loop did, and what a person should do next."""
    name, remedy = f"decision {decision.decision_id}", REMEDY_WORDS.get(decision.remedy or "", "")
    if decision.remedy is None:
        return "not answered", "It waits for a clear cause.", "Look at the decision and its votes."
    if decision.action == "hold":
        asked = f"It asks people, by {name}: {remedy}."
        return "waits for a person", asked, "Answer the decision on its page."
    has_retrained = any(
        each.action == "fire"
        and each.state == "succeeded"
        and each.stored_id >= decision.stored_id
        and each.remedy in (None, *RETRAINING_REMEDIES)
        and each.order is None  # an ordered training fits no reward model
        for each in decisions
    )
    if has_retrained and decision.remedy in RETRAINING_REMEDIES:
        gate = serving.gate
        why = "No policy has been promoted since."
        if gate is not None and gate.decided_at > decision.decided_at and not gate.promoted:
            reasons = "; ".join(check.reason for check in gate.checks if not check.passed)
            why = f"The gate refused {gate.candidate}: {reasons}."
        step = "Promote a policy with `rlhf models promote`, or train another one."
        return NOT_SERVED, f"It retrained the reward model, by {name}. {why}", step
    if decision.state == "failed":
        step = "Read the run's error on the page Runs, and repair its cause."
        return "its run failed", f"It tried, by {name}: {remedy}. The run failed.", step
    step = "Nothing until the run has finished."
    return "its run is not finished", f"It started a run, by {name}: {remedy}.", step


def _describe_change(decision: TriggerDecision, causes: ChangeCauses | None) -> str:
    what = causes.summary if causes else decision.reasons[0] if decision.reasons else "a change"
    if decision.remedy is None:
        held = "; ".join(decision.reasons if causes else decision.reasons[1:])
        return f"{what.rstrip('.')}. Not answered yet: {held}" if held else what
    asks = decision.action == "hold" and decision.remedy == "quarantine"
    waits = " once a person agrees" if asks else ""
    answer = REMEDY_WORDS.get(decision.remedy, "decide")
    return f"{what.rstrip('.')}. Decision {decision.decision_id}: {answer}{waits}"


def _collect_evidence(decision: TriggerDecision, causes: ChangeCauses | None) -> dict[str, Any]:
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

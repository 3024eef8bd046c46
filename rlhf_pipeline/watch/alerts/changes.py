"""The state that rules read of drift: each confirmed change, and how far the loop answered it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rlhf_pipeline.core.records import (
    RETRAINING_REMEDIES,
    ChangeCauses,
    GateDecision,
    Promotion,
    TriggerDecision,
)
from rlhf_pipeline.watch.alerts.readings import Reading

NOT_SERVED = "answered, not served"
SERVES_AGAIN = "from before the change, serves again"
REMEDY_WORDS = {
    "retrain": "retrain",
    "retrain_category": "retrain one category",
    "reweight": "fit again on all votes",
    "refit_calibrator": "fit the calibrator again",
    "quarantine": "leave out the votes of careless annotators",
    "report_two_tastes": "ask people whose taste counts",
    "ask_for_cause": "ask people whether to retrain, as no cause is clear",
    "dismiss": "nothing; it was a false alarm",
}


def read_changes(
    decisions: Sequence[TriggerDecision],
    *,
    champion: Promotion | None = None,
    policies: Sequence[Promotion] = (),
    gate: GateDecision | None = None,
    asking: GateDecision | None = None,
) -> list[Reading]:
    """One reading per confirmed change, named after its first decision: 1 until its answer is
    served, and 0 while probably nothing rose. The next decision about the same reward model is
    about the same change while that waits for a clear cause, or after its answer has failed.

    `champion` is the present reward model, `policies` are those promoted so far, oldest first,
    `gate` is the gate's latest decision, and `asking` the one that it has left to people.
    """
    latest: dict[int, TriggerDecision] = {}  # of each change, by its first decision
    ongoing: dict[str, int] = {}  # the first decision of each reward model's newest change
    for decision in _select_confirmed(decisions):
        subject = decision.evidence.get("looked_at", {}).get("champion") or ""
        first = ongoing.get(subject)
        if first is None or (latest[first].remedy and latest[first].state != "failed"):
            ongoing[subject] = first = decision.stored_id
            latest[first] = decision
        elif decision.remedy or not latest[first].remedy:
            # one that only waits does not replace an answer that failed
            latest[first] = decision
    return [
        _read(
            f"decision {first}",
            decision,
            _find_end(decision, decisions, champion, policies),
            _describe_progress(decision, decisions, asking or gate),
        )
        for first, decision in latest.items()
    ]


def _select_confirmed(decisions: Iterable[TriggerDecision]) -> Iterable[TriggerDecision]:
    """The trigger's decisions about confirmed changes, without those that only wait for the answer
    to an earlier one.
    """
    for decision in decisions:
        counts = decision.evidence.get("looked_at", {})
        waits = not decision.remedy and counts.get("n_unfinished")
        is_confirmed = decision.remedy is not None or decision.evidence.get("confirmed")
        if decision.actor is None and is_confirmed and not waits:
            yield decision


def _read(
    subject: str, decision: TriggerDecision, end: str, progress: tuple[str, str, str]
) -> Reading:
    evidence = decision.evidence.get("causes")
    causes = ChangeCauses.model_validate(evidence) if evidence else None
    is_doubtful = (
        decision.remedy is None and causes is not None and causes.causes[0].name == "nothing"
    )
    state, loop_action, next_step = progress
    return Reading(
        name="drift.unanswered",
        measured_at=decision.decided_at,
        value=0.0 if end or is_doubtful else 1.0,
        labels={"decision": subject},
        detail=end or _describe_change(decision, causes),
        evidence=_collect_evidence(decision, causes),
        link=f"/decisions/{decision.stored_id}",
        progress="" if end else state,
        loop_action=end or loop_action,
        next_step="Nothing." if end else next_step,
    )


def _find_end(
    decision: TriggerDecision,
    decisions: Sequence[TriggerDecision],
    champion: Promotion | None,
    policies: Sequence[Promotion],
) -> str:
    """Why the change needs nobody any more; empty while it does. A retraining ends it only with the
    policy that it leads to: until that serves, people get completions of the old taste.
    """
    answers = [reply for reply in decisions if reply.answers == decision.stored_id]
    if any(answer.action == "hold" for answer in answers):
        is_policy_kept = decision.action == "fire"
        return "a person kept the present policy" if is_policy_kept else "a person dismissed it"
    if any(answer.state == "succeeded" for answer in answers):
        return "the run of a person's answer finished"
    if decision.remedy == "dismiss":
        return "later votes show no rise: a false alarm"
    # The first policy of a project is promoted by hand, and answers nothing.
    newer = [p for p in policies if p.promoted_at > _find_time(decision) and p.previous_version]
    if newer:
        newest = newer[-1]
        served = {p.version for p in policies[: policies.index(newer[0])]}
        if newest.version in served:  # rolled back: it was trained on the old taste
            return f"policy {newest.version}, {SERVES_AGAIN}"
        return f"{newest.label} serves now"
    if decision.action == "fire" and decision.remedy in RETRAINING_REMEDIES:
        return ""
    if decision.action == "fire" and decision.state == "succeeded":
        return "its run finished"
    if champion is not None and champion.promoted_at > _find_time(decision):
        return f"{champion.label} is the champion now"
    return ""


def _find_time(decision: TriggerDecision) -> datetime:
    """When it was made by the clock that promotions have too, not by that of a replayed day."""
    return decision.recorded_at or decision.decided_at


def _describe_progress(
    decision: TriggerDecision, decisions: Sequence[TriggerDecision], gate: GateDecision | None
) -> tuple[str, str, str]:
    """How far the answer is, what the loop did, and what a person should do next."""
    name, remedy = f"decision {decision.decision_id}", REMEDY_WORDS.get(decision.remedy or "", "")
    if decision.remedy is None:
        return "not answered", "It waits for a clear cause.", "Look at the decision and its votes."
    answers = [reply for reply in decisions if reply.answers == decision.stored_id]
    if answers and answers[-1].state != "failed":
        does = f"A person answered it, by decision {answers[-1].decision_id}."
        return "its run is not finished", does, "Nothing until the run has finished."
    if decision.action == "hold":
        question = f"It asks people, by {name}: {remedy}."
        return "waits for a person", question, "Answer the decision on its page."
    has_retrained = any(
        later.action == "fire"
        and later.state == "succeeded"
        and later.stored_id >= decision.stored_id
        and later.remedy in (None, *RETRAINING_REMEDIES)
        and later.order is None  # an ordered training fits no reward model
        for later in decisions
    )
    if has_retrained and decision.remedy in RETRAINING_REMEDIES:
        why = "No policy has been promoted since."
        step = "Train a policy by `rlhf policy train`"
        if gate is not None and gate.asks_people:
            why = f"People are asked about {gate.candidate}."
            step = "Wait for their votes"
        elif gate is not None and gate.decided_at > _find_time(decision) and not gate.promoted:
            reasons = "; ".join(check.reason for check in gate.blocking)
            why = f"The gate refused {gate.candidate}: {reasons}."
            step = (
                "Serve a candidate by `rlhf models promote` or on the page Models, train another "
                "one by `rlhf policy train`"
            )
        step += ", or keep the present policy by answering the decision."
        return NOT_SERVED, f"It retrained the reward model, by {name}. {why}", step
    if decision.state == "failed":
        step = "Read the run's error on the page Runs, and repair its cause."
        return "its run failed", f"It tried, by {name}: {remedy}. The run failed.", step
    step = "Nothing until the run has finished."
    return "its run is not finished", f"It started a run, by {name}: {remedy}.", step


def _describe_change(decision: TriggerDecision, causes: ChangeCauses | None) -> str:
    what = causes.summary if causes else next(iter(decision.reasons), "a change")
    if decision.remedy is None:
        reasons = "; ".join(decision.reasons if causes else decision.reasons[1:])
        return f"{what.rstrip('.')}. Not answered yet: {reasons}"
    waits = " once a person agrees" if decision.action == "hold" else ""
    answer = REMEDY_WORDS.get(decision.remedy, "decide")
    return f"{what.rstrip('.')}. Decision {decision.decision_id}: {answer}{waits}"


def _collect_evidence(decision: TriggerDecision, causes: ChangeCauses | None) -> Mapping[str, Any]:
    """The decision's figures; its reasons are left out, because they name annotators."""
    evidence = decision.model_dump(
        mode="json", include={"decision_id", "action", "remedy", "state", "change_seq", "run_id"}
    ) | {"detectors": decision.evidence.get("confirmed", [])}
    if causes is not None:
        evidence |= {
            "cause": causes.causes[0].name,
            "probabilities": {cause.name: round(cause.probability, 3) for cause in causes.causes},
            "change_seq": causes.change_seq,
            "rise": causes.rise.model_dump(mode="json"),
        }
    return evidence

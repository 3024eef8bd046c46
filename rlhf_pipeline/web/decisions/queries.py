"""Composes decisions as the API returns them, with their explanation and the gate they led to."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import RETRAINING_REMEDIES, GateDecision, TriggerDecision
from rlhf_pipeline.improve.retraining.answers import has_ended, waits
from rlhf_pipeline.improve.retraining.explanation import (
    Inputs,
    check_conditions,
    list_events,
    read_inputs,
)
from rlhf_pipeline.improve.retraining.messages import (
    describe_state,
    format_figures,
    known_seq,
    read_causes,
    summarise_decision,
)
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.decisions.answers import DecisionDetail, DecisionEvent, GateOut, RiseOut
from rlhf_pipeline.web.lists import make_cursor, parse_cursor
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import find_vote_days, find_votes_until

# what a candidate was refused for, by rule of the gate
REFUSALS = {
    "win_rate": "its win rate",
    "categories": "a category that got worse",
    "checkable_answers": "facts that got worse",
    "win_rate_at_equal_length": "winning by length alone",
    "blocking_checks": "a failed check",
    "kl": "moving too far from the champion",
    "diversity": "answering everything alike, or repeating prompts",
    "evaluation_prompts": "training on evaluation prompts",
    "remembered_errors": "lost hits on remembered predictions",
    "judge_calibration": "a badly calibrated judge",
    "safety_prompts": "answers to safety prompts",
    "canaries": "secrets learnt by heart",
}


def page(site: Site, *, cursor: str | None, limit: int) -> Page[DecisionOut]:
    place = parse_cursor(cursor, int)
    decisions = site.store.decisions.page(before_id=place[0] if place else None, limit=limit)
    answers = site.store.decisions.find_answers()
    after = make_cursor(decisions[-1].stored_id) if len(decisions) == limit else None
    times = find_changes(site.store, decisions)
    items = tuple(describe_decision(decision, answers, times) for decision in decisions)
    return Page(items=items, next=after)


def find_waiting(store: Store) -> list[TriggerDecision]:
    """Those that a person may answer now, oldest first."""
    decisions = [decision for decision in store.decisions.held_with_remedy() if waits(decision)]
    answers = store.decisions.find_answers() if decisions else {}
    return [decision for decision in decisions if decision.stored_id not in answers]


def find_changes(store: Store, decisions: Sequence[TriggerDecision]) -> dict[int, datetime]:
    """When the votes were cast at which the decisions date their changes, by seq."""
    return store.votes.times(decision.change_seq for decision in decisions)


def describe(store: Store, decision: TriggerDecision) -> DecisionOut:
    """One that nobody has answered yet."""
    return describe_decision(decision, {}, find_changes(store, [decision]))


def describe_decision(
    decision: TriggerDecision, answers: Mapping[int, int], times: Mapping[int, datetime]
) -> DecisionOut:
    """The decision and what became of it."""
    return DecisionOut(**_describe(decision, answers, times))


def detail(site: Site, decision_id: int) -> DecisionDetail:
    """Raises NotFound."""
    decision = site.store.decisions.get(decision_id)
    inputs, not_explained = _read_inputs(decision)
    causes = read_causes(decision)
    described = _describe(
        decision, site.store.decisions.find_answers(), find_changes(site.store, [decision])
    )
    if described["answered_by"] is None and _is_unserved(site, decision):
        described["actions"] = ("keep",)
    return DecisionDetail(
        **described,
        causes=causes.causes if causes else (),
        rise=None
        if causes is None
        else RiseOut(difference=causes.rise, n_before=causes.n_before, n_after=causes.n_after),
        conditions=tuple(check_conditions(inputs)) if inputs else (),
        events=_list_events(site.store, decision, inputs) if inputs else (),
        not_explained=not_explained,
        gate=_find_gate(site, decision),
    )


def _describe(
    decision: TriggerDecision, answers: Mapping[int, int], times: Mapping[int, datetime]
) -> dict[str, Any]:
    causes = read_causes(decision)
    first = causes.causes[0] if causes else None
    answered_by = answers.get(decision.stored_id)
    return {
        "decision_id": decision.stored_id,
        **decision.model_dump(
            include={
                *("decided_at", "action", "reasons", "remedy", "change_seq", "run_id", "actor"),
                "answers",
            }
        ),
        "state": describe_state(decision, answered_by),
        "summary": summarise_decision(decision, answered_by),
        "cause": first and first.name,
        "cause_probability": first and first.probability,
        "quarantine": decision.quarantine,
        "changed_at": times.get(decision.change_seq or 0),
        "known_seq": known_seq(decision),
        "n_events": len(decision.event_ids),
        "answered_by": answered_by,
        "actions": _list_actions(decision, answered_by),
    }


def _list_actions(
    decision: TriggerDecision, answered_by: int | None
) -> tuple[Literal["answer", "lift", "keep"], ...]:
    if answered_by is not None:
        return ()
    if waits(decision):
        return ("answer",)
    began = decision.action == "fire" and decision.remedy == "quarantine"
    return ("lift",) if began and decision.quarantine is not None else ()


def _is_unserved(site: Site, decision: TriggerDecision) -> bool:
    """It retrained, and no policy was promoted since."""
    policy = site.store.promotions.champion(f"{site.settings.project}.policy")
    is_newer = policy is not None and policy.promoted_at > decision.decided_at
    is_of_trigger = decision.actor is None and decision.remedy in RETRAINING_REMEDIES
    return has_ended(decision) and is_of_trigger and not is_newer


def _read_inputs(decision: TriggerDecision) -> tuple[Inputs | None, str | None]:
    if decision.actor is not None:
        return None, "A person decided it, so no condition of the trigger applied."
    try:
        return read_inputs(decision), None
    except ConfigurationError as cause:
        return None, str(cause)


def _list_events(
    store: Store, decision: TriggerDecision, inputs: Inputs
) -> tuple[DecisionEvent, ...]:
    times = store.votes.times(event.change_seq for event, _ in list_events(inputs))
    return tuple(
        DecisionEvent(
            **event.model_dump(),
            changed_at=times.get(event.change_seq or 0),
            decision_id=decision.stored_id,
            role=role,
            figures=format_figures(event.evidence),
        )
        for event, role in list_events(inputs)
    )


def _find_gate(site: Site, decision: TriggerDecision) -> GateOut | None:
    """The gate of the decision's run."""
    if not _has_trained(decision):
        return None
    gates = [gate for gate in site.store.gates.all() if gate.run_id == decision.run_id]
    return describe_gate(site, gates[-1]) if gates else None


def describe_gate(site: Site, gate: GateDecision) -> GateOut:
    days = find_vote_days(site.store, site.settings.project, [gate.decided_at])
    return build_gate(gate, find_votes_until(days, gate.decided_at))


def build_gate(gate: GateDecision, votes_until: date | None, n_decisions: int = 1) -> GateOut:
    return GateOut(
        **{name: getattr(gate, name) for name in GateDecision.model_fields},
        votes_until=votes_until,
        refused_for=tuple(REFUSALS.get(check.name, check.name) for check in gate.blocking),
        n_decisions=n_decisions,
    )


def _has_trained(decision: TriggerDecision) -> bool:
    is_training = decision.remedy is None or decision.remedy in RETRAINING_REMEDIES
    return decision.action == "fire" and decision.state == "succeeded" and is_training

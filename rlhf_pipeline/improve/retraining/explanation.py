"""Explains a retraining decision: each condition with its numbers, and the events it saw."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import DriftEvent, Record, TriggerDecision, TriggerEvidence
from rlhf_pipeline.improve.retraining.triggers import (
    ASKING_REMEDIES,
    TriggerParams,
    choose_remedy,
    describe_probabilities,
    find_causes_of,
    is_left_to_people,
    list_own_events,
)
from rlhf_pipeline.watch.drift.confirmation import (
    describe_requirement,
    event_sources,
    find_confirming_events,
    list_confirmers,
)

# Shown as conditions, events and causes. Whatever else a rule records is shown as it is.
EXPLAINED = {
    "looked_at",
    "params",
    "reported",
    "confirmed",
    "confirming_event_ids",
    "causes",
    "quarantine",
}


class Condition(Record):
    """One condition of a fire: what it requires, what there was, and whether that was enough."""

    name: str
    required: str
    actual: str
    is_met: bool | None = Field(
        description="null if it was not examined; a decision fires if no condition is unmet."
    )


class Inputs(NamedTuple):
    """What the rule saw, and the parameters that it used."""

    evidence: TriggerEvidence
    params: TriggerParams


def read_inputs(decision: TriggerDecision) -> Inputs:
    """The inputs that the decision recorded. Raises ConfigurationError if it has none, or of
    another form.
    """
    try:
        return Inputs(
            TriggerEvidence.model_validate(decision.evidence["looked_at"]),
            TriggerParams.model_validate(decision.evidence["params"]),
        )
    except (KeyError, ValidationError) as cause:
        raise ConfigurationError(
            f"Decision {decision.decision_id} does not hold the inputs of the trigger's rule: "
            f"{_describe(cause)}. It cannot be explained."
        ) from cause


def check_conditions(inputs: Inputs) -> list[Condition]:
    """Every condition of `triggers.decide`: it fires if and only if none is unmet."""
    evidence, params = inputs
    since = None if evidence.last_fired_at is None else evidence.now - evidence.last_fired_at
    return [
        Condition(
            name="champion",
            required="a champion reward model",
            actual=evidence.champion or "none",
            is_met=evidence.champion is not None,
        ),
        _check_confirmation(inputs),
        Condition(
            name="unfinished",
            required="no retraining that has not ended",
            actual=f"{evidence.n_unfinished + evidence.n_ordered}",
            is_met=not evidence.n_unfinished + evidence.n_ordered,
        ),
        Condition(
            name="cool-down",
            required=f"{params.cool_down_hours:g} h since the last retraining",
            actual="no earlier retraining"
            if since is None
            else f"{since.total_seconds() / 3600:.1f} h",
            is_met=since is None or since >= timedelta(hours=params.cool_down_hours),
        ),
        Condition(
            name="new votes",
            required=f"{params.min_new_votes:,} since the last retraining",
            actual=f"{evidence.n_new_votes:,}",
            is_met=evidence.n_new_votes >= params.min_new_votes,
        ),
        *_check_cause(inputs),
    ]


def list_events(inputs: Inputs) -> list[tuple[DriftEvent, str]]:
    """The events that the rule saw, in vote order, and what each counted for."""
    evidence, params = inputs
    events = {e.event_id: e for e in (*evidence.open_events, *evidence.held_events)}
    own = list_own_events(evidence, params)
    confirming = {e.event_id for e in find_confirming_events(own, params)}

    def describe_role(event: DriftEvent) -> str:
        if event.model_version != evidence.champion:
            return "superseded"
        if is_left_to_people(event, evidence.left_to_people, params):
            return "left to people"
        return "confirms" if event.event_id in confirming else "unconfirmed"

    ordered = sorted(events.values(), key=lambda e: (e.seq, e.event_id))
    return [(event, describe_role(event)) for event in ordered]


def other_evidence(decision: TriggerDecision) -> dict[str, Any]:
    """What the decision recorded beside inputs, parameters, causes and confirming events."""
    return {name: value for name, value in decision.evidence.items() if name not in EXPLAINED}


def _check_confirmation(inputs: Inputs) -> Condition:
    evidence, params = inputs
    own = list_own_events(evidence, params)
    confirming = find_confirming_events(own, params)
    sources = event_sources(confirming or list_confirmers(own))
    actual = "none"
    if sources:
        actual = f"{len(sources)} detector{'s' * (len(sources) > 1)} ({', '.join(sources)})"
    if own and not sources:
        actual += "; calibration tests alone failed"
    if confirming:
        actual += f" between votes {confirming[0].seq:,} and {confirming[-1].seq:,}"
    elif 0 < params.confirmations <= len(sources):
        actual += ", too far apart"
    return Condition(
        name="confirmations",
        required=describe_requirement(params)
        + (
            f", or calibration tests that fail on {params.calibration_days} days of a week"
            if params.calibration_days
            else ""
        ),
        actual=actual,
        is_met=evidence.champion is None or bool(confirming),
    )


def _check_cause(inputs: Inputs) -> Iterator[Condition]:
    evidence, params = inputs
    confirming = find_confirming_events(list_own_events(evidence, params), params)
    causes = find_causes_of(confirming) if params.respond_to_causes else None
    if causes is None:
        yield Condition(
            name="cause",
            required="a cause that needs no person",
            actual="not examined",
            is_met=None,
        )
        return
    remedy = choose_remedy(confirming, causes, evidence.max_seq, params)
    yield Condition(
        name="certainty",
        required=f"one cause is {params.min_certainty:.0%} probable, or "
        f"{params.max_cause_votes:,} votes have arrived since the confirmation",
        actual=describe_probabilities(causes),
        is_met=remedy is not None,
    )
    if remedy is not None:
        top = causes.causes[0].name
        needs_nobody = remedy != "dismiss" and remedy not in ASKING_REMEDIES
        yield Condition(
            name="cause",
            required="a rise of errors that needs no person",
            actual=top,
            is_met=needs_nobody,
        )


def _describe(cause: KeyError | ValidationError) -> str:
    if isinstance(cause, KeyError):
        return f"{cause} is missing"
    first = cause.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"

"""Decides whether drift and calibration events start a retraining, or why it is on hold."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic import Field

from rlhf_pipeline.drift.confirmation import (
    ConfirmationParams,
    estimate_change_seq,
    event_sources,
    find_confirming_events,
)
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.records import DriftEvent, TriggerDecision, TriggerEvidence


class TriggerParams(ConfirmationParams):
    """The conditions under which events start a retraining."""

    cool_down_hours: float = Field(
        default=24.0, ge=0, le=8760, description="Hours after a fire in which no other fires"
    )
    min_new_votes: int = Field(
        default=200, ge=0, description="Votes since the last fire (or ever) before the next"
    )


def decide(evidence: TriggerEvidence, params: TriggerParams | None = None) -> TriggerDecision:
    """Fire if the champion's events confirm each other and nothing objects now; otherwise hold,
    with every reason.

    Open events count the same as those held by earlier decisions, so a change detected during a
    cool-down fires when it is over, without a new event. Events of a former champion never fire.
    The decision's `evidence` holds all its inputs, from which `replay` makes it again.
    """
    params = params or TriggerParams()
    events = _distinct_events((*evidence.open_events, *evidence.held_events))
    own = [e for e in events if e.model_version == evidence.champion]
    confirmed = find_confirming_events(own, params)
    objections = _list_objections(evidence, own, confirmed, params)
    stale = [e for e in events if e.model_version != evidence.champion]
    reasons = [
        *_describe_superseded(stale, evidence.champion),
        *(objections or [_describe_confirmation(confirmed)]),
    ]
    fires = not objections
    involved = (
        _distinct_events((*evidence.open_events, *confirmed)) if fires else evidence.open_events
    )
    return TriggerDecision(
        action="fire" if fires else "hold",
        reasons=tuple(reasons),
        event_ids=tuple(event.event_id for event in involved),
        evidence=_collect_evidence(evidence, params, own, confirmed),
        change_seq=estimate_change_seq(confirmed) if fires else None,
        decided_at=evidence.now,
        state="pending" if fires else "held",
    )


def replay(decision: TriggerDecision) -> TriggerDecision:
    """Make the same decision again from its own evidence alone. Raises ConfigurationError if it has
    none.
    """
    try:
        looked_at, params = decision.evidence["looked_at"], decision.evidence["params"]
    except KeyError as cause:
        raise ConfigurationError(
            f"Decision {decision.decision_id} has no {cause} in its evidence: it was not made by "
            "this rule and cannot be replayed."
        ) from cause
    return decide(TriggerEvidence.model_validate(looked_at), TriggerParams.model_validate(params))


def _list_objections(
    evidence: TriggerEvidence,
    own: Sequence[DriftEvent],
    confirmed: Sequence[DriftEvent],
    params: TriggerParams,
) -> list[str]:
    """List every objection to firing now, in words with numbers."""
    if evidence.champion is None:
        return ["there is no champion reward model to retrain"]
    found = []
    if evidence.n_unfinished:
        found.append(f"{evidence.n_unfinished} earlier retraining decision(s) not finished")
    if not own:
        found.append(f"no open or held event of champion {evidence.champion}")
    elif not confirmed:
        found.append(_describe_unconfirmed(own, params))
    if evidence.last_fired_at is not None:
        since = evidence.now - evidence.last_fired_at
        if since < timedelta(hours=params.cool_down_hours):
            found.append(
                f"cool-down: last fired {since.total_seconds() / 3600:.1f} h ago, "
                f"{params.cool_down_hours:g} h are required"
            )
    if evidence.n_new_votes < params.min_new_votes:
        found.append(
            f"{evidence.n_new_votes} new votes since the last retraining, {params.min_new_votes} "
            "are required"
        )
    return found


def _describe_unconfirmed(own: Sequence[DriftEvent], params: TriggerParams) -> str:
    sources = event_sources(own)
    distance = ", but too far apart" if len(sources) >= params.confirmations else ""
    return (
        f"unconfirmed: {len(sources)} detector(s) reported ({', '.join(sources)}){distance}; "
        f"{params.confirmations} within {params.confirmation_window} votes are required"
    )


def _describe_confirmation(confirmed: Sequence[DriftEvent]) -> str:
    sources, start = event_sources(confirmed), estimate_change_seq(confirmed)
    dated = f"; change dated at vote {start}" if start is not None else ""
    return (
        f"confirmed by {len(sources)} detectors ({', '.join(sources)}) between votes "
        f"{confirmed[0].seq} and {confirmed[-1].seq}{dated}"
    )


def _describe_superseded(stale: Sequence[DriftEvent], champion: str | None) -> list[str]:
    if not stale or champion is None:
        return []
    models = ", ".join(sorted({event.model_version for event in stale}))
    return [f"superseded: {len(stale)} event(s) of {models}, champion is {champion}"]


def _collect_evidence(
    evidence: TriggerEvidence,
    params: TriggerParams,
    own: Sequence[DriftEvent],
    confirmed: Sequence[DriftEvent],
) -> dict[str, Any]:
    return {
        "looked_at": evidence.model_dump(mode="json"),
        "params": params.model_dump(mode="json"),
        "reported": event_sources(own),
        "confirmed": event_sources(confirmed),
        "confirming_event_ids": [event.event_id for event in confirmed],
    }


def _distinct_events(events: Sequence[DriftEvent]) -> tuple[DriftEvent, ...]:
    """Each event once, in vote order."""
    return tuple(
        sorted({e.event_id: e for e in events}.values(), key=lambda e: (e.seq, e.event_id))
    )

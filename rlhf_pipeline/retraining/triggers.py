"""Decides whether drift and calibration events start a retraining, or why it is on hold."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic import Field

from rlhf_pipeline.drift.cause_evidence import MIN_SECOND_SHARE
from rlhf_pipeline.drift.causes import CAUSE_VOTES, list_causes
from rlhf_pipeline.drift.confirmation import (
    RISE_TEST,
    ConfirmationParams,
    estimate_change_seq,
    event_sources,
    find_confirming_events,
    list_confirmers,
)
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.records import (
    Cause,
    CauseName,
    ChangeCauses,
    DriftEvent,
    Quarantine,
    Remedy,
    TriggerDecision,
    TriggerEvidence,
)


class TriggerParams(ConfirmationParams):
    """The conditions under which events start a retraining."""

    cool_down_hours: float = Field(
        default=24.0, ge=0, le=8760, description="Hours after a fire in which no other fires"
    )
    min_new_votes: int = Field(
        default=200, ge=0, description="Votes since the last fire (or ever) before the next"
    )
    respond_to_causes: bool = Field(
        default=True,
        description="Answer a change by its cause; false = every confirmed change retrains",
    )
    asks_people: bool = Field(
        default=False,
        description="A quarantine of careless annotators waits for a person (`rlhf triggers "
        "answer`); false = it begins at once. Two tastes always wait",
    )
    min_cause_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of the rise that a cause must explain for its remedy; below it, the "
        "change retrains",
    )
    min_certainty: float = Field(
        default=0.6,
        ge=0,
        le=1,
        description="Probability that the remedy is that of the main cause; below it, the decision "
        "waits for more votes; 0 = decide at once",
    )
    min_annotator_certainty: float = Field(
        default=0.93,
        ge=0,
        le=1,
        description="Probability that careless annotators or newcomers are behind the change, or "
        "are not; below it, the decision waits too",
    )
    max_cause_votes: int = Field(
        default=400,
        ge=0,
        le=CAUSE_VOTES // 2,
        description="Votes after the confirmation at which an unclear cause is answered as it "
        "stands, or dismissed if probably nothing rose; twice as many where careless annotators "
        "or newcomers may be behind it",
    )


REMEDIES: dict[CauseName, Remedy] = {
    "taste": "retrain",
    "category": "retrain_category",
    "mix": "reweight",
    "calibration": "refit_calibrator",
    "carelessness": "quarantine",
    "newcomers": "report_two_tastes",
}
# These train a policy.
RETRAINING_REMEDIES: frozenset[Remedy] = frozenset({"retrain", "retrain_category", "reweight"})
# These leave votes out, at once or once a person agrees.
ANNOTATOR_REMEDIES: frozenset[Remedy] = frozenset({"quarantine", "report_two_tastes"})
# After these, pairs and drift reports are made anew, and no model is fitted.
RECOMPUTING_REMEDIES: frozenset[Remedy | None] = frozenset({"quarantine", "lift_quarantine"})
# Only these find that votes before the change follow another taste.
CHANGES_TASTE: frozenset[Remedy] = frozenset({"retrain", "retrain_category"})
_MEANING: dict[Remedy, str] = {
    "retrain_category": "retrain; votes before the change count less in category {category}",
    "reweight": "fit and train again on all votes; no vote counts less",
    "refit_calibrator": "fit the calibrator again",
    "quarantine": "votes of careless annotators are left out: {named}",
    "report_two_tastes": "newcomers with another taste: {named}",
}
SHOWN_NAMES = 10
LIKELY_NOTHING = 0.5  # probability above which a confirmed change is a false alarm
LIKELY_CARELESS = 0.5  # probability above which an annotator is named


def decide(evidence: TriggerEvidence, params: TriggerParams | None = None) -> TriggerDecision:
    """Fire if the champion's events confirm a change, it needs no person, and nothing objects now;
    otherwise hold, with every reason. While its cause is unclear and few votes have come since, the
    change is held too.

    Open events count the same as those held by earlier decisions, so a change detected during a
    cool-down fires when it is over, without a new event. Events of a former champion never fire. A
    change that waits for people is held once; neither its events count any more nor those of the
    `confirmation_window` after it, and until a person answers, nothing else fires. The decision's
    `evidence` holds all its inputs, from which `replay` makes it again.
    """
    params = params or TriggerParams()
    events = _distinct_events((*evidence.open_events, *evidence.held_events))
    own = list_own_events(evidence, params)
    confirmed = find_confirming_events(own, params)
    if is_false_alarm(confirmed, evidence.max_seq, params):
        return _dismiss(evidence, params, own, confirmed)
    objections = _list_objections(evidence, own, confirmed, params)
    stale = [e for e in events if e.model_version != evidence.champion]
    causes = find_causes_of(confirmed, evidence.max_seq) if params.respond_to_causes else None
    remedy = choose_remedy(causes, params)
    if params.respond_to_causes and confirmed and is_miscalibration(confirmed):
        remedy = choose_calibration_remedy(causes, params)
    elif causes is not None and not objections:
        objections = list_reasons_to_wait(causes, confirmed, evidence.max_seq, params)
    waits = needs_people(remedy, params)
    is_named = not objections and remedy in ANNOTATOR_REMEDIES
    named = name_annotators(causes, confirmed) if causes and is_named else None
    reasons = [
        *_describe_superseded(stale, evidence.champion),
        *(objections or [_describe_confirmation(confirmed)]),
    ]
    if causes is not None and not objections:
        reasons.append(causes.summary)
    if remedy != "retrain" and not objections:
        reasons.append(
            _MEANING[remedy].format(category=_category_of(causes), named=_describe_named(named))
        )
    if waits and not objections:
        reasons.append("nothing runs until a person answers: `rlhf triggers answer`")
    involved = (
        evidence.open_events
        if objections
        else _distinct_events((*evidence.open_events, *confirmed))
    )
    fires = not objections and not waits
    changes_taste = fires and remedy in CHANGES_TASTE
    return TriggerDecision(
        action="fire" if fires else "hold",
        reasons=tuple(reasons),
        event_ids=tuple(event.event_id for event in involved),
        evidence=_collect_evidence(evidence, params, own, confirmed)
        | ({"causes": causes.model_dump(mode="json")} if causes else {})
        | ({"category": _category_of(causes)} if remedy == "retrain_category" else {})
        | ({"quarantine": named.model_dump(mode="json")} if named else {}),
        change_seq=estimate_change_seq(confirmed) if changes_taste else None,
        decided_at=evidence.now,
        state="pending" if fires else "held",
        remedy=None if objections else remedy,
    )


def find_unclear_change(
    evidence: TriggerEvidence, params: TriggerParams | None = None
) -> str | None:
    """Why a confirmed change of the champion waits for a clear cause; None where none does.

    Until it is answered no other reward model may become champion: the change would be superseded,
    and votes from before it would go on counting in full. A change that waits for people, for a
    cool-down or for new votes keeps no model back, as that can take as long as they like.
    """
    params = params or TriggerParams()
    left = evidence.left_to_people
    if not params.respond_to_causes or (left is not None and not left.is_answered):
        return None
    confirmed = find_confirming_events(list_own_events(evidence, params), params)
    causes = find_causes_of(confirmed, evidence.max_seq)
    if causes is None or is_miscalibration(confirmed):
        return None
    return "; ".join(list_reasons_to_wait(causes, confirmed, evidence.max_seq, params)) or None


def _dismiss(
    evidence: TriggerEvidence,
    params: TriggerParams,
    own: Sequence[DriftEvent],
    confirmed: Sequence[DriftEvent],
) -> TriggerDecision:
    """Hold, and claim the confirming events for good: they count no more, others do."""
    causes = find_causes_of(confirmed, evidence.max_seq)
    assert causes is not None
    n_later = causes.until_seq - find_deadline(confirmed, params) + params.max_cause_votes
    events = (*evidence.open_events, *evidence.held_events)
    stale = [event for event in events if event.model_version != evidence.champion]
    return TriggerDecision(
        action="hold",
        reasons=(
            *_describe_superseded(stale, evidence.champion),
            _describe_confirmation(confirmed),
            f"dismissed as a false alarm: {n_later:,} votes later it is "
            f"{chance_of_nothing(causes):.0%} likely that errors have not become more frequent",
        ),
        event_ids=tuple(event.event_id for event in confirmed),
        evidence=_collect_evidence(evidence, params, own, confirmed)
        | {"causes": causes.model_dump(mode="json")},
        decided_at=evidence.now,
        state="held",
        remedy="dismiss",
    )


def list_own_events(evidence: TriggerEvidence, params: ConfirmationParams) -> list[DriftEvent]:
    """The events of the champion, in vote order, without those of a change left to people."""
    events = _distinct_events((*evidence.open_events, *evidence.held_events))
    return [
        event
        for event in events
        if event.model_version == evidence.champion
        and not is_left_to_people(event, evidence, params)
    ]


def is_left_to_people(
    event: DriftEvent, evidence: TriggerEvidence, params: ConfirmationParams
) -> bool:
    """Whether the event is a further sign of the change that was left to people."""
    left = evidence.left_to_people
    if left is None or event.seq >= left.seq + params.confirmation_window:
        return False
    return left.reread_from is None or event.detected_at < left.reread_from


def choose_remedy(causes: ChangeCauses | None, params: TriggerParams) -> Remedy:
    """The remedy of the likeliest cause; a cause that explains too little of the rise retrains, as
    an unknown one does, and so does carelessness of everybody or of nobody in particular.
    """
    if causes is None or causes.causes[0].share < params.min_cause_share:
        return "retrain"
    remedy = REMEDIES[causes.causes[0].name]
    if remedy == "quarantine" and not name_careless(causes.causes[0]):
        return "retrain"
    return remedy


def choose_calibration_remedy(causes: ChangeCauses | None, params: TriggerParams) -> Remedy:
    """The remedy where calibration tests fail for days and no detector reports a rise: that of a
    clear cause, or else the calibrator is fitted again, which loses nothing.
    """
    if causes is None or causes.causes[0].share < params.min_cause_share:
        return "refit_calibrator"
    remedy = choose_remedy(causes, params)
    return remedy if is_clear(causes, remedy, params) else "refit_calibrator"


def is_miscalibration(confirmed: Sequence[DriftEvent]) -> bool:
    """Whether calibration tests alone confirm the change."""
    return all(event.kind == "calibration" for event in confirmed)


def needs_people(remedy: Remedy, params: TriggerParams) -> bool:
    """Whether the remedy waits for a person's answer."""
    if remedy == "quarantine":
        return params.asks_people
    return remedy == "report_two_tastes"


def name_annotators(causes: ChangeCauses, confirmed: Sequence[DriftEvent]) -> Quarantine | None:
    """Whom a quarantine leaves out, by the likeliest cause, and from which vote on; None where it
    names nobody.
    """
    cause = causes.causes[0]
    names = (
        name_careless(cause)
        if cause.name == "carelessness"
        else tuple(cause.evidence.get("annotator_ids", ()))
    )
    start = estimate_change_seq(confirmed)
    start = causes.change_seq if start is None else start
    return Quarantine(annotator_ids=names, from_seq=start) if names else None


def name_careless(cause: Cause) -> tuple[str, ...]:
    """The annotators who are likely careless and err more often than expected. Nobody, where that
    is more than half of those who voted around the change, or who cast more than half of the votes
    before it (after it, where there are none before): then everybody has changed.
    """
    evidence = cause.evidence
    found = [
        one
        for one in evidence["each"]
        if one["n_votes"]
        and one["probability"] > LIKELY_CARELESS
        and one["error"] > one["expected_error"]
    ]
    n_votes = sum(one["n_votes_before"] for one in found)
    n_of_all = evidence["n_votes_of_all_before"]
    share = n_votes / n_of_all if n_of_all else evidence["share_of_votes"]
    if 2 * len(found) > evidence["n_active"] or share > 0.5:
        return ()
    return tuple(one["annotator_id"] for one in found)


def find_causes_of(confirmed: Sequence[DriftEvent], max_seq: int) -> ChangeCauses | None:
    """The causes found with the last confirming event, of all votes or else of one category, in the
    votes up to `max_seq`.
    """
    explained = last_on_all_votes([event for event in confirmed if "causes" in event.evidence])
    if explained is None:
        return None
    first, *later = list_causes(explained)
    return [first, *(causes for causes in later if causes.until_seq <= max_seq)][-1]


def last_on_all_votes(events: Sequence[DriftEvent]) -> DriftEvent | None:
    """The last event of the stream of all votes, or else of any stream."""
    of_all = [event for event in events if event.stream == "errors"]
    return next(reversed(of_all or list(events)), None)


def list_reasons_to_wait(
    causes: ChangeCauses,
    confirmed: Sequence[DriftEvent],
    max_seq: int,
    params: TriggerParams,
) -> list[str]:
    """Why the change is not answered yet: its cause is unclear, and further votes may show it."""
    n_missing = find_deadline(confirmed, params) - max_seq
    remedy = choose_remedy(causes, params)
    if leaves_annotators_unclear(causes, remedy, params):
        n_missing += params.max_cause_votes
    if n_missing <= 0:
        return _wait_for_a_rise(causes, confirmed, max_seq, params)
    if is_clear(causes, remedy, params):
        return []
    return [
        f"cause not clear yet ({describe_probabilities(causes)}): answered as it stands after "
        f"{n_missing} more votes"
    ]


def _wait_for_a_rise(
    causes: ChangeCauses,
    confirmed: Sequence[DriftEvent],
    max_seq: int,
    params: TriggerParams,
) -> list[str]:
    """Probably nothing rose, but the votes that would show it are not examined yet: those after a
    later event, or those since the last report. If that takes as many votes again, no report comes.
    """
    if chance_of_nothing(causes) <= LIKELY_NOTHING:
        return []
    shown_by = params.max_cause_votes + max(
        event.seq for event in confirmed if "causes" in event.evidence
    )
    if causes.until_seq >= shown_by or max_seq >= shown_by + params.max_cause_votes:
        return []
    return [
        f"probably nothing rose ({chance_of_nothing(causes):.0%}): dismissed unless votes up to "
        f"{shown_by} show a rise"
    ]


def find_deadline(confirmed: Sequence[DriftEvent], params: TriggerParams) -> int:
    """The vote at which a confirmed change is answered, however unclear its cause."""
    rises = [event.seq for event in confirmed if event.detector == RISE_TEST]
    return min(rises or [confirmed[-1].seq]) + params.max_cause_votes


def is_false_alarm(confirmed: Sequence[DriftEvent], max_seq: int, params: TriggerParams) -> bool:
    """Whether `max_cause_votes` further votes show of each event that probably nothing rose."""
    if not params.respond_to_causes or not params.max_cause_votes or is_miscalibration(confirmed):
        return False
    examined = [event for event in confirmed if "causes" in event.evidence]
    return bool(examined) and all(
        causes is not None
        and causes.until_seq >= event.seq + params.max_cause_votes
        and chance_of_nothing(causes) > LIKELY_NOTHING
        for event in examined
        for causes in (find_causes_of([event], max_seq),)
    )


def chance_of_nothing(causes: ChangeCauses) -> float:
    """The probability that none of the causes is at work; 0 where it was not computed."""
    known = [cause.probability for cause in causes.causes if cause.probability is not None]
    return max(0.0, 1 - sum(known)) if known else 0.0


def is_clear(causes: ChangeCauses, chosen: Remedy, params: TriggerParams) -> bool:
    """Whether the chosen remedy is likely right: that of the main cause, or, where the likeliest
    one explains too little of the rise, no matter about annotators. Causes without probabilities
    count as clear.
    """
    likeliest = causes.causes[0]
    if all(cause.probability is None for cause in causes.causes):
        return True
    of_remedy = 0.0
    for cause in causes.causes:
        remedy = REMEDIES[cause.name]
        if likeliest.share < params.min_cause_share:
            is_right = remedy not in ANNOTATOR_REMEDIES
        else:
            is_right = remedy == chosen
        of_remedy += (cause.probability or 0.0) * is_right
    return of_remedy >= params.min_certainty and not leaves_annotators_unclear(
        causes, chosen, params
    )


def leaves_annotators_unclear(causes: ChangeCauses, chosen: Remedy, params: TriggerParams) -> bool:
    """Whether the chosen remedy may be wrong about who is behind the change: careless annotators or
    newcomers, or everybody. It is not, where no cause has a probability.
    """
    of_others = 0.0
    for cause in causes.causes:
        if (REMEDIES[cause.name] in ANNOTATOR_REMEDIES) != (chosen in ANNOTATOR_REMEDIES):
            of_others += cause.probability or 0.0
    return 1 - of_others < params.min_annotator_certainty


def describe_probabilities(causes: ChangeCauses) -> str:
    """The likely causes: how probable it is that each explains most."""
    likely = [cause for cause in causes.causes if (cause.probability or 0) >= MIN_SECOND_SHARE]
    return ", ".join(f"{cause.name} {cause.probability:.0%}" for cause in likely) or "none likely"


def _category_of(causes: ChangeCauses | None) -> str | None:
    if causes is None or causes.causes[0].name != "category":
        return None
    return str(causes.causes[0].evidence["category"])


def _describe_named(named: Quarantine | None) -> str:
    if named is None:
        return ""
    shown = ", ".join(named.annotator_ids[:SHOWN_NAMES])
    n_more = len(named.annotator_ids) - SHOWN_NAMES
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{shown}{more}, from vote {named.from_seq} on"


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
    """List every objection to answering the events now, in words with numbers."""
    if evidence.champion is None:
        return ["there is no champion reward model to retrain"]
    found = []
    left = evidence.left_to_people
    if left is not None and not left.is_answered:
        found.append(
            f"the change of decision {left.decision_id} waits for a person: `rlhf triggers answer "
            f"{left.decision_id}`"
        )
    if evidence.n_unfinished:
        found.append(f"{_count(evidence.n_unfinished, 'earlier retraining decision')} not finished")
    if evidence.n_ordered:
        found.append(f"{_count(evidence.n_ordered, 'training job')} not finished")
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
    sources = event_sources(list_confirmers(own, params))
    if not sources:
        return (
            "unconfirmed: calibration tests alone failed; the calibrator is fitted again once they "
            f"fail on {params.calibration_days} days of a week"
            if params.calibration_days
            else "unconfirmed: calibration tests alone failed"
        )
    distance = ", but too far apart" if len(sources) >= params.confirmations else ""
    return (
        f"unconfirmed: {_count(len(sources), 'detector')} reported "
        f"({', '.join(sources)}){distance}; "
        f"{params.confirmations} within {params.confirmation_window} votes are required"
    )


def _describe_confirmation(confirmed: Sequence[DriftEvent]) -> str:
    sources, start = event_sources(confirmed), estimate_change_seq(confirmed)
    dated = f"; change dated at vote {start}" if start is not None else ""
    return (
        f"confirmed by {_count(len(sources), 'detector')} ({', '.join(sources)}) between votes "
        f"{confirmed[0].seq} and {confirmed[-1].seq}{dated}"
    )


def _describe_superseded(stale: Sequence[DriftEvent], champion: str | None) -> list[str]:
    if not stale or champion is None:
        return []
    models = ", ".join(sorted({event.model_version for event in stale}))
    return [f"superseded: {_count(len(stale), 'event')} of {models}, champion is {champion}"]


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' if n != 1 else ''}"


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

"""Decides whether drift and calibration events start a retraining, or why it is on hold."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from pydantic import Field

from rlhf_pipeline.core.intervals import format_estimate
from rlhf_pipeline.core.records import (
    RETRAINING_REMEDIES,
    CauseName,
    ChangeCauses,
    DriftEvent,
    LeftToPeople,
    Quarantine,
    Remedy,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.watch.drift.causes import CAUSE_VOTES, LIKELY, read_causes
from rlhf_pipeline.watch.drift.confirmation import (
    ConfirmationParams,
    describe_requirement,
    estimate_change_seq,
    event_sources,
    find_confirming_events,
    list_confirmers,
)
from rlhf_pipeline.watch.drift.sequential_test import SequentialTest


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
    min_certainty: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Probability of a cause from which its remedy is chosen; below it, the "
        "decision waits for more votes; 0 = decide at once",
    )
    max_cause_votes: int = Field(
        default=500,
        ge=0,
        le=CAUSE_VOTES,
        description="Votes after the confirmation for which an unclear cause is waited for",
    )
    unclear_cause: Literal["retrain", "hold"] = Field(
        default="retrain",
        description="What follows on a cause that is still unclear then: `hold` asks a person",
    )


REMEDIES: dict[CauseName, Remedy] = {
    "taste": "retrain",
    "category": "retrain_category",
    "mix": "reweight",
    "calibration": "refit_calibrator",
    "carelessness": "quarantine",
    "newcomers": "report_two_tastes",
    "nothing": "dismiss",
}
# A person decides: two of these would leave out people's votes, or count them less.
ASKING_REMEDIES: frozenset[Remedy | None] = frozenset(
    {"quarantine", "report_two_tastes", "ask_for_cause"}
)
# After these, pairs and drift reports are made anew, and no model is fitted.
RECOMPUTING_REMEDIES: frozenset[Remedy | None] = frozenset({"quarantine", "lift_quarantine"})
# Only these find that votes before the change follow another taste.
CHANGES_TASTE: frozenset[Remedy] = frozenset({"retrain", "retrain_category"})
_MEANING: dict[Remedy, str] = {
    "retrain_category": "retrain; votes before the change count less in category {category}",
    "reweight": "fit and train again on all votes; no vote counts less",
    "refit_calibrator": "fit the calibrator again",
    "quarantine": "a person decides whether votes of careless annotators are left out: {named}",
    "report_two_tastes": "a person decides about newcomers with another taste: {named}",
    "ask_for_cause": "the cause is not clear: a person decides whether to retrain",
    "dismiss": "dismissed as a false alarm",
}
SHOWN_NAMES = 10
# A session of careless votes looks like a change of everybody's taste while it lasts. So a change
# retrains once so large a share of the usual number of annotators show it, or at the deadline.
LEAST_PEOPLE = 0.7
LEAST_AFTER = 100  # votes after a change: of fewer, one topic's block looks like everybody


def decide(evidence: TriggerEvidence, params: TriggerParams | None = None) -> TriggerDecision:
    """Fire if the champion's events confirm a change, its remedy needs no person, and nothing
    objects now; otherwise hold, with every reason.

    Open events count the same as those held by earlier decisions, so a change detected during a
    cool-down fires when it is over, without a new event. Events of a former champion never fire. A
    change that is left to people is asked about once: neither its events count any more nor those
    of the `confirmation_window` after it, unless they are surely of another cause or of other
    annotators. Other changes are answered meanwhile, and a second question about people waits for
    the answer to the first. The decision's `evidence` holds all its
    inputs, from which `decide` makes it again.
    """
    params = params or TriggerParams()
    own = list_own_events(evidence, params)
    confirmed, causes, remedy, waits_for = find_change(evidence, params)
    objections = list_objections(evidence, own, confirmed, params)
    if waits_for is not None and not confirmed:
        objections = [
            f"decision {waits_for} asks a person first: this change is examined after the answer"
        ]
    if remedy == "dismiss":
        objections = []  # nothing runs, so neither a cool-down nor too few votes matter
    elif confirmed and remedy is None and not objections:
        objections = [describe_wait(confirmed, causes, evidence.max_seq, params)]
    if objections:
        remedy = None
    quarantine = (
        name_annotators(causes, confirmed) if causes and remedy in ASKING_REMEDIES else None
    )
    category = str(causes.causes[0].evidence.get("category")) if causes else None
    fires = remedy is not None and remedy != "dismiss" and remedy not in ASKING_REMEDIES
    reasons = [
        *_describe_superseded(evidence),
        *(objections or [_describe_confirmation(confirmed)]),
        *([causes.summary] if causes and not objections else []),
    ]
    if remedy in _MEANING:
        reasons.append(
            _MEANING[remedy].format(category=category, named=_describe_named(quarantine))
        )
    # A question and a dismissal concern their own change; a fire answers all.
    involved = evidence.open_events if remedy is None else (*evidence.open_events, *confirmed)
    is_of_own = remedy == "dismiss" or remedy in ASKING_REMEDIES
    return TriggerDecision(
        action="fire" if fires else "hold",
        reasons=tuple(reasons),
        event_ids=tuple(
            e.event_id for e in (confirmed if is_of_own else _distinct_events(involved))
        ),
        evidence=_collect_evidence(evidence, params, own, confirmed)
        | ({"causes": causes.model_dump(mode="json")} if causes else {})
        | ({"category": category} if remedy == "retrain_category" else {})
        | ({"quarantine": quarantine.model_dump(mode="json")} if quarantine else {}),
        change_seq=estimate_change_seq(confirmed) if fires and remedy in CHANGES_TASTE else None,
        decided_at=evidence.now,
        state="pending" if fires else "held",
        remedy=remedy,
    )


class AnswerableChange(NamedTuple):
    """A change to answer now, if any; `waits_for` is the question that another change waits for."""

    confirmed: tuple[DriftEvent, ...]
    causes: ChangeCauses | None
    remedy: Remedy | None
    waits_for: int | None


def find_change(evidence: TriggerEvidence, params: TriggerParams) -> AnswerableChange:
    """The first confirmed change of the champion that waits for no answer to an earlier question.

    People are asked one question at a time, so that no answer is given twice.
    """
    rest, open_question, waits_for = (
        list_own_events(evidence, params),
        find_open_question(evidence),
        None,
    )
    while True:
        confirmed = find_confirming_events(rest, params)
        causes = find_causes_of(confirmed) if params.respond_to_causes else None
        remedy = choose_remedy(confirmed, causes, evidence.max_seq, params) if confirmed else None
        if open_question is None or remedy not in ASKING_REMEDIES:
            return AnswerableChange(confirmed, causes, remedy, waits_for)
        waits_for = open_question
        rest = [event for event in rest if event not in confirmed]


def choose_remedy(
    confirmed: Sequence[DriftEvent],
    causes: ChangeCauses | None,
    max_seq: int,
    params: TriggerParams,
) -> Remedy | None:
    """The remedy of a confirmed change; None while its cause is unclear.

    A sure cause has its own, a retraining only once most annotators have voted since. At the
    deadline, likely chance and what is no rise are dismissed, a person is asked about people if
    they are the likeliest cause, and any other unclear cause retrains, or asks a person, as
    `unclear_cause` says. Without causes the change retrains; where only calibration tests fail, the
    calibrator is fitted again.
    """
    if is_miscalibration(confirmed):
        return "refit_calibrator"
    if causes is None:
        return "retrain"
    top = causes.causes[0]
    top_remedy = REMEDIES[top.name]
    is_late = max_seq >= find_deadline(confirmed, params)
    is_shared = is_late or top_remedy not in RETRAINING_REMEDIES or causes.people >= LEAST_PEOPLE
    if top.name != "nothing" and is_shared and is_confident(causes, params):
        return top_remedy
    if not is_late:  # a rise needs time to show, as carelessness does
        return None
    if top.name == "nothing" or causes.rise.low <= 0:
        return "dismiss"
    if top_remedy in ASKING_REMEDIES:
        return top_remedy
    return "ask_for_cause" if params.unclear_cause == "hold" else "retrain"


def is_confident(causes: ChangeCauses, params: TriggerParams) -> bool:
    """Whether the likeliest cause, or another of those that retrain as well, is certain enough, in
    enough votes.
    """
    top = causes.causes[0]
    if causes.n_after < LEAST_AFTER:
        return False
    if REMEDIES[top.name] not in RETRAINING_REMEDIES:
        return top.probability >= params.min_certainty
    retrains = [c.probability for c in causes.causes if REMEDIES[c.name] in RETRAINING_REMEDIES]
    return sum(retrains) >= params.min_certainty


def find_pending_change(
    evidence: TriggerEvidence, params: TriggerParams | None = None
) -> str | None:
    """Why a confirmed change of the champion waits for a clear cause; None where none does.

    Until it is answered no other reward model may become champion: the change would be superseded,
    and votes from before it would go on counting in full. A change that waits for people, for a
    cool-down or for new votes keeps no model back, as that can take as long as they like.
    """
    params = params or TriggerParams()
    confirmed, causes, remedy, _ = find_change(evidence, params)
    if not confirmed or causes is None or remedy is not None:
        return None
    if evidence.max_seq >= find_deadline(confirmed, params):
        return None
    return describe_wait(confirmed, causes, evidence.max_seq, params)


def list_own_events(evidence: TriggerEvidence, params: TriggerParams) -> list[DriftEvent]:
    """The events of the champion, in vote order, without those of a change left to people."""
    return [
        event
        for event in _distinct_events((*evidence.open_events, *evidence.held_events))
        if event.model_version == evidence.champion
        and not is_left_to_people(event, evidence.left_to_people, params)
    ]


def is_left_to_people(
    event: DriftEvent, questions: Sequence[LeftToPeople], params: TriggerParams
) -> bool:
    """Whether the event is a further sign of a change that was left to people: soon after it, and
    not surely of another cause or of other annotators.
    """
    return any(
        event.seq < question.seq + params.confirmation_window
        and (question.reread_from is None or event.detected_at < question.reread_from)
        and not _has_another_cause(event, question, params)
        for question in questions
    )


def _has_another_cause(event: DriftEvent, question: LeftToPeople, params: TriggerParams) -> bool:
    causes = read_causes(event)
    if causes is None or question.cause is None or not is_confident(causes, params):
        return False
    suspects = causes.causes[0].evidence.get("annotator_ids", ())
    is_of_others = bool(suspects) and not {*suspects} & {*question.annotator_ids}
    return causes.causes[0].name != question.cause or is_of_others


def find_open_question(evidence: TriggerEvidence) -> int | None:
    """The decision about annotators that waits for a person's answer."""
    open_ids = [
        question.decision_id for question in evidence.left_to_people if not question.is_answered
    ]
    return open_ids[0] if open_ids else None


def is_miscalibration(confirmed: Sequence[DriftEvent]) -> bool:
    """Whether calibration tests alone confirm the change."""
    return all(event.kind == "calibration" for event in confirmed)


def name_annotators(causes: ChangeCauses, confirmed: Sequence[DriftEvent]) -> Quarantine | None:
    """The annotators about whose votes a person decides, and the first vote concerned; None where
    nobody is named.
    """
    names = causes.causes[0].evidence.get("annotator_ids", ())
    start = estimate_change_seq(confirmed)
    start = causes.change_seq if start is None else start
    return Quarantine(annotator_ids=tuple(names), from_seq=start) if names else None


def find_causes_of(confirmed: Sequence[DriftEvent]) -> ChangeCauses | None:
    """The causes of the change that the sequential test dates, else of the last event with any."""
    explained = [event for event in confirmed if "causes" in event.evidence]
    of_test = [event for event in explained if event.detector == SequentialTest.name]
    return read_causes((of_test[:1] or explained)[-1]) if explained else None


def find_deadline(confirmed: Sequence[DriftEvent], params: TriggerParams) -> int:
    """The vote at which a confirmed change is answered, however unclear its cause."""
    of_test = [event.seq for event in confirmed if event.detector == SequentialTest.name]
    return min(of_test or [confirmed[-1].seq]) + params.max_cause_votes


def describe_wait(
    confirmed: Sequence[DriftEvent],
    causes: ChangeCauses | None,
    max_seq: int,
    params: TriggerParams,
) -> str:
    """Why a confirmed change has no remedy yet."""
    n_missing = find_deadline(confirmed, params) - max_seq
    likely = describe_probabilities(causes) if causes else "not examined"
    reason = f"cause not clear yet ({likely})"
    if causes and is_confident(causes, params) and causes.people < LEAST_PEOPLE:
        reason = f"{likely}, but of few annotators, as in a session of careless votes"
    return f"{reason}: decided after {n_missing:,} more votes at the latest"


def describe_probabilities(causes: ChangeCauses) -> str:
    """The likely causes, with their probabilities."""
    likely = [cause for cause in causes.causes if cause.probability >= LIKELY]
    return ", ".join(f"{cause.name} {format_estimate(cause.probability)}" for cause in likely)


def _describe_named(quarantine: Quarantine | None) -> str:
    if quarantine is None:
        return "none surely enough to be named"
    names = ", ".join(quarantine.annotator_ids[:SHOWN_NAMES])
    n_more = len(quarantine.annotator_ids) - SHOWN_NAMES
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{names}{more}, from vote {quarantine.from_seq} on"


def list_objections(
    evidence: TriggerEvidence,
    own: Sequence[DriftEvent],
    confirmed: Sequence[DriftEvent],
    params: TriggerParams,
) -> list[str]:
    """List every objection to answering the events now, in words with numbers."""
    if evidence.champion is None:
        return ["there is no champion reward model to retrain"]
    objections = []
    if evidence.n_unfinished:
        objections.append(
            f"{_count(evidence.n_unfinished, 'earlier retraining decision')} not finished"
        )
    if evidence.n_ordered:
        objections.append(f"{_count(evidence.n_ordered, 'training job')} not finished")
    if not own:
        objections.append(f"no open or held event of champion {evidence.champion}")
    elif not confirmed:
        objections.append(_describe_unconfirmed(own, params))
    if evidence.last_fired_at is not None:
        since = evidence.now - evidence.last_fired_at
        if since < timedelta(hours=params.cool_down_hours):
            objections.append(
                f"cool-down: last fired {since.total_seconds() / 3600:.1f} h ago, "
                f"{params.cool_down_hours:g} h are required"
            )
    if evidence.n_new_votes < params.min_new_votes:
        objections.append(
            f"{evidence.n_new_votes} new votes since the last retraining, {params.min_new_votes} "
            "are required"
        )
    return objections


def _describe_unconfirmed(own: Sequence[DriftEvent], params: TriggerParams) -> str:
    sources = event_sources(list_confirmers(own))
    if not sources:
        return (
            "unconfirmed: calibration tests alone failed; the calibrator is fitted again once they "
            f"fail on {params.calibration_days} days of a week"
            if params.calibration_days
            else "unconfirmed: calibration tests alone failed"
        )
    distance = ", but too far apart" if 0 < params.confirmations <= len(sources) else ""
    return (
        f"unconfirmed: {_count(len(sources), 'detector')} reported "
        f"({', '.join(sources)}){distance}; {describe_requirement(params)} must report"
    )


def _describe_confirmation(confirmed: Sequence[DriftEvent]) -> str:
    sources, start = event_sources(confirmed), estimate_change_seq(confirmed)
    dated = f"; change dated at vote {start}" if start is not None else ""
    return (
        f"confirmed by {_count(len(sources), 'detector')} ({', '.join(sources)}) between votes "
        f"{confirmed[0].seq} and {confirmed[-1].seq}{dated}"
    )


def _describe_superseded(evidence: TriggerEvidence) -> list[str]:
    events = _distinct_events((*evidence.open_events, *evidence.held_events))
    stale = [event for event in events if event.model_version != evidence.champion]
    if not stale or evidence.champion is None:
        return []
    models = ", ".join(sorted({event.model_version for event in stale}))
    return [
        f"superseded: {_count(len(stale), 'event')} of {models}, champion is {evidence.champion}"
    ]


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

"""Every call of the API as data: method, path, body and how to read the answer.

One function per action. Both clients offer these functions as methods, with the same parameters.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from pydantic import BaseModel

from rlhf_pipeline.api_types.accounts import AddedUser, Me, TokenOut, UserOut
from rlhf_pipeline.api_types.alerts import AlertRuleOut, TestMessageOut
from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.comparisons import (
    AdjudicationOut,
    ClusterOut,
    ComparisonOut,
    ConsensusOut,
    Flagged,
    Offered,
)
from rlhf_pipeline.api_types.drift import DecisionDetail, DecisionOut, DriftEventOut, DriftTestOut
from rlhf_pipeline.api_types.practice import PracticeAnswer, PracticeOut
from rlhf_pipeline.api_types.predictions import (
    CalibrationDetail,
    CalibrationOut,
    PairToPredict,
    PredictionsOut,
    ProbedPair,
    ProbeOut,
)
from rlhf_pipeline.api_types.production import ProductionFigure, StoredFigures
from rlhf_pipeline.api_types.project import (
    AuditLinkOut,
    GuidelineOut,
    Metrics,
    ProgressOut,
    QualityOut,
    RulesOut,
    Verification,
)
from rlhf_pipeline.api_types.votes import BatchResult, Lease, Statistics, VoteOut, VoteReceipt
from rlhf_pipeline.monitoring import (
    Alert,
    AlertMessage,
    AlertState,
    MessageState,
    MetricPoint,
    Silence,
)
from rlhf_pipeline.records import AnnotationRules, Choice, Feedback, NewFeedback, Role

T = TypeVar("T")
A = TypeVar("A", bound=BaseModel)
JsonObject = dict[str, Any]


class VoteOptions(TypedDict, total=False):
    """Fields of a vote besides its choice; one of the two ids is required."""

    assignment_id: str
    comparison_id: str
    strength: int | None
    reason: str | None
    stated_confidence: float | None
    duration_s: float | None
    voted_at: datetime | None
    dimensions: Mapping[str, str]
    highlights: Sequence[Mapping[str, Any]]
    flags: Sequence[str]
    supersedes: str | None
    guideline_version: int | None
    idempotency_key: str


class ProbeOptions(TypedDict, total=False):
    """Which predictions are compared with their votes, and which votes: `group` is an
    annotator group.
    """

    reward_model: str | None
    calibrator: str | None
    category: str | None
    source: str | None
    group: str | None
    since: date | None
    until: date | None


class VoteBody(VoteOptions):
    """A complete vote."""

    choice: Choice | str


class VoteQuery(TypedDict, total=False):
    """Filters of a list of votes; `category`, `source` and words (`q`) of their comparisons too."""

    annotator_id: str | None
    comparison_id: str | None
    day: date | None
    since: date | None
    until: date | None
    up_to: int | None
    status: str | None
    flag: str | None
    category: str | None
    source: str | None
    q: str | None
    mark: str | None


class ComparisonQuery(TypedDict, total=False):
    """Filters of a list of comparisons."""

    category: str | None
    source: str | None
    flag: str | None
    status: str | None
    annotator_id: str | None
    q: str | None


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request that is ready to send.

    `key` is the idempotency key of a POST; repeated attempts use the same key, so that the action
    happens once. `if_match` is the ETag that an edit of rules or guidelines is based on; the server
    refuses the edit if they have changed since.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, str | list[str]] = field(default_factory=dict)
    body: Any = None
    key: str | None = None
    if_match: str | None = None

    def headers(self) -> dict[str, str]:
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        return headers if self.if_match is None else headers | {"If-Match": self.if_match}

    def with_cursor(self, cursor: str) -> "Call[T]":
        """The call for the page of a list that starts at the cursor."""
        return replace(self, params={**self.params, "cursor": cursor})


def me() -> Call[Me]:
    """The user of the token, with roles and permissions."""
    return _get("me", Me)


def statistics() -> Call[Statistics]:
    """Your own voting statistics."""
    return _get("me/statistics", Statistics)


def practice() -> Call[PracticeOut]:
    """Your practice round, before your first vote."""
    return _get("practice", PracticeOut)


def reveal_answer(comparison_id: str) -> Call[PracticeAnswer]:
    """The known answer of a comparison of your practice round."""
    path = f"practice/{_id(comparison_id)}:reveal"
    return Call("POST", path, PracticeAnswer.model_validate, key=_new_key())


def lease(n: int = 5) -> Call[Lease]:
    """Lease up to `n` cards to judge; cards you still hold come first."""
    return _post("assignments:lease", Lease, {"n": n})


def release(assignment_id: str) -> Call[None]:
    """Return a card without judging it."""
    return Call("POST", f"assignments/{_id(assignment_id)}:release", _ignore_answer, key=_new_key())


def extend() -> Call[int]:
    """Extend all leases you hold; returns their number."""
    return Call("POST", "assignments:extend", lambda answer: int(answer["n"]), key=_new_key())


def vote(choice: Choice | str, **options: Unpack[VoteOptions]) -> Call[VoteReceipt]:
    """Cast a vote on a card (`assignment_id`: a is the left side) or, with the permission
    `comparisons.read`, on a `comparison_id`.
    """
    body = _drop_missing({**options, "choice": choice})
    return _post("votes", VoteReceipt, body, key=body.pop("idempotency_key", None))


def vote_batch(votes: Sequence[VoteBody]) -> Call[tuple[BatchResult, ...]]:
    """Cast up to 50 votes. Each gets its own result, in order."""
    bodies = [{"idempotency_key": _new_key()} | _drop_missing(vote) for vote in votes]

    def read(answer: Any) -> tuple[BatchResult, ...]:
        return tuple(BatchResult.model_validate(result) for result in answer["results"])

    return Call("POST", "votes:batch", read, body={"votes": bodies}, key=_new_key())


def votes(*, limit: int = 100, **filters: Unpack[VoteQuery]) -> Call[Page[VoteOut]]:
    """Recorded votes, newest first. `mark` is one of the marks that `quality` counts."""
    return _list("votes", VoteOut, limit=limit, **filters)


def comparisons(
    *, limit: int = 100, **filters: Unpack[ComparisonQuery]
) -> Call[Page[ComparisonOut]]:
    """Comparisons, those of the newest day first."""
    return _list("comparisons", ComparisonOut, limit=limit, **filters)


def comparison(comparison_id: str) -> Call[ComparisonOut]:
    """One comparison."""
    return _get(f"comparisons/{_id(comparison_id)}", ComparisonOut)


def clusters(*, day: date | None = None) -> Call[Page[ClusterOut]]:
    """Clusters of the prompts judged on a day, by default the last one; failing ones first."""
    return _list("clusters", ClusterOut, day=day)


def offer(
    *,
    ids: Sequence[str] | None = None,
    day: date | None = None,
    all_unvoted: bool = False,
    overlap: int | None = None,
    priority: int = 0,
    annotator_id: str | None = None,
    cluster: str | None = None,
) -> Call[Offered]:
    """Offer comparisons to all annotators, or to the one named."""
    which = {
        "ids": None if ids is None else list(ids),
        "day": day,
        "all_unvoted": all_unvoted,
        "cluster": cluster,
    }
    how = {"overlap": overlap, "priority": priority, "annotator_id": annotator_id}
    return _post("comparisons:offer", Offered, _drop_missing(which | how))


def flag(ids: Sequence[str], flag: str | None) -> Call[Flagged]:
    """Take comparisons out of use (`pii`, `identity`, `broken`), or with None back into use."""
    return _post("comparisons:flag", Flagged, {"ids": list(ids), "flag": flag})


def withdraw(ids: Sequence[str]) -> Call[int | None]:
    """Withdraw the open slots of comparisons; returns their number if you may know it."""
    return Call(
        "POST",
        "comparisons:withdraw",
        lambda answer: answer["n_slots"],
        body={"ids": list(ids)},
        key=_new_key(),
    )


def decide(comparison_id: str, choice: str, *, reason: str) -> Call[AdjudicationOut]:
    """Decide on a disputed comparison: `a`, `b`, `tie` or `both_bad`."""
    body = {"comparison_id": comparison_id, "choice": choice, "reason": reason}
    return _post("consensus:decide", AdjudicationOut, body)


def consensus(
    *, state: str | None = None, method: str = "majority", limit: int = 100
) -> Call[Page[ConsensusOut]]:
    """The combined judgement on each comparison, the most recently judged first."""
    return _list("consensus", ConsensusOut, state=state, method=method, limit=limit)


def predict(*pairs: PairToPredict) -> Call[PredictionsOut]:
    """Predict with the champion reward model which completion people prefer, for 1 to 50 pairs."""
    return _post("predictions", PredictionsOut, {"pairs": [pair.model_dump() for pair in pairs]})


def guidelines() -> Call[Page[GuidelineOut]]:
    """All versions of the guidelines, newest first."""
    return _list("guidelines", GuidelineOut)


def add_guideline(text: str, *, version: int) -> Call[GuidelineOut]:
    """Publish the version after `version`, the newest one you read (0 before the first)."""
    return replace(_post("guidelines", GuidelineOut, {"text": text}), if_match=_etag_of(version))


def rules() -> Call[RulesOut]:
    """The rules of annotation and their version."""
    return _get("rules", RulesOut)


def put_rules(rules: AnnotationRules, *, version: int) -> Call[RulesOut]:
    """Replace the rules that were read as `version`."""
    # a seed of None, as read by users who may not know it, leaves the seed unchanged
    body = rules.model_dump(mode="json", exclude={"seed"} if rules.seed is None else None)
    return Call("PUT", "rules", RulesOut.model_validate, body=body, if_match=_etag_of(version))


def users(*, limit: int = 100) -> Call[Page[UserOut]]:
    """All users of the project, by e-mail address."""
    return _list("users", UserOut, limit=limit)


def user(user_id: str) -> Call[UserOut]:
    """One user."""
    return _get(f"users/{_id(user_id)}", UserOut)


def add_user(
    email: str,
    *,
    name: str = "",
    roles: Sequence[Role | str] = (),
    kind: str = "person",
) -> Call[AddedUser]:
    """Add a user. A token creates no login link: create it on the page `users` or with `rlhf users
    login-link`.
    """
    given = {"email": email, "name": name, "kind": kind, "roles": _role_names(roles)}
    return _post("users", AddedUser, given)


def change_user(
    user_id: str, *, name: str | None = None, roles: Sequence[Role | str] | None = None,
    disabled: bool | None = None,
) -> Call[UserOut]:  # fmt: skip
    """Change a user; None leaves a field unchanged."""
    body = {
        "name": name,
        "roles": _role_names(roles),
        "disabled": disabled,
    }
    path = f"users/{_id(user_id)}"
    return Call("PATCH", path, UserOut.model_validate, body=_drop_missing(body))


def tokens(*, limit: int = 100) -> Call[Page[TokenOut]]:
    """Your own tokens, newest first, including those that ended."""
    return _list("me/tokens", TokenOut, limit=limit)


def calibrations(*, limit: int = 100) -> Call[Page[CalibrationOut]]:
    """All calibrators, the last fitted first."""
    return _list("calibrations", CalibrationOut, limit=limit)


def calibration(reward_model: str, version: int) -> Call[CalibrationDetail]:
    """One calibrator, with its reliability diagrams."""
    return _get(f"calibrations/{_id(reward_model)}/{version}", CalibrationDetail)


def calibration_probe(**chosen: Unpack[ProbeOptions]) -> Call[ProbeOut]:
    """The reliability diagram of predictions made before their votes; by default of the model that
    predicted last.
    """
    return replace(_get("calibrations/probe", ProbeOut), params=_drop_missing(chosen))


def calibration_pairs(
    confidence: float, *, limit: int = 100, **chosen: Unpack[ProbeOptions]
) -> Call[Page[ProbedPair]]:
    """The votes of the diagram's bin that contains `confidence`, wrong predictions first."""
    return _list("calibrations/probe/pairs", ProbedPair, bin=confidence, limit=limit, **chosen)


def progress() -> Call[ProgressOut]:
    """Votes by day and annotator, and the work that is open."""
    return _get("progress", ProgressOut)


def quality(
    *, q: str | None = None, sort: str | None = None, cursor: str | None = None
) -> Call[QualityOut]:
    """Data quality of at most 500 annotators, by default the most doubtful first; `cursor` is
    `next` of the previous page.
    """
    params = _drop_missing({"q": q, "sort": sort, "cursor": cursor})
    return Call("GET", "quality", QualityOut.model_validate, params=params)


def metrics() -> Call[Metrics]:
    """Figures of the project for scripts."""
    return _get("metrics", Metrics)


def metric_points(
    *names: str,
    since: date | None = None,
    until: date | None = None,
    labels: Mapping[str, str] | None = None,
    limit: int = 100,
) -> Call[Page[MetricPoint]]:
    """Figures of the project by day, the newest day first; of all metrics if none is named."""
    call = _list("metrics/points", MetricPoint, since=since, until=until, limit=limit)
    wanted = {
        "name": list(names),
        "label": [f"{name}={value}" for name, value in (labels or {}).items()],
    }
    return replace(call, params={**call.params, **wanted})


def send_production_figures(figures: Sequence[ProductionFigure]) -> Call[StoredFigures]:
    """Store figures of models in production; each replaces that of the same day, metric and model,
    so it may be sent again.
    """
    body = [one.model_dump(mode="json", exclude_none=True) for one in figures]
    return _post("metrics/production", StoredFigures, {"figures": body})


def drift_tests(*, day: date | None = None) -> Call[Page[DriftTestOut]]:
    """The detectors and tests of a day's drift report, by default the newest; drift first."""
    return _list("drift-tests", DriftTestOut, day=day)


def drift_events(
    *,
    day: date | None = None,
    decision_id: int | None = None,
    is_open: bool = False,
    limit: int = 100,
) -> Call[Page[DriftEventOut]]:
    """Drift and calibration events, those of the newest votes first."""
    return _list(
        "drift-events",
        DriftEventOut,
        day=day,
        decision_id=decision_id,
        is_open=is_open or None,
        limit=limit,
    )


def decisions(*, limit: int = 100) -> Call[Page[DecisionOut]]:
    """Decisions to retrain, to answer otherwise, or to hold, newest first."""
    return _list("decisions", DecisionOut, limit=limit)


def decision(decision_id: int) -> Call[DecisionDetail]:
    """One decision with its conditions, events and gate."""
    return _get(f"decisions/{decision_id}", DecisionDetail)


def answer_decision(
    decision_id: int, answer: Literal["quarantine", "retrain", "nothing"], reason: str
) -> Call[DecisionOut]:
    """Answer a decision that waits for a person."""
    body = {"answer": answer, "reason": reason}
    return _post(f"decisions/{decision_id}:answer", DecisionOut, body)


def lift_quarantine(decision_id: int, reason: str) -> Call[DecisionOut]:
    """End the quarantine that a decision began."""
    return _post(f"decisions/{decision_id}:lift", DecisionOut, {"reason": reason})


def alerts(
    *, states: Sequence[AlertState] = (), rule: str | None = None, limit: int = 100
) -> Call[Page[Alert]]:
    """Alerts, newest first; by default those that are open or acknowledged."""
    call = _list("alerts", Alert, rule=rule, limit=limit)
    return replace(call, params={**call.params, "state": list(states)})


def alert(alert_id: int) -> Call[Alert]:
    """One alert with its evidence."""
    return _get(f"alerts/{alert_id}", Alert)


def acknowledge_alert(alert_id: int) -> Call[Alert]:
    """Acknowledge an open alert: no more reminders, no escalation."""
    return _post(f"alerts/{alert_id}:acknowledge", Alert, {})


def resolve_alert(alert_id: int) -> Call[Alert]:
    """Resolve an alert by hand; it reopens only after its condition has ended once."""
    return _post(f"alerts/{alert_id}:resolve", Alert, {})


def alert_rules() -> Call[Page[AlertRuleOut]]:
    """All rules of alerts as they are now."""
    return _list("alerts/rules", AlertRuleOut)


def silences() -> Call[Page[Silence]]:
    """All silences, newest first, those that ended among them."""
    return _list("alerts/silences", Silence)


def silence_alerts(
    reason: str, ends_at: datetime, *, rule: str | None = None, subject: str | None = None
) -> Call[Silence]:
    """Keep alerts from being sent until a time; they are recorded."""
    body = {"reason": reason, "ends_at": ends_at.isoformat(), "rule": rule, "subject": subject}
    return _post("alerts/silences", Silence, _drop_missing(body))


def end_silence(silence_id: int) -> Call[None]:
    """End a silence now."""
    return Call("DELETE", f"alerts/silences/{silence_id}", _ignore_answer)


def alert_messages(
    *, state: MessageState | None = None, alert_id: int | None = None, limit: int = 100
) -> Call[Page[AlertMessage]]:
    """Messages about alerts, newest first."""
    return _list("alerts/messages", AlertMessage, state=state, alert_id=alert_id, limit=limit)


def replay_alert_message(message_id: str) -> Call[AlertMessage]:
    """Send a dead message again, from its first attempt."""
    return _post(f"alerts/messages/{_id(message_id)}:replay", AlertMessage, {})


def send_test_message(target: str) -> Call[TestMessageOut]:
    """Send a test message to a configured target now."""
    return _post(f"alerts/targets/{_id(target)}:test", TestMessageOut, {})


def send_feedback(feedback: NewFeedback, *, idempotency_key: str | None = None) -> Call[Feedback]:
    """Send thumbs, a rating, a text or a correction. A correction becomes a comparison with a vote
    for the corrected text.
    """
    body = feedback.model_dump(mode="json", exclude_none=True)
    return _post("feedback", Feedback, body, key=idempotency_key)


def feedback(
    *, kind: str | None = None, session_id: str | None = None, limit: int = 100
) -> Call[Page[Feedback]]:
    """Feedback, newest first."""
    return _list("feedback", Feedback, kind=kind, session_id=session_id, limit=limit)


def audit(
    *,
    actor: str | None = None,
    action: str | None = None,
    object_id: str | None = None,
    limit: int = 100,
) -> Call[Page[AuditLinkOut]]:
    """Links of the audit chain, newest first."""
    return _list(
        "audit", AuditLinkOut, actor=actor, action=action, object_id=object_id, limit=limit
    )


def verify_audit() -> Call[Verification]:
    """Verify the audit chain against the votes and the daily anchors."""
    return Call("POST", "audit:verify", Verification.model_validate, key=_new_key())


def _get(path: str, kind: type[A]) -> Call[A]:
    return Call("GET", path, kind.model_validate)


def _post(path: str, kind: type[A], body: JsonObject, *, key: str | None = None) -> Call[A]:
    return Call("POST", path, kind.model_validate, body=body, key=key or _new_key())


def _list(path: str, item: type[A], /, **filters: object) -> Call[Page[A]]:
    params = {
        name: value.isoformat() if isinstance(value, date) else str(value)
        for name, value in filters.items()
        if value is not None
    }

    def read(answer: Any) -> Page[A]:
        return Page(
            items=tuple(item.model_validate(one) for one in answer["items"]), next=answer["next"]
        )

    return Call("GET", path, read, params)


def _drop_missing(body: Mapping[str, Any]) -> JsonObject:
    """The fields that are not None; times and days as ISO 8601."""
    return {
        name: value.isoformat() if isinstance(value, date) else value
        for name, value in body.items()
        if value is not None
    }


def _role_names(roles: Sequence[Role | str] | None) -> list[str] | None:
    return None if roles is None else [str(role) for role in roles]


def _etag_of(version: int) -> str:
    return f'"{version}"'


def _id(text: str) -> str:
    return quote(text, safe="")


def _new_key() -> str:
    return str(uuid.uuid4())


def _ignore_answer(answer: Any) -> None:
    return None

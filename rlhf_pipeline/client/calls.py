"""Every call of the API, as data: where it goes, what it says, how its answer is read. Knows no
transport.

One function per action; both clients send what these return, so that they cannot drift apart.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

from rlhf_pipeline.client import answers
from rlhf_pipeline.client.answers import JsonObject, Page
from rlhf_pipeline.records import AnnotationRules, Choice, Feedback, NewFeedback, Record, Role

T = TypeVar("T")
A = TypeVar("A", bound=Record)


class VoteOptions(TypedDict, total=False):
    """What a vote may say beside its choice; one of the two ids is required."""

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


class VoteBody(VoteOptions):
    """A whole vote."""

    choice: Choice | str


@dataclass(frozen=True)
class Call(Generic[T]):
    """`key` is the idempotency key of a POST: kept while a call is repeated, so that it is done
    once.

    `if_match` is the ETag of what an edit was made of: where somebody was faster, it is refused.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    key: str | None = None
    if_match: str | None = None

    def headers(self) -> dict[str, str]:
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        return headers if self.if_match is None else headers | {"If-Match": self.if_match}

    def with_cursor(self, cursor: str) -> "Call[T]":
        """The same list from a cursor on."""
        return replace(self, params={**self.params, "cursor": cursor})


def me() -> Call[answers.Me]:
    return _get("me", answers.Me)


def statistics() -> Call[answers.Statistics]:
    return _get("me/statistics", answers.Statistics)


def lease(n: int = 5) -> Call[answers.Lease]:
    return _post("assignments:lease", answers.Lease, {"n": n})


def release(assignment_id: str) -> Call[None]:
    return Call("POST", f"assignments/{_id(assignment_id)}:release", _ignore_answer, key=_new_key())


def extend() -> Call[int]:
    return Call("POST", "assignments:extend", lambda answer: int(answer["n"]), key=_new_key())


def vote(body: VoteBody) -> Call[answers.VoteReceipt]:
    said = _drop_missing(body)
    return _post("votes", answers.VoteReceipt, said, key=said.pop("idempotency_key", None))


def vote_batch(bodies: Sequence[VoteBody]) -> Call[tuple[answers.BatchResult, ...]]:
    votes = [{"idempotency_key": _new_key()} | _drop_missing(body) for body in bodies]

    def read(answer: Any) -> tuple[answers.BatchResult, ...]:
        return tuple(answers.BatchResult.model_validate(result) for result in answer["results"])

    return Call("POST", "votes:batch", read, body={"votes": votes}, key=_new_key())


def votes(
    *,
    annotator_id: str | None = None,
    day: date | None = None,
    comparison_id: str | None = None,
    q: str | None = None,
    mark: str | None = None,
    limit: int = 100,
) -> Call[Page[answers.RecordedVote]]:
    return _list(
        "votes",
        answers.RecordedVote,
        annotator_id=annotator_id,
        day=day,
        comparison_id=comparison_id,
        q=q,
        mark=mark,
        limit=limit,
    )


def comparisons(*, category: str | None = None, limit: int = 100) -> Call[Page[answers.Comparison]]:
    return _list("comparisons", answers.Comparison, category=category, limit=limit)


def comparison(comparison_id: str) -> Call[answers.Comparison]:
    return _get(f"comparisons/{_id(comparison_id)}", answers.Comparison)


def offer(
    *,
    ids: Sequence[str] | None = None,
    day: date | None = None,
    all_unvoted: bool = False,
    overlap: int | None = None,
    priority: int = 0,
    annotator_id: str | None = None,
) -> Call[answers.Offered]:
    which = {"ids": None if ids is None else list(ids), "day": day, "all_unvoted": all_unvoted}
    how = {"overlap": overlap, "priority": priority, "annotator_id": annotator_id}
    return _post("comparisons:offer", answers.Offered, _drop_missing(which | how))


def withdraw(ids: Sequence[str]) -> Call[int | None]:
    return Call(
        "POST",
        "comparisons:withdraw",
        lambda answer: answer["n_slots"],
        body={"ids": list(ids)},
        key=_new_key(),
    )


def consensus(
    *, state: str | None = None, method: str = "majority", limit: int = 100
) -> Call[Page[answers.ComparisonConsensus]]:
    return _list("consensus", answers.ComparisonConsensus, state=state, method=method, limit=limit)


def predict(pairs: Sequence[answers.PairToPredict]) -> Call[answers.PredictionSet]:
    return _post(
        "predictions", answers.PredictionSet, {"pairs": [pair.model_dump() for pair in pairs]}
    )


def guidelines() -> Call[Page[answers.GuidelineVersion]]:
    return _list("guidelines", answers.GuidelineVersion)


def add_guideline(text: str, *, version: int) -> Call[answers.GuidelineVersion]:
    return replace(
        _post("guidelines", answers.GuidelineVersion, {"text": text}), if_match=_etag_of(version)
    )


def rules() -> Call[answers.RulesVersion]:
    return _get("rules", answers.RulesVersion)


def put_rules(new: AnnotationRules, *, version: int) -> Call[answers.RulesVersion]:
    # one that is not told stays as it is
    said = new.model_dump(mode="json", exclude={"seed"} if new.seed is None else None)
    return Call(
        "PUT", "rules", answers.RulesVersion.model_validate, body=said, if_match=_etag_of(version)
    )


def users(*, limit: int = 100) -> Call[Page[answers.UserRow]]:
    return _list("users", answers.UserRow, limit=limit)


def user(user_id: str) -> Call[answers.UserRow]:
    return _get(f"users/{_id(user_id)}", answers.UserRow)


def add_user(
    email: str,
    *,
    name: str = "",
    roles: Sequence[Role | str] = (),
    organization_roles: Sequence[Role | str] = (),
    kind: str = "person",
) -> Call[answers.UserRow]:
    given = {"roles": _role_names(roles), "organization_roles": _role_names(organization_roles)}
    return _post("users", answers.UserRow, {"email": email, "name": name, "kind": kind, **given})


def change_user(
    user_id: str, *, etag: str, name: str | None = None, roles: Sequence[Role | str] | None = None,
    organization_roles: Sequence[Role | str] | None = None, disabled: bool | None = None,
) -> Call[answers.UserRow]:  # fmt: skip
    said = {
        "name": name,
        "roles": _role_names(roles),
        "organization_roles": _role_names(organization_roles),
        "disabled": disabled,
    }
    return Call(
        "PATCH",
        f"users/{_id(user_id)}",
        answers.UserRow.model_validate,
        body=_drop_missing(said),
        if_match=etag,
    )


def tokens(*, limit: int = 100) -> Call[Page[answers.TokenRow]]:
    return _list("me/tokens", answers.TokenRow, limit=limit)


def calibrations(*, limit: int = 100) -> Call[Page[answers.Calibration]]:
    return _list("calibrations", answers.Calibration, limit=limit)


def calibration(reward_model: str, version: int) -> Call[answers.CalibrationDetail]:
    return _get(f"calibrations/{_id(reward_model)}/{version}", answers.CalibrationDetail)


def calibration_probe(
    *, reward_model: str | None = None, calibrator: str | None = None
) -> Call[answers.CalibrationProbe]:
    params = _drop_missing({"reward_model": reward_model, "calibrator": calibrator})
    return replace(_get("calibrations/probe", answers.CalibrationProbe), params=params)


def calibration_pairs(
    confidence: float,
    *,
    reward_model: str | None = None,
    calibrator: str | None = None,
    limit: int = 100,
) -> Call[Page[answers.ProbedPair]]:
    filters = {
        "bin": confidence,
        "reward_model": reward_model,
        "calibrator": calibrator,
        "limit": limit,
    }
    return _list("calibrations/probe/pairs", answers.ProbedPair, **filters)


def progress() -> Call[answers.AnnotationProgress]:
    return _get("progress", answers.AnnotationProgress)


def quality() -> Call[answers.DataQuality]:
    return _get("quality", answers.DataQuality)


def metrics() -> Call[answers.Metrics]:
    return _get("metrics", answers.Metrics)


def send_feedback(new: NewFeedback, *, idempotency_key: str | None = None) -> Call[Feedback]:
    return _post(
        "feedback", Feedback, new.model_dump(mode="json", exclude_none=True), key=idempotency_key
    )


def feedback(
    *, kind: str | None = None, session_id: str | None = None, limit: int = 100
) -> Call[Page[Feedback]]:
    return _list("feedback", Feedback, kind=kind, session_id=session_id, limit=limit)


def audit(
    *,
    actor: str | None = None,
    action: str | None = None,
    object_id: str | None = None,
    limit: int = 100,
) -> Call[Page[answers.AuditLinkRecord]]:
    return _list(
        "audit",
        answers.AuditLinkRecord,
        actor=actor,
        action=action,
        object_id=object_id,
        limit=limit,
    )


def verify_audit() -> Call[answers.Verification]:
    return Call("POST", "audit:verify", answers.Verification.model_validate, key=_new_key())


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


def _drop_missing(said: Mapping[str, Any]) -> JsonObject:
    """Without what is not said; moments and days as ISO 8601."""
    return {
        name: value.isoformat() if isinstance(value, date) else value
        for name, value in said.items()
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

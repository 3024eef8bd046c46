"""Turns a submitted vote into a recorded one: sides, terms, times and receipt."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from rlhf_pipeline.core.api_types.base import ProblemDocument
from rlhf_pipeline.core.api_types.votes import BatchResult, VoteFields, VoteInBatch, VoteReceipt
from rlhf_pipeline.core.errors import IdempotencyConflict, PipelineError
from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote, Vote, VoteDetails
from rlhf_pipeline.web.annotate.cards import CardContent, swap_side
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem, problem_of
from rlhf_pipeline.web.site import Site, Terms

GRACE_S = 5.0  # added to undo_seconds: the key was pressed before the request arrived
OLDEST = timedelta(days=30)  # oldest vote accepted from an outbox
# after the arrival of a vote, for a correction that is still on its way
OUTBOX = timedelta(hours=1)


def record_vote(site: Site, principal: Principal, fields: VoteFields, key: str) -> VoteReceipt:
    """Record one vote; a repeated vote with the same key gets the same receipt.

    Raises Problem for an invalid vote, and the errors of the store.
    """
    new = _prepare_new_or_repeated(site, principal, fields, key)
    try:
        vote = site.store.votes.cast(new)
    except IdempotencyConflict:
        vote = site.store.votes.cast(_restore_first_values(site, fields, new))
    return _build_receipt(fields, vote)


def record_batch(
    site: Site, principal: Principal, raw_votes: Sequence[object]
) -> list[BatchResult]:
    """Record each vote separately; results in the same order."""
    results: list[BatchResult | None] = [None] * len(raw_votes)
    ready: list[tuple[int, VoteInBatch, NewVote]] = []
    for i, raw_vote in enumerate(raw_votes):
        try:
            fields = VoteInBatch.model_validate(raw_vote)
            new = _prepare_new_or_repeated(site, principal, fields, fields.idempotency_key)
            ready.append((i, fields, new))
        except ValidationError as error:
            wrong = [
                (".".join(map(str, ("body", "votes", i, *e["loc"]))), e["msg"])
                for e in error.errors()[:20]
            ]
            summary = "; ".join(f"{path}: {message}" for path, message in wrong[:3])
            results[i] = _refusal_result(
                Problem(422, f"Invalid vote: {summary}.", kind="invalid", errors=wrong)
            )
        except (Problem, PipelineError) as error:
            results[i] = _refusal_result(error)
    for (i, fields, new), answer in zip(
        ready, site.store.votes.cast_each([new for _, _, new in ready]), strict=True
    ):
        try:
            vote = (
                site.store.votes.cast(_restore_first_values(site, fields, new))
                if isinstance(answer, IdempotencyConflict)
                else answer
            )
            if isinstance(vote, PipelineError):
                raise vote
            results[i] = BatchResult(status=201, vote=_build_receipt(fields, vote))
        except PipelineError as error:
            results[i] = _refusal_result(error)
    return [result for result in results if result is not None]


def _prepare_new_or_repeated(
    site: Site, principal: Principal, fields: VoteFields, key: str
) -> NewVote:
    try:
        return prepare_vote(site, principal, fields, key)
    except Problem:
        # A vote that is refused now may have been recorded when only its answer was lost.
        if site.store.votes.with_key(_store_key(principal, key)) is None:
            raise
        return prepare_vote(site, principal, fields, key, is_known=True)


def _store_key(principal: Principal, key: str) -> str:
    return f"{principal.user_id}/{key}"


def prepare_vote(
    site: Site, principal: Principal, fields: VoteFields, key: str, *, is_known: bool = False
) -> NewVote:
    """Build the vote for the store. Raises Problem, NotFound. A recorded vote is not validated
    again.
    """
    terms = site.terms()
    content = _find_content(site, principal, fields)
    now = site.store.database.clock.now()
    voted_at = min(fields.voted_at, now) if fields.voted_at is not None else now
    if not is_known:
        _check_fields(fields, terms)
        _check_guidelines(site, fields, terms)
        _check_highlights(site, fields, content)
        _check_times(site, principal, fields, voted_at, now, terms.rules.undo_seconds)
    return NewVote.model_construct(  # every field was validated by VoteFields
        comparison_id=content.card.comparison_id if content else str(fields.comparison_id),
        annotator_id=principal.user_id,
        annotator_kind=AnnotatorKind.HUMAN
        if principal.user.kind == "person"
        else AnnotatorKind.MACHINE,
        choice=Choice(swap_side(fields.choice.value, content.card.is_swapped))
        if content
        else fields.choice,
        strength=fields.strength,
        reason=fields.reason or None,
        stated_confidence=fields.stated_confidence,
        duration_s=fields.duration_s,
        voted_at=voted_at,
        origin="page" if principal.is_session else "api",
        idempotency_key=_store_key(principal, key),
        supersedes=fields.supersedes,
        task_id=None,
        card_id=content.card.card_id if content else None,
        is_swapped=content.card.is_swapped if content else None,
        guideline_version=terms.guideline_version
        if fields.guideline_version is None
        else fields.guideline_version,
        is_blind=principal.is_blind,
        details=_build_details(content, fields),
    )


def swap_sides(is_swapped: bool | None, details: VoteDetails) -> VoteDetails:
    """Map details to the sides of the card, or back: a is left."""
    if not is_swapped:
        return details
    return details.model_copy(
        update={
            "dimensions": {
                name: swap_side(side, is_swapped) for name, side in details.dimensions.items()
            },
            "highlights": tuple(
                h.model_copy(update={"side": swap_side(h.side, is_swapped)})
                for h in details.highlights
            ),
        }
    )


def _find_content(site: Site, principal: Principal, fields: VoteFields) -> CardContent | None:
    if fields.card_id is not None:
        content = site.cards.get(fields.card_id, principal.user_id)
        if fields.comparison_id is not None and fields.comparison_id != content.card.comparison_id:
            raise _field_problem("comparison_id", "is not what the card shows; leave it out")
        return content
    if fields.comparison_id is None:
        raise _field_problem("card_id", "is missing: say which card the vote is on")
    if not principal.may(Permission.COMPARISONS_READ):
        raise Problem(
            403,
            f"A vote by comparison_id requires the permission {Permission.COMPARISONS_READ}. Lease "
            "cards and send their card_id.",
            kind="forbidden",
        )
    return None


def _check_fields(fields: VoteFields, terms: Terms) -> None:
    if (
        terms.rules.requires_reason
        and fields.choice != Choice.SKIP
        and not (fields.reason or "").strip()
    ):
        raise _field_problem(
            "reason", "is missing; this project requires one with every vote except a skip"
        )
    for name in fields.dimensions:
        if name not in terms.dimensions:
            raise _field_problem(
                f"dimensions.{name}",
                "is not a dimension of this project; expected one of "
                f"{', '.join(terms.rules.dimensions) or 'none'}",
            )
    if "undone" in fields.flags and (fields.supersedes is None or fields.choice != Choice.SKIP):
        raise _field_problem(
            "flags",
            "`undone` undoes a vote; send it with choice skip and the vote that it supersedes",
        )


def _check_guidelines(site: Site, fields: VoteFields, terms: Terms) -> None:
    if fields.guideline_version is None or fields.guideline_version <= (
        terms.guideline_version or 0
    ):
        return
    # another process may have published a version since the terms were read
    latest = site.store.guidelines.latest()
    newest = latest.version if latest else 0
    if fields.guideline_version > newest:
        newest_text = (
            f"the newest version is {newest}" if newest else "this project has no guidelines yet"
        )
        raise _field_problem(
            "guideline_version",
            f"is {fields.guideline_version}, but {newest_text}; send the version from the lease, "
            "or leave it out",
        )


def _check_highlights(site: Site, fields: VoteFields, content: CardContent | None) -> None:
    """Raises Problem 422 for a highlight beyond the end of the text that it marks."""
    if not fields.highlights:
        return
    if content is not None:
        texts = {"a": content.left, "b": content.right}
    else:
        comparison_texts = site.store.comparisons.texts([str(fields.comparison_id)]).get(
            str(fields.comparison_id)
        )
        if comparison_texts is None:
            return  # the store refuses an unpublished comparison
        texts = {"a": comparison_texts.completion_a, "b": comparison_texts.completion_b}
    for i, highlight in enumerate(fields.highlights):
        length = len(texts[highlight.side])
        if highlight.end > length:
            raise _field_problem(
                f"highlights.{i}.end",
                f"is {highlight.end}, but that completion has {length} characters",
            )


def _check_times(
    site: Site,
    principal: Principal,
    fields: VoteFields,
    voted_at: datetime,
    now: datetime,
    undo_seconds: float,
) -> None:
    if voted_at < now - OLDEST or voted_at.astimezone(UTC).date() < site.settings.start_day:
        raise _field_problem(
            "voted_at",
            f"is {voted_at}; votes may be at most {OLDEST.days} days old and not older than the "
            "project's first day",
        )
    if fields.supersedes is not None:
        _check_undo(site, principal, fields.supersedes, voted_at, now, undo_seconds)


def _check_undo(
    site: Site,
    principal: Principal,
    vote_id: str,
    voted_at: datetime,
    now: datetime,
    undo_seconds: float,
) -> None:
    old = site.store.votes.find(vote_id)
    # The same text for both: a vote's id is derived from its choice, so a caller could test which
    # of two ids exists.
    if old is None or old.annotator_id != principal.user_id:
        raise Problem(
            404,
            f"You have no vote {vote_id!r}.",
            kind="not_found",
            errors=[("body.supersedes", "is not yours")],
        )
    if old.details is not None and "undone" in old.details.flags:
        return  # after an undo the card is judged again, with the full time
    waited, pressed = now - old.received_at, voted_at - (old.voted_at or old.received_at)
    require_undo_time(f"Vote {vote_id!r}", waited, pressed, undo_seconds)


def require_undo_time(
    what: str, waited: timedelta, pressed: timedelta, undo_seconds: float
) -> None:
    """Raises Problem for a change that was made, and came, too late: `waited` after the arrival of
    what it changes, `pressed` after it by the sender's clock.

    The more generous one counts, because both may have waited in an outbox. The sender's clock
    counts for an hour after the arrival, and only forwards: otherwise backdated votes could be
    changed forever.
    """
    passed = (
        min(waited, pressed) if waited <= OUTBOX and pressed >= timedelta() else waited
    ).total_seconds()
    if passed > undo_seconds + GRACE_S:
        raise Problem(
            409,
            f"{what} can no longer be changed: it was cast {passed:.0f} s ago and the "
            f"limit is {undo_seconds:g} s. Vote on the next card instead.",
            kind="undo_is_over",
        )


def _build_details(content: CardContent | None, fields: VoteFields) -> VoteDetails | None:
    flags: list[Any] = sorted(
        {*fields.flags, *(["identity"] if content is not None and content.names_maker else [])}
    )
    if not (fields.dimensions or fields.highlights or flags):
        return None
    details = VoteDetails.model_construct(
        dimensions=dict(fields.dimensions), highlights=tuple(fields.highlights), flags=tuple(flags)
    )
    return swap_sides(content.card.is_swapped if content else None, details)


def _restore_first_values(site: Site, fields: VoteFields, new: NewVote) -> NewVote:
    """Reuses the values that the server filled in at first, so that a repeated request stays the
    same although clock and guidelines moved on.
    """
    first = site.store.votes.with_key(new.idempotency_key)
    if first is None:
        return new
    filled: dict[str, Any] = {"origin": first.origin, "is_blind": first.is_blind}
    if fields.guideline_version is None:
        filled["guideline_version"] = first.guideline_version
    if fields.voted_at is None or fields.voted_at > first.received_at:
        filled["voted_at"] = first.voted_at
    return new.model_copy(update=filled)


def _build_receipt(fields: VoteFields, vote: Vote) -> VoteReceipt:
    return VoteReceipt.model_construct(
        vote_id=vote.vote_id,
        card_id=vote.card_id,
        comparison_id=fields.comparison_id,
        choice=fields.choice,
        strength=vote.strength,
        voted_at=vote.voted_at or vote.received_at,
        received_at=vote.received_at,
        supersedes=vote.supersedes,
    )


def _refusal_result(error: Exception) -> BatchResult:
    document = problem_of(error).document()
    return BatchResult(status=document["status"], problem=ProblemDocument.model_validate(document))


def _field_problem(field: str, what: str) -> Problem:
    return Problem(422, f"{field} {what}.", kind="invalid", errors=[(f"body.{field}", what)])

"""Turns a submitted rating of a card into feedback; a skip may give some, an undo rejects it."""

from datetime import UTC, datetime

from rlhf_pipeline.core.api_types.feedback_reviews import FeedbackReview
from rlhf_pipeline.core.api_types.votes import RatingFields, RatingReceipt
from rlhf_pipeline.core.records import CardKind, Feedback, NewFeedback
from rlhf_pipeline.store.audit import joint_transaction
from rlhf_pipeline.web.annotate.cards import CardContent
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes.casting import require_undo_time

SESSION = "annotate"  # of feedback that was given on cards
LONGEST = 200_000  # characters of a text that feedback holds; a longer one has its id alone


def record_rating(
    site: Site, principal: Principal, fields: RatingFields, key: str
) -> RatingReceipt:
    """Record a rating, a skip or an undo; safe to repeat with the same key.

    Raises Problem for a card to vote on and an undo that comes too late, and the errors of the
    store.
    """
    content = site.cards.get(fields.card_id, principal.user_id)
    if content.card.kind != CardKind.RATING:
        fault = "is of a card to vote on, not to rate; send it to POST votes"
        raise Problem(422, f"card_id {fault}.", errors=[("body.card_id", fault)], kind="invalid")
    now = site.store.database.clock.now()
    at = min(fields.rated_at or now, now)
    if fields.supersedes is not None:
        _undo(site, principal, content, fields, at)
        return RatingReceipt(card_id=fields.card_id, value=None, rated_at=at)
    known = site.store.feedback.with_key(principal.user_id, key)
    identity = (_completion_id(content), fields.value)
    if known is None or (known.completion_id, known.value) != identity:
        _settle(site, principal, content, fields, at, key)
    return RatingReceipt(card_id=fields.card_id, value=fields.value, rated_at=at)


def _settle(
    site: Site,
    principal: Principal,
    content: CardContent,
    fields: RatingFields,
    at: datetime,
    key: str,
) -> None:
    with joint_transaction(site.store.database):
        is_skip = fields.value is None
        if not is_skip or fields.text or fields.flags:
            site.store.feedback.add(
                _build_feedback(content, fields, at),
                created_by=principal.user_id,
                idempotency_key=key,
            )
        site.store.ratings.settle(
            fields.card_id, "skipped" if is_skip else "rated", actor=principal.user_id
        )


def _build_feedback(content: CardContent, fields: RatingFields, at: datetime) -> NewFeedback:
    texts = content.texts
    return NewFeedback(
        kind="detailed" if fields.value is None else "rating",
        session_id=SESSION,
        prompt=texts.prompt if len(texts.prompt) <= LONGEST else None,
        completion=content.left if len(content.left) <= LONGEST else None,
        completion_id=_completion_id(content),
        value=fields.value,
        text=fields.text or ("skipped" if fields.value is None else None),
        tags=tuple(sorted(set(fields.flags))),
        given_at=at.astimezone(UTC),
    )


def _completion_id(content: CardContent) -> str:
    """Of the completion that the card shows."""
    ids = (content.texts.completion_a_id, content.texts.completion_b_id)
    return ids[content.card.is_swapped]


def _undo(
    site: Site, principal: Principal, content: CardContent, fields: RatingFields, at: datetime
) -> None:
    """Reject the feedback of a rating and lease its card again; nothing where that was done."""
    rating: Feedback | None = site.store.feedback.with_key(
        principal.user_id, str(fields.supersedes)
    )
    card = site.store.cards.get(fields.card_id)
    is_unknown = (
        card.state == "rated" if rating is None else rating.completion_id != _completion_id(content)
    )
    if is_unknown:
        fault = "is no key under which this card was rated"
        raise Problem(
            422, f"supersedes {fault}.", errors=[("body.supersedes", fault)], kind="invalid"
        )
    is_settled = rating.status != "rejected" if rating else card.state == "skipped"
    if card.settled_at is None or not is_settled:
        return
    now = site.store.database.clock.now()
    made_at = (rating.given_at if rating else None) or card.settled_at
    undo_seconds = site.terms().rules.undo_seconds
    require_undo_time("The rating", now - card.settled_at, at - made_at, undo_seconds)
    with joint_transaction(site.store.database):
        if rating is not None:
            review = FeedbackReview(
                feedback_ids=[rating.feedback_id], status="rejected", notes="undone by its author"
            )
            site.store.feedback_reviews.review(review, actor=principal.user_id)
        site.store.ratings.settle(fields.card_id, "leased", actor=principal.user_id)

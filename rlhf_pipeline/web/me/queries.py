"""Lists the votes and tokens of the signed-in user."""

from datetime import datetime

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import Choice, Token, VoteDetails
from rlhf_pipeline.web.annotate.cards import swap_side
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes.casting import swap_sides


class OwnVote(Answer):
    """One of your own votes as you cast it: a is the left side."""

    vote_id: str
    card_id: str | None
    choice: Choice
    strength: int | None
    reason: str | None
    stated_confidence: float | None
    duration_s: float | None
    voted_at: datetime | None
    received_at: datetime
    supersedes: str | None
    is_superseded: bool
    details: VoteDetails | None


def own_votes(site: Site, annotator_id: str, *, cursor: str | None, limit: int) -> Page[OwnVote]:
    """Newest first, with sides as shown; no field reveals that two cards show the same
    comparison.
    """
    place = parse_cursor(cursor, int)
    votes = site.store.votes.page(
        annotator_id=annotator_id, before_seq=place[0] if place else None, limit=limit
    )
    items = [
        OwnVote.model_validate(
            vote.model_dump()
            | {
                "choice": swap_side(vote.choice, vote.is_swapped),
                "details": vote.details and swap_sides(vote.is_swapped, vote.details),
            }
        )
        for vote in votes
    ]
    return Page(items=items, next=make_cursor(votes[-1].seq) if len(votes) == limit else None)


def own_tokens(site: Site, user_id: str, *, cursor: str | None, limit: int) -> Page[Token]:
    """API tokens, newest first, including those that ended."""
    place = parse_cursor(cursor, str)
    try:
        tokens = site.store.tokens.of_user(
            user_id, kind="api", before=place[0] if place else None, limit=limit
        )
    except NotFound:
        raise cursor_problem() from None
    return Page(
        items=tokens, next=make_cursor(tokens[-1].token_id) if len(tokens) == limit else None
    )

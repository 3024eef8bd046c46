"""Reads lists of votes."""

from typing import Any

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import VoteFilter
from rlhf_pipeline.api_types.votes import VoteOut
from rlhf_pipeline.records import VoteDetails
from rlhf_pipeline.store.vote_lists import ListedVote
from rlhf_pipeline.web.pagination import make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

NOTHING = VoteDetails()


def votes(site: Site, only: VoteFilter) -> Page[VoteOut]:
    """Votes, newest first. Raises Problem 422 for a mark with filters other than the annotator."""
    place = parse_cursor(only.cursor, int)
    before = place[0] if place else None
    if only.mark is None:
        found, following = site.store.votes.search(only, before_seq=before)
    elif {name for name, value in only.chosen.items() if value} <= {"mark", "annotator_id"}:
        seqs = site.quality().find_marked(
            only.mark, only.annotator_id, before_seq=before, limit=only.limit
        )
        found = site.store.votes.with_seqs(seqs)
        following = seqs[-1] if len(seqs) == only.limit else None
    else:
        raise Problem(
            422,
            "mark can only be combined with annotator_id. Remove the other filters.",
            kind="invalid",
            errors=[("query.mark", "can only be combined with annotator_id")],
        )
    items = [_build_vote(vote) for vote in found]
    return Page(items=items, next=make_cursor(following) if following else None)


def _build_vote(vote: ListedVote) -> VoteOut:
    return VoteOut(
        **{
            name: getattr(vote, name)
            for name in VoteOut.model_fields
            if name in ListedVote.model_fields
        },
        **detail_fields(vote.details or NOTHING),
    )


def detail_fields(details: VoteDetails) -> dict[str, Any]:
    return {
        "dimensions": details.dimensions,
        "highlights": list(details.highlights),
        "flags": list(details.flags),
    }

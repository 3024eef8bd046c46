"""Lists votes as their readers may see them."""

from typing import Any

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.votes import VoteOut
from rlhf_pipeline.records import VoteDetails
from rlhf_pipeline.store.vote_lists import ListedVote, VoteFilter
from rlhf_pipeline.votes.quality import Mark
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id, refuse_blind
from rlhf_pipeline.web.pagination import make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.quality.queries import check_mark
from rlhf_pipeline.web.site import Site

NOTHING = VoteDetails()


def votes(
    site: Site,
    principal: Principal,
    only: VoteFilter,
    *,
    mark: Mark | None = None,
    cursor: str | None,
    limit: int,
) -> Page[VoteOut]:
    """Votes, newest first, without those hidden from the reader; `next` does not reveal them
    either.

    Raises Problem 422 for a mark with filters other than the annotator; 403 as `check_mark`, and
    for a number of the last vote that a blind reader asks for.
    """
    if only.up_to is not None:
        refuse_blind(principal, "the numbers of votes")
    place = parse_cursor(cursor, int)
    before = place[0] if place else None
    seen_by = blind_reader_id(principal)
    if mark is not None:
        if only != VoteFilter(annotator_id=only.annotator_id):
            wrong = [("query.mark", "can only be combined with annotator_id")]
            raise Problem(
                422,
                "mark can only be combined with annotator_id. Remove the other filters.",
                kind="invalid",
                errors=wrong,
            )
        check_mark(principal, mark)
        seqs = site.quality_for(seen_by).find_marked(
            mark, only.annotator_id, before_seq=before, limit=limit
        )
        found = site.store.votes.with_seqs(seqs)
        following = seqs[-1] if len(seqs) == limit else None
    else:
        found, following = site.store.votes.search(
            only, before_seq=before, seen_by=seen_by, limit=limit
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

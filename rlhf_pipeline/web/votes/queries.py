"""Reads lists of votes."""

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import VoteFilter
from rlhf_pipeline.core.records import ListedVote
from rlhf_pipeline.web.lists import make_cursor, parse_cursor
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site


def votes(site: Site, _: Principal, only: VoteFilter) -> Page[ListedVote]:
    """Votes, newest first. Raises Problem 422 for a mark with filters other than the annotator."""
    place = parse_cursor(only.cursor, int)
    before = place[0] if place else None
    if only.mark is None:
        items, following = site.store.votes.search(only, before_seq=before)
    elif {name for name, value in only.chosen.items() if value} <= {"mark", "annotator_id"}:
        seqs = site.store.vote_marks.find(
            only.mark,
            only.annotator_id,
            before_seq=before,
            limit=only.limit,
        )
        items = site.store.votes.with_seqs(seqs)
        following = seqs[-1] if len(seqs) == only.limit else None
    else:
        raise Problem(
            422,
            "mark can only be combined with annotator_id. Remove the other filters.",
            kind="invalid",
            errors=[("query.mark", "can only be combined with annotator_id")],
        )
    return Page(items=items, next=make_cursor(following) if following else None)

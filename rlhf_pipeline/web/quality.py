"""How carefully people vote, as pages and scripts are told, the most doubtful first. Knows counts;
knows no route.
"""

from collections.abc import Mapping

from rlhf_pipeline.votes.quality import MARKS, Mark, Marked, Quality, concern
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.schemas import AnnotatorQuality, MarkedShare, QualityOut
from rlhf_pipeline.web.site import Site

ANNOTATORS_TOLD = 500
HIDDEN: Mark = "same_as_before"  # looked at after each vote it says what was chosen


def of_project(site: Site, principal: Principal) -> QualityOut:
    """Whom to look at first; for a blind reader counted from the votes that they see, without how
    others' choices follow each other.
    """
    reader_id = blind_reader(principal)
    found = site.looking.found() if reader_id is None else site.looking.found_by(reader_id)
    names = (
        {user.user_id: user.name for user in site.store.users.all()}
        if principal.may(Permission.USERS_READ)
        else {}
    )
    people = sorted(
        found.by_annotator.items(), key=lambda one: (-concern(one[1], told(principal)), one[0])
    )
    return QualityOut(
        up_to_seq=found.up_to_seq,
        newest_seq=max(found.up_to_seq, site.store.votes.max_seq())
        if reader_id is None
        else found.up_to_seq,
        annotators=[
            _annotator(who, one, principal, names) for who, one in people[:ANNOTATORS_TOLD]
        ],
        n_annotators=len(people),
    )


def check_mark(principal: Principal, mark: Mark) -> None:
    """Raises Problem 403 for a mark that would tell somebody who votes what others chose."""
    if mark not in told(principal):
        raise Problem(
            403,
            f"Users who may vote cannot list votes by '{mark}': it would reveal other people's "
            f"choices. Ask for {' or '.join(told(principal))}.",
            kind="blind",
        )


def told(principal: Principal) -> tuple[Mark, ...]:
    """Which marks somebody may know of."""
    return (
        MARKS
        if blind_reader(principal) is None
        else tuple(mark for mark in MARKS if mark != HIDDEN)
    )


def _annotator(
    who: str, found: Quality, principal: Principal, names: Mapping[str, str]
) -> AnnotatorQuality:
    shares = {
        mark: _share(found.marked[mark])
        for mark in told(principal)
        if mark != HIDDEN or found.marked[mark].n
    }
    return AnnotatorQuality(
        annotator_id=who,
        name=names.get(who),
        n_votes=found.n_votes,
        **{mark: shares.get(mark) for mark in MARKS},
    )


def _share(marked: Marked) -> MarkedShare:
    share = marked.share
    return MarkedShare(
        marked=len(marked.seqs),
        n=marked.n,
        low=None if share is None else share.low,
        high=None if share is None else share.high,
    )

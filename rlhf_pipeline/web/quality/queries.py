"""Computes data quality for pages and the API, the most doubtful annotators first."""

from collections.abc import Mapping

from rlhf_pipeline.api_types.project import AnnotatorQuality, MarkedShare, QualityOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.quality import MARKS, Mark, MarkedVotes, Quality, concern_score
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

MAX_ANNOTATORS = 500
HIDDEN: Mark = "same_as_before"  # read after each vote, it would reveal the choice


def project_quality(site: Site, principal: Principal) -> QualityOut:
    """Data quality by annotator. Blind readers get counts of the votes they see, without the mark
    that reveals choices.
    """
    reader_id = blind_reader_id(principal)
    found = (
        site.quality_counters.counts()
        if reader_id is None
        else site.quality_counters.counts_for_reader(reader_id)
    )
    names = (
        {user.user_id: user.name for user in site.store.users.all()}
        if principal.may(Permission.USERS_READ)
        else {}
    )
    people = sorted(
        found.by_annotator.items(),
        key=lambda one: (-concern_score(one[1], visible_marks(principal)), one[0]),
    )
    return QualityOut(
        up_to_seq=found.up_to_seq,
        newest_seq=max(found.up_to_seq, site.store.votes.max_seq())
        if reader_id is None
        else found.up_to_seq,
        annotators=[
            _build_annotator(who, one, principal, names) for who, one in people[:MAX_ANNOTATORS]
        ],
        n_annotators=len(people),
    )


def check_mark(principal: Principal, mark: Mark) -> None:
    """Raises Problem 403 for a mark that would reveal others' choices to a blind reader."""
    if mark not in visible_marks(principal):
        raise Problem(
            403,
            f"Users who may vote cannot list votes by '{mark}': it would reveal other people's "
            f"choices. Ask for {' or '.join(visible_marks(principal))}.",
            kind="blind",
        )


def visible_marks(principal: Principal) -> tuple[Mark, ...]:
    """The marks that the user may see."""
    return (
        MARKS
        if blind_reader_id(principal) is None
        else tuple(mark for mark in MARKS if mark != HIDDEN)
    )


def _build_annotator(
    who: str, found: Quality, principal: Principal, names: Mapping[str, str]
) -> AnnotatorQuality:
    shares = {
        mark: _build_share(found.marked[mark])
        for mark in visible_marks(principal)
        if mark != HIDDEN or found.marked[mark].n
    }
    return AnnotatorQuality(
        annotator_id=who,
        name=names.get(who),
        n_votes=found.n_votes,
        **{mark: shares.get(mark) for mark in MARKS},
    )


def _build_share(marked: MarkedVotes) -> MarkedShare:
    share = marked.share
    return MarkedShare(
        marked=len(marked.seqs),
        n=marked.n,
        low=None if share is None else share.low,
        high=None if share is None else share.high,
    )

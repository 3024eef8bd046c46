"""Computes data quality for pages and the API, the most doubtful annotators first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_pipeline.api_types.filters import QualityFilter, QualityOrder
from rlhf_pipeline.api_types.project import AnnotatorQuality, MarkedShare, QualityOut
from rlhf_pipeline.votes.quality import MARKS, MarkedVotes, Quality, concern_score
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.pagination import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.site import Site


def project_quality(site: Site, principal: Principal, only: QualityFilter) -> QualityOut:
    """Data quality by annotator. A cursor holds the last annotator's id: the next page follows
    their place of that moment.
    """
    found = site.quality()
    names = names_for(site, principal)
    words = (only.q or "").casefold()
    people = sorted(
        (
            one
            for one in found.by_annotator.items()
            if words in f"{names.get(one[0], '')}\n{one[0]}".casefold()
        ),
        key=_sort_key(only.sort, names),
    )
    start = _find_start(people, only.cursor)
    page = people[start : start + only.limit]
    has_more = start + len(page) < len(people)
    return QualityOut(
        up_to_seq=found.up_to_seq,
        annotators=[_build_annotator(who, one, names) for who, one in page],
        n_annotators=len(people),
        next=make_cursor(page[-1][0]) if has_more else None,
    )


def annotator_quality(
    site: Site, principal: Principal, annotator_id: str
) -> AnnotatorQuality | None:
    """Of one annotator; None without a counting vote."""
    found = site.quality().by_annotator.get(annotator_id)
    if found is None:
        return None
    return _build_annotator(annotator_id, found, names_for(site, principal))


def _sort_key(
    sort: QualityOrder, names: Mapping[str, str]
) -> Callable[[tuple[str, Quality]], tuple[Any, ...]]:
    if sort == "name":
        return lambda one: (names.get(one[0], one[0]).casefold(), one[0])
    if sort == "votes":
        return lambda one: (-one[1].n_votes, one[0])
    marks = MARKS if sort == "doubt" else (sort,)
    return lambda one: (-concern_score(one[1], marks), one[0])


def _find_start(people: Sequence[tuple[str, Quality]], cursor: str | None) -> int:
    place = parse_cursor(cursor, str)
    if place is None:
        return 0
    for i, (who, _) in enumerate(people, 1):
        if who == place[0]:
            return i
    raise cursor_problem()


def _build_annotator(who: str, found: Quality, names: Mapping[str, str]) -> AnnotatorQuality:
    shares = {mark: _build_share(found.marked[mark]) for mark in MARKS}
    if not found.marked["same_as_before"].n:  # no displayed side is known
        del shares["same_as_before"]
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

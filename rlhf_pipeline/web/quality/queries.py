"""Computes data quality for pages and the API, the most doubtful annotators first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_pipeline.api_types.project import AnnotatorQuality, MarkedShare, QualityOut
from rlhf_pipeline.votes.quality import MARKS, Mark, MarkedVotes, Quality, concern_score
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.pagination import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.site import Site

HIDDEN: Mark = "same_as_before"  # read after each vote, it would reveal the choice
ALL = 1 << 30  # annotators of a page without a limit
Sort = Literal["doubt", "votes", "name", "too_fast", "same_as_before", "duplicate"]


@dataclass(frozen=True)
class QualityList:
    """Which annotators a list shows, and in which order."""

    q: str = ""  # words in the name or id
    sort: Sort = "doubt"
    cursor: str | None = None
    limit: int = 500


def project_quality(site: Site, principal: Principal, asked: QualityList) -> QualityOut:
    """Data quality by annotator. Blind readers get counts of the votes they see, without the mark
    that reveals choices.

    A cursor holds the last annotator's id: the next page follows their place of that moment.
    """
    reader_id = blind_reader_id(principal)
    found = site.quality_for(reader_id)
    names = names_for(site, principal)
    if asked.sort in MARKS:
        check_mark(principal, asked.sort)
    words = asked.q.casefold()
    people = sorted(
        (
            one
            for one in found.by_annotator.items()
            if words in f"{names.get(one[0], '')}\n{one[0]}".casefold()
        ),
        key=_sort_key(asked.sort, principal, names),
    )
    start = _find_start(people, asked.cursor)
    page = people[start : start + asked.limit]
    has_more = start + len(page) < len(people)
    return QualityOut(
        up_to_seq=found.up_to_seq,
        annotators=[_build_annotator(who, one, principal, names) for who, one in page],
        n_annotators=len(people),
        next=make_cursor(page[-1][0]) if has_more else None,
    )


def annotator_quality(
    site: Site, principal: Principal, annotator_id: str
) -> AnnotatorQuality | None:
    """Of one annotator, for readers who see all votes; None without a counting vote."""
    found = site.quality().by_annotator.get(annotator_id)
    if found is None:
        return None
    return _build_annotator(annotator_id, found, principal, names_for(site, principal))


def _sort_key(
    sort: Sort, principal: Principal, names: Mapping[str, str]
) -> Callable[[tuple[str, Quality]], tuple[Any, ...]]:
    if sort == "name":
        return lambda one: (names.get(one[0], one[0]).casefold(), one[0])
    if sort == "votes":
        return lambda one: (-one[1].n_votes, one[0])
    marks = visible_marks(principal) if sort == "doubt" else (sort,)
    return lambda one: (-concern_score(one[1], marks), one[0])


def _find_start(people: Sequence[tuple[str, Quality]], cursor: str | None) -> int:
    place = parse_cursor(cursor, str)
    if place is None:
        return 0
    for i, (who, _) in enumerate(people, 1):
        if who == place[0]:
            return i
    raise cursor_problem()


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

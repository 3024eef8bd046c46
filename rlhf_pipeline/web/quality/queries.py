"""Computes data quality for pages and the API, the most doubtful annotators first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.api_types.filters import Filter, Mark, Value
from rlhf_pipeline.core.api_types.votes import Share
from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.store.vote_marks import MARKS, MarkCount, MarkedVotes
from rlhf_pipeline.web.lists import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.permissions import Principal
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.site import Site

QualityOrder = Literal["doubt", "votes", "name"] | Mark


class QualityFilter(Filter):
    """Which annotators, and in which order."""

    q: Value = Field(default=None, description="Words in the name or the id.")
    sort: QualityOrder = Field(
        default="doubt", description="`doubt`: by the most doubtful mark; a mark: by that alone."
    )
    limit: int = Field(default=500, ge=1, le=500)


class MarkedShare(Share):
    """The number of marked votes among the n votes for which the mark is known."""

    marked: int


class AnnotatorQuality(Answer):
    """Quality of the counting votes of one annotator. A share of zero votes has no interval."""

    annotator_id: str
    name: str | None = Field(description="Only for users with `users.read`.")
    n_votes: int
    too_fast: MarkedShare | None = Field(
        description="Share of votes cast faster than anyone can read both completions, among votes "
        "with a known duration."
    )
    same_as_before: MarkedShare | None = Field(
        description="Share of votes that repeat the previous vote's displayed side; about 0.5 for "
        "attentive annotators. Null if no displayed side is known, as for imported votes."
    )
    duplicate: MarkedShare | None = Field(
        description="Share of votes on two completions that the same annotator had already judged "
        "in another comparison, not counting repeats."
    )


class QualityOut(Answer):
    """Data quality by annotator, by default the most doubtful first: ordered by the highest lower
    bound of the shares, `same_as_before` above one half.
    """

    n_annotators: int = Field(description="All that match `q`, on this page and on others.")
    annotators: tuple[AnnotatorQuality, ...]
    next: str | None = Field(None, description="Cursor of the next page; null on the last one.")


def project_quality(site: Site, principal: Principal, only: QualityFilter) -> QualityOut:
    """Data quality by annotator. A cursor holds the last annotator's id: the next page follows
    their place of that moment.
    """
    names = names_for(site, principal)
    words = (only.q or "").casefold()
    people = sorted(
        (
            describe_marks(marked_votes, names)
            for who, marked_votes in site.quality().items()
            if words in f"{names.get(who, '')}\n{who}".casefold()
        ),
        key=_sort_key(only.sort),
    )
    start = _find_start(people, only.cursor)
    page = people[start : start + only.limit]
    has_more = start + len(page) < len(people)
    return QualityOut(
        annotators=page,
        n_annotators=len(people),
        next=make_cursor(page[-1].annotator_id) if has_more else None,
    )


def annotator_quality(
    site: Site, principal: Principal, annotator_id: str
) -> AnnotatorQuality | None:
    """Of one annotator; None without a counting vote."""
    marked_votes = site.quality().get(annotator_id)
    return (
        None if marked_votes is None else describe_marks(marked_votes, names_for(site, principal))
    )


def describe_marks(marked_votes: MarkedVotes, names: Mapping[str, str]) -> AnnotatorQuality:
    shares = {mark: _build_share(count) for mark, count in marked_votes.marks.items()}
    has_sides = marked_votes.marks["same_as_before"].n > 0
    return AnnotatorQuality(
        annotator_id=marked_votes.annotator_id,
        name=names.get(marked_votes.annotator_id),
        n_votes=marked_votes.n_votes,
        too_fast=shares["too_fast"],
        same_as_before=shares["same_as_before"] if has_sides else None,
        duplicate=shares["duplicate"],
    )


def concern_score(quality: AnnotatorQuality, of: Sequence[Mark] = MARKS) -> float:
    """Severity of the marks from 0 to 1: the highest lower bound of a share. `same_as_before`
    counts only above one half, its share under random voting.
    """
    shares: dict[Mark, MarkedShare | None] = {mark: getattr(quality, mark) for mark in of}
    lows = {mark: share.low or 0.0 for mark, share in shares.items() if share is not None}
    return max(
        (
            2 * max(0.0, low - 0.5) if mark == "same_as_before" else low
            for mark, low in lows.items()
        ),
        default=0.0,
    )


def _sort_key(sort: QualityOrder) -> Callable[[AnnotatorQuality], tuple[Any, ...]]:
    if sort == "name":
        return lambda quality: (
            (quality.name or quality.annotator_id).casefold(),
            quality.annotator_id,
        )
    if sort == "votes":
        return lambda quality: (-quality.n_votes, quality.annotator_id)
    marks = MARKS if sort == "doubt" else (sort,)
    return lambda quality: (-concern_score(quality, marks), quality.annotator_id)


def _find_start(people: Sequence[AnnotatorQuality], cursor: str | None) -> int:
    place = parse_cursor(cursor, str)
    if place is None:
        return 0
    for i, annotator in enumerate(people, 1):
        if annotator.annotator_id == place[0]:
            return i
    raise cursor_problem()


def _build_share(count: MarkCount) -> MarkedShare:
    if count.n == 0:
        return MarkedShare(marked=0, n=0, low=None, high=None)
    interval = interval_of_share(count.marked / count.n, count.n)
    return MarkedShare(marked=count.marked, n=count.n, low=interval.low, high=interval.high)

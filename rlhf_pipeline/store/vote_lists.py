"""Lists and counts votes for pages."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, func, literal, select

from rlhf_pipeline.core.api_types.filters import VoteFilter
from rlhf_pipeline.core.records import OWN_SOURCE, AnnotatorKind, Choice, ListedVote
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.counting import LATEST, is_counting, is_standing
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import chain_heads, comparisons, votes

PACE_WITHIN = 20_000  # newest votes of all annotators whose times are read
SEARCH_LOOKS_AT = 20_000  # votes that a page of a search reads at most


class DayTally(NamedTuple):
    """Standing votes of one annotator on one day that came in one way. `n_dated` of the `n` votes
    other than skips have a time: imported ones may lack it.
    """

    annotator_id: str
    annotator_kind: AnnotatorKind
    origin: str
    n: int
    n_dated: int
    n_skips: int
    last_voted_at: datetime | None


class DayTotals(NamedTuple):
    """Votes of one day that came in one way, and the time that people took for `n_timed` of them:
    sum and sum of squares.
    """

    origin: str
    n: int
    n_timed: int
    seconds: float
    seconds_squared: float


class VoteDay(NamedTuple):
    """The day of a vote, and the day (UTC) on which the store received it."""

    cast: date
    received: date


class JudgedComparison(NamedTuple):
    """A vote's day and comparison, with the original of a repeat."""

    day: str
    comparison_id: str
    repeat_of: str | None


class VoteLists(Repository):
    """The part of `Votes` that pages read."""

    def page(
        self,
        *,
        before_seq: int | None = None,
        day: str | None = None,
        annotator_id: str | None = None,
        comparison_id: str | None = None,
        limit: int = 50,
    ) -> list[ListedVote]:
        """Newest first, at most `limit`; the next page is `before_seq` the last vote's seq.

        The hundredth page costs what the first one does.
        """
        filters = (
            (votes.c.day, day),
            (votes.c.annotator_id, annotator_id),
            (votes.c.comparison_id, comparison_id),
        )
        return self._list_newest_first(
            votes.c.seq < (LATEST if before_seq is None else before_seq),
            *(column == value for column, value in filters if value is not None),
            limit=limit,
        )

    def with_seqs(self, seqs: Sequence[int]) -> list[ListedVote]:
        """Newest first; unknown ones are left out."""
        newest_first = sorted(set(seqs), reverse=True)
        return [
            vote
            for some in batches(newest_first, MAX_ROWS)
            for vote in self._list_newest_first(votes.c.seq.in_(some), limit=len(some))
        ]

    def times(self, seqs: Iterable[int | None]) -> dict[int, datetime]:
        """`voted_at` by seq; None, unknown seqs and votes without a time are left out."""
        return {
            seq: voted_at
            for seq, voted_at in self._read_columns(seqs, votes.c.voted_at)
            if voted_at is not None
        }

    def days(self, seqs: Iterable[int | None]) -> dict[int, VoteDay]:
        """By seq; None and unknown seqs are left out."""
        return {
            seq: VoteDay(date.fromisoformat(day), received_at.date())
            for seq, day, received_at in self._read_columns(seqs, votes.c.day, votes.c.received_at)
        }

    def _read_columns(self, seqs: Iterable[int | None], *columns: Any) -> list[Any]:
        sorted_seqs = sorted({seq for seq in seqs if seq is not None})
        return [
            row
            for some in batches(sorted_seqs, MAX_ROWS)
            for row in self._database.fetch_all(
                select(votes.c.seq, *columns).where(votes.c.seq.in_(some))
            )
        ]

    def search(
        self, only: VoteFilter, *, before_seq: int | None = None
    ) -> tuple[list[ListedVote], int | None]:
        """A page of the votes that the filter takes, whatever its cursor and mark are, and
        `before_seq` of the next page (None at the beginning).

        A page reads at most SEARCH_LOOKS_AT votes, so it may be empty and still have a next.
        """
        is_one_day = only.since == only.until
        filters = (
            (votes.c.annotator_id, only.annotator_id),
            (votes.c.comparison_id, only.comparison_id),
            (votes.c.day, only.since.isoformat() if only.since and is_one_day else None),
        )
        where = [
            votes.c.seq < (LATEST if before_seq is None else before_seq),
            *(column == value for column, value in filters if value is not None),
        ]
        if only.up_to is not None:
            where.append(votes.c.seq <= only.up_to)
        days = [] if is_one_day else _is_between(only.since, only.until)
        if days and only.annotator_id is None and only.comparison_id is None:
            # the range of their seqs, so that a search begins there
            ends = select(func.min(votes.c.seq), func.max(votes.c.seq)).where(*days)
            ((lowest, highest),) = self._database.fetch_all(ends)
            where += [votes.c.seq >= (lowest or 0), votes.c.seq <= (highest or 0)]
        checked = [*days, *_check_by_row(only)]
        if not checked:
            page = self._list_newest_first(*where, limit=only.limit)
            return page, page[-1].seq if len(page) == only.limit else None
        newest_first = votes.c.seq.desc()
        looked_at = select(votes.c.seq).where(*where)
        last = self._database.fetch_scalar(
            looked_at.order_by(newest_first).offset(SEARCH_LOOKS_AT - 1).limit(1)
        )
        if last is not None:
            where.append(votes.c.seq >= last)
        query = select(votes.c.seq).where(*where, *checked)
        if only.reads_comparison:
            query = query.join(comparisons, is_on_comparison())
        seqs = self._database.fetch_scalars(query.order_by(newest_first).limit(only.limit))
        page = self.with_seqs(seqs)
        return page, page[-1].seq if len(page) == only.limit else last

    def _list_newest_first(self, *conditions: ColumnElement[bool], limit: int) -> list[ListedVote]:
        query = (
            select(
                votes,
                (~is_standing(votes, up_to_seq=LATEST)).label("is_superseded"),
                is_counting(LATEST).label("is_counting"),
            )
            .where(*conditions)
            .order_by(votes.c.seq.desc())
            .limit(limit)
        )
        rows = self._database.fetch_mappings(query)
        return [ListedVote.from_row(row) for row in rows]

    def day_span(self, annotator_id: str) -> list[date]:
        """The first and the latest day with a vote of an annotator; empty without votes."""
        ends = select(func.min(votes.c.day), func.max(votes.c.day))
        span = self._database.fetch_first(ends.where(votes.c.annotator_id == annotator_id))
        return [date.fromisoformat(day) for day in span if day]

    def find_judged(
        self, annotator_id: str, since: date, until: date, *, limit: int
    ) -> list[JudgedComparison]:
        """What an annotator voted on in these days, the latest day first, at most `limit` votes."""
        query = (
            select(votes.c.day, votes.c.comparison_id, comparisons.c.repeat_of)
            .join(comparisons, is_on_comparison())
            .where(
                votes.c.annotator_id == annotator_id,
                votes.c.day >= since.isoformat(),
                votes.c.day <= until.isoformat(),
            )
            .order_by(votes.c.day.desc(), votes.c.seq.desc())
            .limit(limit)
        )
        return [JudgedComparison(*row) for row in self._database.fetch_all(query)]

    def max_seq(self) -> int:
        """The newest seq; 0 if there is none."""
        newest = select(chain_heads.c.vote_seq)
        return self._database.fetch_scalar(newest) or 0

    def paces(self) -> dict[str, list[float]]:
        """Seconds of the newest PACE_WITHIN votes by annotator, without skips."""
        query = select(votes.c.annotator_id, votes.c.duration_s).where(
            votes.c.seq > self.max_seq() - PACE_WITHIN,
            votes.c.choice != Choice.SKIP.value,
            votes.c.duration_s.is_not(None),
        )
        seconds_of: dict[str, list[float]] = {}
        for who, seconds in self._database.fetch_all(query):
            seconds_of.setdefault(who, []).append(seconds)
        return seconds_of

    def judged_comparisons(
        self, *, before_seq: int | None = None, limit: int = 50
    ) -> list[tuple[str, int]]:
        """(comparison, seq of its newest vote), the newest first: each judged comparison once."""
        upper = LATEST if before_seq is None else before_seq
        newer = votes.alias("newer")
        has_newer = select(literal(1)).where(
            newer.c.comparison_id == votes.c.comparison_id,
            newer.c.seq > votes.c.seq,
            newer.c.choice != Choice.SKIP.value,
        )
        query = (
            select(votes.c.comparison_id, votes.c.seq)
            .where(
                votes.c.seq < upper,
                votes.c.choice != Choice.SKIP.value,
                ~has_newer.exists(),
            )
            .order_by(votes.c.seq.desc())
            .limit(limit)
        )
        return [(row[0], row[1]) for row in self._database.fetch_all(query)]

    def day_totals(self, day: date) -> list[DayTotals]:
        """The votes of a day as cast, by origin. Skips and machine votes take nobody's time."""
        is_timed = and_(
            votes.c.choice != Choice.SKIP.value,
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            votes.c.duration_s.is_not(None),
        )
        seconds = case((is_timed, votes.c.duration_s), else_=0.0)
        query = (
            select(
                votes.c.origin,
                func.count(),
                func.sum(case((is_timed, 1), else_=0)),
                func.sum(seconds),
                func.sum(seconds * seconds),
            )
            .where(votes.c.day == day.isoformat())
            .group_by(votes.c.origin)
            .order_by(votes.c.origin)
        )
        return [DayTotals(*row) for row in self._database.fetch_all(query)]

    def day_tallies(self, days: Sequence[str]) -> dict[str, list[DayTally]]:
        """Tallies of these days, by day."""
        keys = (votes.c.day, votes.c.annotator_id, votes.c.annotator_kind, votes.c.origin)
        is_skip = votes.c.choice == Choice.SKIP.value
        is_dated = and_(~is_skip, votes.c.voted_at.is_not(None))
        sums = [
            func.sum(case((condition, 1), else_=0)) for condition in (~is_skip, is_dated, is_skip)
        ]
        query = (
            select(*keys, *sums, func.max(votes.c.voted_at))
            .where(votes.c.day.in_(days), is_standing(votes, up_to_seq=LATEST))
            .group_by(*keys)
        )
        tallies: dict[str, list[DayTally]] = {}
        for day, who, kind, *rest in self._database.fetch_all(query):
            tallies.setdefault(day, []).append(DayTally(who, AnnotatorKind(kind), *rest))
        return tallies

    def changed_days(self, after_seq: int) -> dict[str, int]:
        """Days whose counting votes the votes above a seq changed, with the newest of these: of
        the days on which they were cast, and of those of the votes that they made not count.
        """
        seq_of: dict[str, int] = {}
        for day in (votes.c.day, votes.c.displaced_day):
            query = (
                select(day, func.max(votes.c.seq))
                .where(votes.c.seq > after_seq, day.is_not(None))
                .group_by(day)
            )
            for name, seq in self._database.fetch_all(query):
                seq_of[name] = max(seq, seq_of.get(name, 0))
        return seq_of

    def last_received_at(self) -> datetime | None:
        """When the newest vote arrived; None without votes."""
        query = select(votes.c.received_at).where(votes.c.seq == self.max_seq())
        received_at: datetime | None = self._database.fetch_scalar(query)
        return received_at


def is_on_comparison() -> ColumnElement[bool]:
    """The vote is on the comparison."""
    return comparisons.c.comparison_id == votes.c.comparison_id


def _is_between(since: date | None, until: date | None) -> list[ColumnElement[bool]]:
    conditions = []
    if since is not None:
        conditions.append(votes.c.day >= since.isoformat())
    if until is not None:
        conditions.append(votes.c.day <= until.isoformat())
    return conditions


def _check_by_row(only: VoteFilter) -> list[ColumnElement[bool]]:
    """The conditions on vote and comparison that no index answers."""
    conditions: list[ColumnElement[bool]] = []
    if only.status == "counting":
        conditions.append(is_counting(LATEST))
    elif only.status == "replaced":
        conditions.append(~is_standing(votes, up_to_seq=LATEST))
    elif only.status == "not_counting":
        conditions.append(is_standing(votes, up_to_seq=LATEST))
        conditions.append(~is_counting(LATEST))
    if only.flag is not None:
        conditions.append(votes.c.details.like(f'%"flags":[%"{only.flag}"%'))
    if only.is_blind is not None:
        conditions.append(votes.c.is_blind.is_(only.is_blind))
    if only.category is not None:
        conditions.append(comparisons.c.category == only.category)
    if only.source is not None:
        is_own = only.source == OWN_SOURCE
        source = comparisons.c.source
        conditions.append(source.is_(None) if is_own else source == only.source)
    if only.q is not None:
        in_prompt = comparisons.c.prompt.icontains(only.q, autoescape=True)
        conditions.append(in_prompt | votes.c.reason.icontains(only.q, autoescape=True))
    return conditions

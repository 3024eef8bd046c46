"""Marks suspect votes: too fast, on the side of the vote before, or on the same pair again.

The rules are those of `votes.annotators.annotator_figures`, as one expression over the newest
votes, so that each share leads to exactly its votes.
"""

from collections.abc import Sequence
from typing import NamedTuple, get_args

from sqlalchemy import ColumnElement, Subquery, and_, case, func, null, or_, select

from rlhf_pipeline.core.api_types.filters import Mark
from rlhf_pipeline.core.records import FASTEST_READING, AnnotatorKind, Choice
from rlhf_pipeline.store.counting import LATEST, is_counting
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import chain_heads, comparisons, votes
from rlhf_pipeline.store.vote_lists import is_on_comparison

MARKS: tuple[Mark, ...] = get_args(Mark)
NEWEST = 10_000  # votes that the figures are of
SIDES = (Choice.A.value, Choice.B.value)


class MarkCount(NamedTuple):
    """Votes with a mark, of the `n` votes to which it applies."""

    marked: int
    n: int


class MarkedVotes(NamedTuple):
    """The counting votes of one annotator, without skips, and how many have each mark."""

    annotator_id: str
    n_votes: int
    marks: dict[Mark, MarkCount]


class VoteMarks(Repository):
    """Marks of people's NEWEST votes."""

    def count(self) -> dict[str, MarkedVotes]:
        """By annotator."""
        newest = self._mark_newest(MARKS)
        sums = [count(newest.c[mark]) for mark in MARKS for count in (func.sum, func.count)]
        query = select(newest.c.annotator_id, func.count(), *sums).group_by(newest.c.annotator_id)
        return {
            who: MarkedVotes(
                who,
                n_votes,
                {
                    mark: MarkCount(counts[2 * i] or 0, counts[2 * i + 1])
                    for i, mark in enumerate(MARKS)
                },
            )
            for who, n_votes, *counts in self._database.fetch_all(query)
        }

    def find(
        self,
        mark: Mark,
        annotator_id: str | None,
        *,
        before_seq: int | None,
        limit: int,
    ) -> list[int]:
        """Seqs of the votes with a mark, of one annotator or of all, newest first."""
        newest = self._mark_newest([mark], annotator_id)
        seq = newest.c.seq
        query = select(seq).where(newest.c[mark] == 1, seq < (before_seq or LATEST))
        return list(self._database.fetch_scalars(query.order_by(seq.desc()).limit(limit)))

    def _mark_newest(self, marks: Sequence[Mark], annotator_id: str | None = None) -> Subquery:
        """Counting votes with 1 for a mark, 0 without it, NULL where it does not apply."""
        newest = select(chain_heads.c.vote_seq).scalar_subquery()
        is_left = or_(
            and_(votes.c.choice == Choice.A.value, ~votes.c.is_swapped),
            and_(votes.c.choice == Choice.B.value, votes.c.is_swapped),
        )
        side = case(
            (votes.c.is_swapped.is_(None), null()),
            # ties too: without known sides between them, all ties would look consecutive
            (votes.c.choice.not_in(SIDES), 0),
            (is_left, 1),
            else_=-1,
        )
        n_characters = func.length(comparisons.c.completion_a) + func.length(
            comparisons.c.completion_b
        )
        is_repeat = case((comparisons.c.repeat_of.is_(None), 0), else_=1)
        pair = func.coalesce(comparisons.c.pair_key, comparisons.c.comparison_id)
        who, seq = votes.c.annotator_id, votes.c.seq
        before = func.lag(side).over(partition_by=who, order_by=seq)
        nth = func.row_number().over(partition_by=(who, is_repeat, pair), order_by=seq)
        marked: dict[Mark, ColumnElement[int | None]] = {
            "too_fast": case(
                (votes.c.duration_s.is_(None), null()),
                (votes.c.duration_s * FASTEST_READING < n_characters, 1),
                else_=0,
            ),
            "same_as_before": case(
                (or_(side.is_(None), before.is_(None)), null()), (side == before, 1), else_=0
            ),
            "duplicate": case((is_repeat == 1, null()), (nth > 1, 1), else_=0),
        }
        return (
            select(who, seq, *(marked[mark].label(mark) for mark in marks))
            .join(comparisons, is_on_comparison())
            .where(
                seq > func.coalesce(newest, 0) - NEWEST,
                votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
                votes.c.choice != Choice.SKIP.value,
                is_counting(LATEST),
                *([who == annotator_id] if annotator_id is not None else []),
            )
            .subquery()
        )

"""Finds which votes and entries of feedback taught a model, without reading a million votes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import func, select

from rlhf_pipeline.core.records import AnnotatorKind
from rlhf_pipeline.store.counting import (
    is_counting,
    is_later_turn,
    is_outside,
    is_teaching,
    is_usable,
)
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import adjudications, comparisons, feedback, votes
from rlhf_pipeline.store.vote_lists import is_on_comparison


class TeachingSums(NamedTuple):
    """Votes that teach: number by annotator, first and last seq; and the first and last day of
    votes up to then.
    """

    by_annotator: Mapping[str, int]
    first_seq: int | None
    last_seq: int | None
    first_day: str | None
    last_day: str | None


class Standing(NamedTuple):
    """Whether a vote counts, and whether it teaches."""

    counts: bool
    teaches: bool


class TaughtFeedback(NamedTuple):
    """A correction whose vote teaches."""

    feedback_id: int
    comparison_id: str


class Lineage(Repository):
    """Every query follows an index, which tests/unit/store/test_lineage.py holds."""

    def sum_teaching(self, up_to_seq: int, quarantined: Mapping[str, int]) -> TeachingSums:
        """The votes that `is_teaching` selects. An annotator's first vote says whether it is a
        machine.

        All votes are counted from an index, and the few that do not teach subtracted: asking each
        vote takes seven seconds at a million.
        """
        is_early = votes.c.seq <= up_to_seq
        counted = select(votes.c.annotator_id, func.count()).where(is_early)
        rows = self._database.fetch_all(counted.group_by(votes.c.annotator_id))
        by_annotator = Counter({row[0]: row[1] for row in rows})
        left_out = self._find_left_out(up_to_seq, quarantined, by_annotator)
        by_annotator.subtract(left_out.values())
        days = (func.min(votes.c.day), func.max(votes.c.day))
        ends = [self._database.fetch_scalar(select(day).where(is_early)) for day in days]
        is_empty = not by_annotator.total()
        seqs = (count(1), count(up_to_seq, -1))  # without gaps
        first, last = (
            None if is_empty else next(n for n in direction if n not in left_out)
            for direction in seqs
        )
        return TeachingSums(+by_annotator, first, last, *ends)

    def judge(self, seq: int, up_to_seq: int, quarantined: Mapping[str, int]) -> Standing:
        """Whether the vote of a seq counts and teaches among the votes up to another."""
        counts, usable = is_counting(up_to_seq, quarantined), is_usable(up_to_seq)
        query: Any = (
            select(counts.label("counts"), usable.label("usable"))
            .select_from(votes)
            .join(comparisons, is_on_comparison())
            .where(votes.c.seq == seq)
        )
        row = self._database.fetch_first(query)
        return Standing(bool(row.counts), bool(row.counts and row.usable))

    def corrections(self, up_to_seq: int, quarantined: Mapping[str, int]) -> list[TaughtFeedback]:
        """The corrections whose votes teach, oldest first."""
        query = (
            select(
                feedback.c.feedback_id,
                feedback.c.comparison_id,
                is_teaching(up_to_seq, quarantined).label("teaches"),
            )
            .join(votes, votes.c.vote_id == feedback.c.vote_id)
            .join(comparisons, is_on_comparison())
            .order_by(feedback.c.feedback_id)
        )
        return [TaughtFeedback(*row[:2]) for row in self._database.fetch_all(query) if row.teaches]

    def seq_at(self, moment: datetime) -> int:
        """The newest vote that the store had received by then; 0 before the first."""
        query = (
            select(votes.c.seq)
            .where(votes.c.received_at <= moment)
            .order_by(votes.c.seq.desc())
            .limit(1)
        )
        return self._database.fetch_scalar(query) or 0

    def _find_left_out(
        self, up_to_seq: int, quarantined: Mapping[str, int], annotator_ids: Iterable[str]
    ) -> dict[int, str]:
        """The annotators, by seq, of the votes that do not teach."""
        later = votes.alias("later")
        columns = select(votes.c.seq, votes.c.annotator_id)
        displaced = columns.join(later, is_later_turn(later, votes)).where(
            later.c.displaced_day.is_not(None),
            later.c.seq + 0 <= up_to_seq,  # with + 0 the other index is used
            is_outside(quarantined, later),
        )
        overruled = columns.join(comparisons, is_on_comparison()).where(
            votes.c.comparison_id.in_(select(adjudications.c.comparison_id)),
            ~is_usable(up_to_seq),
        )
        of_no_use = (
            select(comparisons.c.comparison_id).where(column.is_not(None))
            for column in (comparisons.c.repeat_of, comparisons.c.flag)
        )
        machines = (who for who in annotator_ids if self._is_machine(who))
        queries = [
            displaced,
            overruled,
            *(columns.where(votes.c.comparison_id.in_(ids)) for ids in of_no_use),
            *(columns.where(votes.c.annotator_id == machine) for machine in machines),
            *(
                columns.where(votes.c.annotator_id == annotator_id, votes.c.seq >= first)
                for annotator_id, first in quarantined.items()
            ),
        ]
        return {
            row.seq: row.annotator_id
            for query in queries
            for row in self._database.fetch_all(query.where(votes.c.seq + 0 <= up_to_seq))
        }

    def _is_machine(self, annotator_id: str) -> bool:
        query = (
            select(votes.c.annotator_kind)
            .where(votes.c.annotator_id == annotator_id)
            .order_by(votes.c.seq)
            .limit(1)
        )
        return self._database.fetch_scalar(query) == AnnotatorKind.MACHINE.value

"""Selects and counts an annotator's standing judgements."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    func,
    select,
)

from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.store.counting import is_standing
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import comparisons, votes


class GoldCount(NamedTuple):
    """Number of first judgements of comparisons with a known answer."""

    stated_confidence: float | None
    is_right: bool
    n: int


@dataclass(frozen=True)
class StandingSnapshot:
    """An annotator's standing judgements: counts of earlier days, and the seconds of those of the
    day itself, in order.
    """

    by_day: dict[date, int]
    n_again: int
    n_same: int
    gold_counts: list[GoldCount]
    paces: list[float | None]
    today: list[float | None]


class StandingJudgements(Repository):
    """Counts are made by the database: few rows are read, however many judgements there are."""

    def snapshot_before(self, annotator_id: str, day: date, *, n_paces: int) -> StandingSnapshot:
        """Current judgements; repeats and known answers only up to the start of the day, because a
        figure that changed right after a vote would reveal that its card was a repeat or gold.
        `paces`: seconds of the newest `n_paces` votes of earlier days, newest first.
        """
        stands, today = is_standing_judgement(votes, annotator_id), day.isoformat()
        past, midnight = and_(stands, votes.c.day < today), datetime.combine(day, time(), UTC)
        with self._database.read_transaction() as connection:
            by_day = connection.execute(
                select(votes.c.day, func.count()).where(past).group_by(votes.c.day)
            ).all()
            newest = (
                select(votes.c.duration_s).where(past).order_by(votes.c.seq.desc()).limit(n_paces)
            )
            of_today = (
                select(votes.c.duration_s).where(stands, votes.c.day >= today).order_by(votes.c.seq)
            )
            n_again, n_same = self._count_repeats(connection, annotator_id, midnight)
            return StandingSnapshot(
                by_day={date.fromisoformat(row[0]): row[1] for row in by_day},
                n_again=n_again,
                n_same=n_same,
                gold_counts=self._count_gold(connection, annotator_id, midnight),
                paces=list(connection.execute(newest).scalars()),
                today=list(connection.execute(of_today).scalars()),
            )

    def _count_repeats(
        self, connection: Connection, annotator_id: str, at: datetime
    ) -> tuple[int, int]:
        """Number of second judgements, and of those with the same choice as the first."""
        first, repeat = votes.alias("first"), votes.alias("again")
        of_first = first.c.pass_no == 1, first.c.comparison_id == repeat.c.comparison_id
        both = and_(is_standing_judgement(first, annotator_id, at=at), *of_first)
        query = (
            select(first.c.choice == repeat.c.choice, func.count())
            .select_from(repeat)
            .join(first, both)
            .where(
                is_standing_judgement(repeat, annotator_id, at=at),
                repeat.c.pass_no == 2,
            )
            .group_by(first.c.choice == repeat.c.choice)
        )
        counts = {bool(row[0]): int(row[1]) for row in connection.execute(query)}
        return sum(counts.values()), counts.get(True, 0)

    def _count_gold(
        self, connection: Connection, annotator_id: str, at: datetime
    ) -> list[GoldCount]:
        stood = is_standing_judgement(votes, annotator_id, at=at)
        same = and_(
            comparisons.c.comparison_id == votes.c.comparison_id,
            comparisons.c.gold.is_not(None),
        )
        keys = votes.c.stated_confidence, comparisons.c.gold == votes.c.choice
        query = (
            select(*keys, func.count())
            .select_from(votes)
            .join(comparisons, same)
            .where(stood, votes.c.pass_no == 1)
            .group_by(*keys)
        )
        return [GoldCount(row[0], bool(row[1]), int(row[2])) for row in connection.execute(query)]


def is_standing_judgement(
    vote: Any, annotator_id: str, *, at: datetime | None = None
) -> ColumnElement[bool]:
    """The vote is a standing judgement of the annotator and no skip; with `at`, as of the votes
    received before then.
    """
    own = [vote.c.annotator_id == annotator_id, vote.c.choice != Choice.SKIP.value]
    if at is not None:
        own.append(vote.c.received_at < at)
    return and_(*own, is_standing(vote, before=at))

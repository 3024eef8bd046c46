"""The votes: casting, and what sensors and snapshots read. Knows seq order; knows nothing of preference pairs."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pandas as pd
from sqlalchemy import ColumnElement, Row, and_, distinct, func, literal, or_, select, union_all

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.frames import VOTES
from rlhf_pipeline.records import AnnotatorKind, Choice, NewVote, Record, Vote, content_hash
from rlhf_pipeline.store.audit import acting
from rlhf_pipeline.store.casting import VOTES_PER_TRANSACTION, cast_votes, check_vote, vote_of
from rlhf_pipeline.store.conversion import batches, frame_of
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import comparisons, heads, votes

LATEST = 2**62  # above any seq


class TouchedDay(Record):
    """A day whose snapshot changed: by `n_new` votes, the last of them `max_seq`, received at `last_received_at`."""

    day: date
    n_new: int
    max_seq: int
    last_received_at: datetime


class DayDigest(Record):
    """What a snapshot of a day up to a seq holds: `n` votes that count, and a hash of them."""

    day: date
    up_to_seq: int
    n: int
    sha256: str


class Votes:
    """Append-only. `seq` counts a project's votes in commit order, without gaps."""

    def __init__(self, database: Database):
        self._database = database

    def cast(self, vote: NewVote) -> Vote:
        """Record one vote with its idempotency record and audit link, in one transaction.

        The same idempotency key with the same body gives back the stored vote. Raises UnknownComparison; InvalidVote (time
        without zone, strength without a or b, superseding what is not the annotator's own live vote on the comparison);
        IdempotencyConflict (same key, another body). A second vote of an annotator on a comparison that supersedes nothing
        is a repeat pass: kept, and the last pass counts.
        """
        return self.cast_many([vote])[0]

    def cast_many(self, new_votes: Sequence[NewVote]) -> list[Vote]:
        """`cast` for many, in order, some hundred to a transaction; after an error or a kill, cast them all again.

        Votes that are wrong in themselves are refused before the first is written; one that the store refuses keeps its own
        transaction and all later ones from being written.
        """
        for vote in new_votes:
            check_vote(vote)
        cast: list[Vote] = []
        for batch in batches(new_votes, VOTES_PER_TRANSACTION):
            with acting(self._database) as (connection, ledger):
                cast.extend(cast_votes(connection, ledger, self._database, batch))
        return cast

    def get(self, vote_id: str) -> Vote:
        """Raises StoreError for an unknown id."""
        with self._database.reading() as connection:
            row = connection.execute(select(votes).where(self._database.mine(votes), votes.c.vote_id == vote_id)).mappings().one_or_none()
        if row is None:
            raise StoreError(f"There is no vote {vote_id!r} in project {self._database.project!r}. Correct the id.")
        return vote_of(dict(row))

    def snapshot(self, days: Sequence[str], *, up_to_seq: int | None = None) -> pd.DataFrame:
        """VOTES of `days` as they stood at `up_to_seq` (default: now), in seq order.

        Without superseded votes; of an annotator's several passes over a comparison only the last one counts, on whatever
        day it was cast. The same days and seq give the same frame for ever.
        """
        columns = [comparisons.c[name] if name in ("prompt_id", "repeat_of") else votes.c[name] for name in VOTES.columns]
        counting = (
            select(*columns)
            .join(comparisons, _same_comparison())
            .where(votes.c.day.in_(sorted(set(days))), self._counts(up_to_seq))
            .order_by(votes.c.seq)
        )
        with self._database.reading() as connection:
            return frame_of(connection.execute(counting).all(), VOTES)

    def on(self, comparison_ids: Sequence[str], *, up_to_seq: int | None = None) -> pd.DataFrame:
        """VOTES of all days on these comparisons as they stood at `up_to_seq`, in seq order; see `snapshot`."""
        columns = [comparisons.c[name] if name in ("prompt_id", "repeat_of") else votes.c[name] for name in VOTES.columns]
        rows: list[Row[Any]] = []
        with self._database.reading() as connection:
            for ids in batches(sorted(set(comparison_ids)), MAX_ROWS):
                counting = select(*columns).join(comparisons, _same_comparison())
                rows += connection.execute(counting.where(votes.c.comparison_id.in_(ids), self._counts(up_to_seq))).all()
        return frame_of(sorted(rows, key=lambda row: row.seq), VOTES)

    def touched_days(self, after_seq: int = 0) -> list[TouchedDay]:
        """Days whose snapshot changed by votes with a seq above `after_seq`, oldest first.

        A vote touches its own day and the day of the vote that no longer counts because of it.
        """
        new = and_(self._database.mine(votes), votes.c.seq > after_seq)
        displaced = and_(new, votes.c.displaced_day.is_not(None), votes.c.displaced_day != votes.c.day)
        touched = union_all(
            select(votes.c.day.label("day"), votes.c.seq, votes.c.received_at).where(new),
            select(votes.c.displaced_day.label("day"), votes.c.seq, votes.c.received_at).where(displaced),
        ).subquery()
        by_day = (
            select(
                touched.c.day,
                func.count().label("n_new"),
                func.max(touched.c.seq).label("max_seq"),
                func.max(touched.c.received_at).label("last_received_at"),
            )
            .group_by(touched.c.day)
            .order_by(touched.c.day)
        )
        with self._database.reading() as connection:
            rows = connection.execute(by_day).mappings().all()
        return [TouchedDay.model_validate(dict(row)) for row in rows]

    def max_seq(self, day: str | None = None) -> int:
        """The newest seq, or the newest that touched `day`; 0 where there is none."""
        if day is None:
            newest = select(heads.c.vote_seq).where(self._database.mine(heads))
        else:
            touches = or_(votes.c.day == day, votes.c.displaced_day == day)
            newest = select(func.max(votes.c.seq)).where(self._database.mine(votes), touches)
        with self._database.reading() as connection:
            return connection.execute(newest).scalar() or 0

    def count(self) -> int:
        """All votes ever cast, superseded ones included."""
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(votes).where(self._database.mine(votes))).scalar_one()

    def annotator_kinds(self) -> set[AnnotatorKind]:
        """Whose votes there are, superseded ones included."""
        with self._database.reading() as connection:
            kinds = connection.execute(select(votes.c.annotator_kind).where(self._database.mine(votes)).distinct()).scalars()
            return {AnnotatorKind(kind) for kind in kinds}

    def n_voted_comparisons(self, after_seq: int = 0, *, up_to_seq: int | None = None, choices: Sequence[Choice] | None = None) -> int:
        """Distinct comparisons, repeats and flagged ones left out, with a vote above `after_seq` and not above `up_to_seq`.

        With `choices`, votes of these only.
        """
        limit = LATEST if up_to_seq is None else up_to_seq
        trains = comparisons.c.repeat_of.is_(None) & comparisons.c.flag.is_(None)
        conditions = [self._database.mine(votes), votes.c.seq > after_seq, votes.c.seq <= limit, trains]
        if choices is not None:
            conditions.append(votes.c.choice.in_([choice.value for choice in choices]))
        counted = select(func.count(distinct(votes.c.comparison_id))).join(comparisons, _same_comparison()).where(*conditions)
        with self._database.reading() as connection:
            return connection.execute(counted).scalar_one()

    def day_digest(self, day: str, up_to_seq: int | None = None) -> DayDigest:
        """How many votes the snapshot of `day` holds and a hash over them; equal hashes mean equal snapshots."""
        up_to = self.max_seq() if up_to_seq is None else up_to_seq
        ids = select(votes.c.vote_id).where(votes.c.day == day, self._counts(up_to)).order_by(votes.c.seq)
        with self._database.reading() as connection:
            counting = list(connection.execute(ids).scalars())
        return DayDigest(day=date.fromisoformat(day), up_to_seq=up_to, n=len(counting), sha256=content_hash(counting))

    def _counts(self, up_to_seq: int | None) -> ColumnElement[bool]:
        """That a vote counts: no later pass, and no later revision of its pass, by its annotator up to the seq."""
        limit = LATEST if up_to_seq is None else up_to_seq
        later = votes.alias("later")
        comes_later = or_(
            later.c.pass_no > votes.c.pass_no, and_(later.c.pass_no == votes.c.pass_no, later.c.revision_no > votes.c.revision_no)
        )
        displacing = (
            select(literal(1))
            .select_from(later)
            .where(
                self._database.mine(later),
                later.c.comparison_id == votes.c.comparison_id,
                later.c.annotator_id == votes.c.annotator_id,
                later.c.seq <= limit,
                comes_later,
            )
        )
        return and_(self._database.mine(votes), votes.c.seq <= limit, ~displacing.exists())


def _same_comparison() -> ColumnElement[bool]:
    return and_(
        comparisons.c.organization_id == votes.c.organization_id,
        comparisons.c.project_id == votes.c.project_id,
        comparisons.c.comparison_id == votes.c.comparison_id,
    )

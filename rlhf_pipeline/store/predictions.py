"""The log of predictions: written by `comparisons.publish` before the votes, or by replays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, and_, func, literal, or_, select

from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import PREDICTIONS
from rlhf_pipeline.core.records import GATE_SOURCE, AnnotatorKind, Choice, Record
from rlhf_pipeline.store.audit import (
    PREDICTIONS_REPLAY,
    Ledger,
    audited_transaction,
    sum_digests,
)
from rlhf_pipeline.store.conversion import batches, frame_of, rows_of
from rlhf_pipeline.store.engine import MAX_ROWS, Database, Repository
from rlhf_pipeline.store.schema import comparisons, predictions, votes

if TYPE_CHECKING:
    import pandas as pd


class PredictionReplay(Record):
    """Number of predictions written, known, and refused because the reward model may have seen a
    vote on the comparison or of a later day; and of comparisons left out for the latter before they
    were predicted.
    """

    n_written: int = 0
    n_known: int = 0
    n_refused: int = 0
    n_left_out: int = 0

    def add(self, other: PredictionReplay) -> PredictionReplay:
        return PredictionReplay(
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in PredictionReplay.model_fields
            }
        )


class PredictionLog(Repository):
    """Append-only; one row per comparison and reward model."""

    def replay(self, frame: pd.DataFrame, *, data_seq: int) -> PredictionReplay:
        """Store PREDICTIONS made after their votes, by a reward model that has seen votes up to
        `data_seq`.

        A prediction of a comparison with a vote at or below `data_seq` is refused and counted,
        because the model may have learnt from it. So is one for a day before that of any such vote,
        which nobody knew then. All are marked `is_replayed`. Raises UnknownComparison for a
        comparison that was never published. Safe to repeat.
        """
        result, rows = PredictionReplay(), rows_of(frame, PREDICTIONS)
        # votes up to a seq never change, so this holds for all batches
        with self._database.read_transaction() as connection:
            past = {
                day
                for day in {row["day"] for row in rows}
                if self._knows_later(connection, day, data_seq)
            }
        for batch in self._database.with_backoff(batches(rows, MAX_ROWS)):
            result = result.add(self._replay(batch, data_seq, past))
        return result

    def _replay(
        self, rows: list[dict[str, Any]], data_seq: int, past: set[str]
    ) -> PredictionReplay:
        ids = sorted({row["comparison_id"] for row in rows})
        stored = select(predictions.c.comparison_id, predictions.c.reward_model).where(
            predictions.c.comparison_id.in_(ids)
        )
        published = select(comparisons.c.comparison_id).where(comparisons.c.comparison_id.in_(ids))
        learnt_query = select(votes.c.comparison_id).where(
            votes.c.comparison_id.in_(ids),
            votes.c.seq <= data_seq,
        )
        with audited_transaction(self._database) as (connection, ledger):
            unknown = set(ids) - set(connection.execute(published).scalars())
            if unknown:
                raise UnknownComparison(
                    f"{len(unknown)} replayed predictions are for comparisons that were never "
                    f"published, first {min(unknown)!r}. Import the comparisons first."
                )
            stored_keys = {
                (row.comparison_id, row.reward_model) for row in connection.execute(stored)
            }
            learnt = set(connection.execute(learnt_query.distinct()).scalars())
            new = [
                row
                for row in rows
                if (row["comparison_id"], row["reward_model"]) not in stored_keys
            ]
            honest = [
                row for row in new if row["comparison_id"] not in learnt and row["day"] not in past
            ]
            new_rows = [{**row, "is_replayed": True} for row in honest]
            write_predictions(
                self._database, connection, ledger, new_rows, action=PREDICTIONS_REPLAY
            )
        return PredictionReplay(
            n_written=len(new_rows),
            n_known=len(rows) - len(new),
            n_refused=len(new) - len(new_rows),
        )

    def find_unpredicted(self, day: str, *, data_seq: int) -> list[str]:
        """Imported comparisons first judged on `day` without any prediction, for a model that has
        seen votes up to `data_seq`.

        Flagged ones, votes without a time and comparisons with a vote that the model may have
        learnt from are left out. Empty for a model that has seen a vote of a later day; see
        `count_left_out`.
        """
        with self._database.read_transaction() as connection:
            if self._knows_later(connection, day, data_seq):
                return []
            return sorted(connection.execute(self._select_unpredicted(day, data_seq)).scalars())

    def count_left_out(self, day: str, *, data_seq: int) -> int:
        """Number of comparisons that `find_unpredicted` would return if the model of `data_seq` had
        seen no vote of a day after `day`.

        They were imported after later days were learnt, so no model can predict them as on that
        morning.
        """
        with self._database.read_transaction() as connection:
            if not self._knows_later(connection, day, data_seq):
                return 0
            return len(connection.execute(self._select_unpredicted(day, data_seq)).scalars().all())

    def _knows_later(self, connection: Connection, day: str, data_seq: int) -> bool:
        """Whether votes up to `data_seq` include one cast on a later day; votes without a time are
        ignored.
        """
        # A sum, so that the index of days is read and not every vote up to the seq: where all came
        # in order of time, none is found.
        is_known = votes.c.seq + 0 <= data_seq
        later = and_(
            votes.c.day > day,
            is_known,
            votes.c.voted_at.is_not(None),
        )
        return bool(
            connection.execute(
                select(select(literal(1)).select_from(votes).where(later).exists())
            ).scalar_one()
        )

    def _select_unpredicted(self, day: str, data_seq: int) -> Select[Any]:
        """Ids of imported comparisons first judged on `day`, without any prediction and without a
        vote at or below `data_seq`.
        """
        earlier = votes.alias("earlier")
        too_early = select(literal(1)).where(
            earlier.c.comparison_id == votes.c.comparison_id,
            or_(
                earlier.c.seq <= data_seq,
                and_(earlier.c.day < day, earlier.c.voted_at.is_not(None)),
            ),
        )
        predicted = select(literal(1)).where(
            predictions.c.comparison_id == votes.c.comparison_id,
        )
        imported = and_(
            comparisons.c.comparison_id == votes.c.comparison_id,
            comparisons.c.source.is_not(None),
            comparisons.c.source != GATE_SOURCE,
            comparisons.c.flag.is_(None),
        )
        is_vote = and_(votes.c.day == day, votes.c.voted_at.is_not(None))
        query = (
            select(votes.c.comparison_id)
            .join(comparisons, imported)
            .where(is_vote, ~too_early.exists(), ~predicted.exists())
        )
        return query.distinct()

    def for_days(self, days: Sequence[str]) -> pd.DataFrame:
        """PREDICTIONS of `days`, of all reward models, in a fixed order."""
        query = (
            select(*(predictions.c[name] for name in PREDICTIONS.columns))
            .where(predictions.c.day.in_(sorted(set(days))))
            .order_by(predictions.c.day, predictions.c.comparison_id, predictions.c.reward_model)
        )
        return frame_of(self._database.fetch_all(query), PREDICTIONS)

    def days(self) -> list[str]:
        """Days with a comparison that was predicted, sorted."""
        query = select(predictions.c.day).distinct().order_by(predictions.c.day)
        return list(self._database.fetch_scalars(query))

    def for_comparisons(self, comparison_ids: Sequence[str]) -> pd.DataFrame:
        """PREDICTIONS on these comparisons, of any day and all reward models, in order of id."""
        columns = (predictions.c[name] for name in PREDICTIONS.columns)
        query = select(*columns).order_by(predictions.c.comparison_id, predictions.c.reward_model)
        rows = self._database.fetch_among(query, predictions.c.comparison_id, comparison_ids)
        return frame_of(rows, PREDICTIONS)

    def count(self) -> int:
        return self._database.count(predictions)


def write_predictions(
    database: Database,
    connection: Connection,
    ledger: Ledger,
    rows: Sequence[dict[str, Any]],
    *,
    action: str,
) -> None:
    """Insert predictions and the one link that has their digest."""
    if not rows:
        return
    link_seq = ledger.append(
        actor="pipeline",
        action=action,
        object_id=f"{len(rows)} predictions",
        digest=sum_digests(predictions, rows),
    )
    database.insert(connection, predictions, [{**row, "link_seq": link_seq} for row in rows])


SIDES = (Choice.A.value, Choice.B.value)


def find_newest_predictor(database: Database) -> str | None:
    """The reward model of the last prediction of the newest predicted day; None before the
    first.
    """
    newest = select(func.max(predictions.c.day)).scalar_subquery()
    query = (
        select(predictions.c.reward_model)
        .where(predictions.c.day == newest)
        .order_by(predictions.c.predicted_at.desc(), predictions.c.reward_model.desc())
        .limit(1)
    )
    with database.read_transaction() as connection:
        label: str | None = connection.execute(query).scalar()
        return label


def has_predicted(database: Database, reward_model: str, calibrator: str | None = None) -> bool:
    """Whether the reward model made a prediction, with `calibrator` through that calibrator."""
    query = (
        select(literal(1))
        .select_from(predictions)
        .where(predictions.c.reward_model == reward_model)
    )
    if calibrator is not None:
        query = query.where(predictions.c.calibrator == calibrator)
    return database.fetch_scalar(query.limit(1)) is not None


def find_newest_voted(
    database: Database,
    reward_model: str,
    calibrator: str | None = None,
    *,
    since: date | None = None,
    until: date | None = None,
    limit: int,
) -> tuple[list[str], bool]:
    """Ids of the comparisons predicted by a reward model on which people cast its `limit` newest
    votes for a side, of these days; each once, and whether there are more such votes.
    """
    predicted = and_(
        predictions.c.comparison_id == votes.c.comparison_id,
        predictions.c.reward_model == reward_model,
    )
    if calibrator is not None:
        predicted = and_(predicted, predictions.c.calibrator == calibrator)
    query = (
        select(votes.c.comparison_id)
        .where(
            votes.c.choice.in_(SIDES),
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            *([votes.c.day >= since.isoformat()] if since else []),
            *([votes.c.day <= until.isoformat()] if until else []),
            select(literal(1)).select_from(predictions).where(predicted).exists(),
        )
        .order_by(votes.c.seq.desc())
        .limit(limit + 1)
    )
    ids = list(database.fetch_scalars(query))
    return list(dict.fromkeys(ids[:limit])), len(ids) > limit

"""Drift and calibration events: inserted or ignored, open until a decision claims them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, or_, select

from rlhf_pipeline.core.api_types.filters import DriftEventFilter
from rlhf_pipeline.core.records import DriftEvent
from rlhf_pipeline.store.conversion import batches, json_of
from rlhf_pipeline.store.engine import MAX_ROWS, Database, Repository
from rlhf_pipeline.store.schema import drift_events

# A replayed event is never claimed, so that it starts no retraining.
IS_OPEN = and_(drift_events.c.decision_id.is_(None), drift_events.c.is_replayed.is_(None))
IN_ORDER = (drift_events.c.seq, drift_events.c.detector, drift_events.c.event_id)


class ListedEvent(NamedTuple):
    """An event and the decision that claimed it."""

    event: DriftEvent
    decision_id: int | None


class Events(Repository):
    """Unique by (model_version, detector, params_hash, stream, seq)."""

    def add(self, events: Sequence[DriftEvent]) -> int:
        """Store the new events; returns their number."""
        n_new = 0
        for batch in batches(events, MAX_ROWS):
            with self._database.write_transaction() as connection:
                n_new += insert_events(connection, self._database, batch)
        return n_new

    def update(self, event: DriftEvent) -> None:
        """Replace the evidence of a stored event."""
        with self._database.write_transaction() as connection:
            connection.execute(
                drift_events.update()
                .where(
                    drift_events.c.event_id == event.event_id,
                )
                .values(record=_row(event)["record"])
            )

    def page(
        self,
        only: DriftEventFilter,
        *,
        before: tuple[int, str] | None = None,
    ) -> list[ListedEvent]:
        """Those of the newest votes first; `before`: seq and event id of the last one read."""
        seq, event_id = drift_events.c.seq, drift_events.c.event_id
        query = (
            select(drift_events.c.record, drift_events.c.decision_id)
            .order_by(seq.desc(), event_id.desc())
            .limit(only.limit)
        )
        if only.day is not None:
            query = query.where(drift_events.c.day == only.day.isoformat())
        if only.decision_id is not None:
            query = query.where(drift_events.c.decision_id == only.decision_id)
        if only.is_open:
            query = query.where(IS_OPEN)
        if before is not None:
            query = query.where(or_(seq < before[0], and_(seq == before[0], event_id < before[1])))
        return [
            ListedEvent(DriftEvent.from_json(row["record"]), row["decision_id"])
            for row in self._database.fetch_mappings(query)
        ]

    def find_open(self) -> list[DriftEvent]:
        """Events that no decision has claimed, without replayed ones."""
        return self._read(IS_OPEN)

    def for_days(self, days: Iterable[str]) -> list[DriftEvent]:
        return self._read(drift_events.c.day.in_(sorted(set(days))))

    def for_model(self, label: str) -> list[DriftEvent]:
        return self._read(drift_events.c.model_version == label)

    def _read(self, condition: ColumnElement[bool]) -> list[DriftEvent]:
        with self._database.read_transaction() as connection:
            return read_events(connection, condition)


def read_events(connection: Connection, condition: ColumnElement[bool]) -> list[DriftEvent]:
    """Events that meet the condition, by seq."""
    query = select(drift_events.c.record).where(condition).order_by(*IN_ORDER)
    return [DriftEvent.from_json(text) for text in connection.execute(query).scalars()]


def insert_events(connection: Connection, database: Database, events: Sequence[DriftEvent]) -> int:
    """Insert the new events within the open transaction. Raises InvalidScores for NaN in the
    evidence.
    """
    ids = [event.event_id for event in events]
    stored = select(drift_events.c.event_id).where(drift_events.c.event_id.in_(ids))
    stored_ids = set(connection.execute(stored).scalars())
    new = {event.event_id: event for event in reversed(events) if event.event_id not in stored_ids}
    database.insert(connection, drift_events, [_row(event) for event in reversed(new.values())])
    return len(new)


def _row(event: DriftEvent) -> dict[str, object]:
    columns = event.model_dump(
        include={"kind", "model_version", "detector", "params_hash", "stream", "seq", "detected_at"}
    )
    record = json_of(
        event, f"Event of {event.detector} on {event.model_version} at seq {event.seq}"
    )
    return {
        **columns,
        "event_id": event.event_id,
        "day": event.day.isoformat(),
        "record": record,
        "decision_id": None,
        "is_replayed": event.is_replayed or None,
    }

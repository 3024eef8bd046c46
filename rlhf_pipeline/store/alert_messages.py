"""The outbox of alerts: messages wait here until their target has taken them."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, exists, func, or_, select

from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.monitoring import AlertMessage, MessageState
from rlhf_pipeline.records import content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import alert_messages


class AlertMessages:
    """Pending messages are leased to one sender at a time by moving their next attempt."""

    def __init__(self, database: Database):
        self._database = database

    def add(self, messages: Sequence[AlertMessage]) -> None:
        """Put messages into the outbox in a transaction of their own."""
        with self._database.write_transaction() as connection:
            insert_messages(connection, self._database, messages)

    def due_targets(self, now: datetime) -> list[str]:
        """Targets with messages that `lease` would return."""
        wanted = select(alert_messages.c.target).where(*self._is_due(now)).distinct()
        return sorted(row["target"] for row in self._database.fetch_mappings(wanted))

    def lease(
        self, now: datetime, *, seconds: float, limit: int = 1, target: str | None = None
    ) -> list[AlertMessage]:
        """Take messages that are due, oldest first; nobody else gets them for `seconds`, and each
        counts one more attempt. A message waits until the earlier ones about the same alert have
        left for its target.
        """
        columns = alert_messages.c
        due = (
            select(alert_messages)
            .where(*self._is_due(now), *([columns.target == target] if target else []))
            .order_by(columns.next_attempt_at, columns.created_at, columns.message_id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        leased = []
        with self._database.write_transaction() as connection:
            for row in connection.execute(due).mappings().all():
                message = _build_message(row)
                message = message.model_copy(
                    update={
                        "n_attempts": message.n_attempts + 1,
                        "next_attempt_at": now + timedelta(seconds=seconds),
                    }
                )
                self._update(
                    connection,
                    message.message_id,
                    n_attempts=message.n_attempts,
                    next_attempt_at=message.next_attempt_at,
                )
                leased.append(message)
        return leased

    def mark_delivered(self, message_id: str, now: datetime) -> None:
        with self._database.write_transaction() as connection:
            self._update(
                connection, message_id, state="delivered", delivered_at=now, last_error=None
            )

    def mark_failed(self, message_id: str, error: str, *, next_attempt_at: datetime | None) -> None:
        """Record a failed attempt; without a next one the message is dead until it is replayed."""
        with self._database.write_transaction() as connection:
            self._update(
                connection,
                message_id,
                last_error=error.replace("\0", ""),
                **(
                    {"state": "dead"}
                    if next_attempt_at is None
                    else {"next_attempt_at": next_attempt_at}
                ),
            )

    def replay(self, message_id: str, now: datetime, *, actor: str) -> AlertMessage:
        """Send a dead message again, from its first attempt; the audit chain keeps who wanted it.
        Raises NotFound for an unknown one.
        """
        columns = alert_messages.c
        dead = select(alert_messages).where(
            self._database.in_project(alert_messages),
            columns.message_id == message_id,
            columns.state == "dead",
        )
        again = {"state": "pending", "n_attempts": 0, "next_attempt_at": now}
        with audited_transaction(self._database) as (connection, ledger):
            row = connection.execute(dead).mappings().first()
            if row is None:
                raise NotFound(
                    f"No dead message {message_id}. GET /api/v1/alerts/messages?state=dead lists "
                    "them."
                )
            self._update(connection, message_id, from_state="dead", **again)
            ledger.append(
                actor=actor,
                action="alert.replay",
                object_id=message_id,
                digest=content_hash(message_id),
            )
        return _build_message(row).model_copy(update=again)

    def prune(self, *, delivered_before: datetime, dry_run: bool = False) -> int:
        """Delete messages that were delivered before a moment; returns their number."""
        columns = alert_messages.c
        old = (
            self._database.in_project(alert_messages),
            columns.state == "delivered",
            columns.delivered_at < delivered_before,
        )
        if dry_run:
            with self._database.read_transaction() as connection:
                counted = select(func.count()).select_from(alert_messages).where(*old)
                return int(connection.execute(counted).scalar_one())
        with self._database.write_transaction() as connection:
            return connection.execute(alert_messages.delete().where(*old)).rowcount

    def get(self, message_id: str) -> AlertMessage:
        """Raises NotFound."""
        found = self._read(alert_messages.c.message_id == message_id)
        if not found:
            raise NotFound(f"There is no message {message_id}.")
        return found[0]

    def page(
        self,
        *,
        state: MessageState | None = None,
        alert_id: int | None = None,
        before: tuple[datetime, str] | None = None,
        limit: int = 100,
    ) -> list[AlertMessage]:
        """Newest first; `before` is the time of creation and the id of the last one of a page."""
        columns = alert_messages.c
        conditions: list[ColumnElement[bool]] = []
        if state is not None:
            conditions.append(columns.state == state)
        if alert_id is not None:
            conditions.append(columns.alert_id == alert_id)
        if before is not None:
            created_at, message_id = before
            is_same_time = and_(columns.created_at == created_at, columns.message_id > message_id)
            conditions.append(or_(columns.created_at < created_at, is_same_time))
        return self._read(*conditions, limit=limit)

    def _is_due(self, now: datetime) -> tuple[ColumnElement[bool], ...]:
        columns, earlier = alert_messages.c, alert_messages.alias()
        waits_for_another = exists().where(
            self._database.in_project(earlier),
            earlier.c.state == "pending",
            earlier.c.alert_id == columns.alert_id,
            earlier.c.target == columns.target,
            earlier.c.created_at < columns.created_at,
        )
        return (
            self._database.in_project(alert_messages),
            columns.state == "pending",
            columns.next_attempt_at <= now,
            ~waits_for_another,
        )

    def _read(self, *conditions: Any, limit: int | None = None) -> list[AlertMessage]:
        wanted = (
            select(alert_messages)
            .where(self._database.in_project(alert_messages), *conditions)
            .order_by(alert_messages.c.created_at.desc(), alert_messages.c.message_id)
            .limit(limit)
        )
        return [_build_message(row) for row in self._database.fetch_mappings(wanted)]

    def _update(
        self,
        connection: Connection,
        message_id: str,
        *,
        from_state: MessageState = "pending",
        **values: Any,
    ) -> None:
        connection.execute(
            alert_messages.update()
            .where(
                self._database.in_project(alert_messages),
                alert_messages.c.message_id == message_id,
                alert_messages.c.state == from_state,
            )
            .values(values)
        )


def insert_messages(
    connection: Connection, database: Database, messages: Sequence[AlertMessage]
) -> None:
    """Put messages into the outbox within the open transaction."""
    rows = [
        message.model_dump()
        | {"payload": json_of(dict(message.payload), f"Message {message.message_id}")}
        for message in messages
    ]
    database.insert(connection, alert_messages, rows)


def _build_message(row: RowMapping) -> AlertMessage:
    values = {name: row[name] for name in AlertMessage.model_fields}
    return AlertMessage.model_validate(values | {"payload": json.loads(row["payload"])})

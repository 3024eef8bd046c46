"""Alerts and their messages: one alert per rule and subject whose condition has not ended."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, exists, func, select

from rlhf_pipeline.core.api_types.filters import AlertFilter, AlertMessageFilter
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.monitoring import Alert, AlertMessage, MessageState
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database, Repository
from rlhf_pipeline.store.schema import alert_messages, alerts

ALL_ALERTS = AlertFilter(state=["open", "acknowledged", "resolved"])
ALL_MESSAGES = AlertMessageFilter()
Put = Callable[[Sequence[Alert], Sequence[AlertMessage]], None]


class Alerts(Repository):
    """Alerts change by rule or by hand; changes and their messages are stored together."""

    @contextmanager
    def advancing(self) -> Iterator[tuple[Sequence[Alert], int, Put]]:
        """The alerts that have not ended and the next number, in a transaction in which the
        function stores changed alerts and their messages. So two processes open no alert twice.
        """
        with self._database.write_transaction() as connection:

            def put(changed: Sequence[Alert], messages: Sequence[AlertMessage]) -> None:
                for alert in changed:
                    self._put(connection, alert)
                insert_messages(connection, self._database, messages)

            open_alerts = self._read(connection, alerts.c.ended_at.is_(None))[::-1]
            next_id = self._database.next_number(connection, alerts.c.alert_id)
            yield open_alerts, next_id, put

    def change(
        self,
        alert_id: int,
        change: Callable[[Alert], Alert],
        *,
        actor: str,
        action: str,
        tell: Callable[[Alert], Sequence[AlertMessage]] = lambda _: (),
    ) -> Alert:
        """Change one alert by hand and store what `tell` says of it; raises NotFound. The audit
        chain keeps who did it.
        """
        with audited_transaction(self._database) as (connection, ledger):
            changed = change(self._get(connection, alert_id))
            self._put(connection, changed)
            insert_messages(connection, self._database, tell(changed))
            ledger.append(
                actor=actor,
                action=f"alert.{action}",
                object_id=f"alert {alert_id}",
                digest=content_hash(changed.model_dump(mode="json")),
            )
        return changed

    def page(self, only: AlertFilter = ALL_ALERTS, *, before_id: int | None = None) -> list[Alert]:
        """Newest first, at most its `limit`; the next page is `before_id` the last one's id."""
        conditions: list[Any] = [alerts.c.state.in_(only.state)]
        if only.rule is not None:
            conditions.append(alerts.c.rule == only.rule)
        if before_id is not None:
            conditions.append(alerts.c.alert_id < before_id)
        with self._database.read_transaction() as connection:
            return self._read(connection, *conditions, limit=only.limit)

    def count_open(self) -> int:
        return self._database.count(alerts, alerts.c.state == "open")

    def oldest_ongoing_at(self) -> datetime | None:
        """When the oldest alert whose condition has not ended was opened, also if it was resolved
        by hand.
        """
        return self._database.fetch_scalar(
            select(func.min(alerts.c.opened_at)).where(alerts.c.ended_at.is_(None))
        )

    def _get(self, connection: Connection, alert_id: int) -> Alert:
        matches = self._read(connection, alerts.c.alert_id == alert_id)
        if not matches:
            raise NotFound(f"There is no alert {alert_id}. The page Alerts lists them.")
        return matches[0]

    def _read(
        self, connection: Connection, *conditions: Any, limit: int | None = None
    ) -> list[Alert]:
        query = (
            select(alerts.c.record)
            .where(*conditions)
            .order_by(alerts.c.alert_id.desc())
            .limit(limit)
        )
        return [Alert.from_json(text) for text in connection.execute(query).scalars()]

    def _put(self, connection: Connection, alert: Alert) -> None:
        """Store the alert; one that ended while it was pending is not kept."""
        connection.execute(alerts.delete().where(alerts.c.alert_id == alert.alert_id))
        if alert.state == "pending" and alert.ended_at is not None:
            return
        values = alert.model_dump(
            include={"alert_id", "rule", "subject", "state", "opened_at", "ended_at"}
        ) | {"record": json_of(alert, f"Alert {alert.alert_id}")}
        self._database.insert(connection, alerts, [values])


class AlertMessages(Repository):
    """The outbox: messages wait here until their target has taken them. Each is leased to one
    sender at a time, by moving its next attempt.
    """

    def add(self, messages: Sequence[AlertMessage]) -> None:
        """Put messages into the outbox in a transaction of their own."""
        with self._database.write_transaction() as connection:
            insert_messages(connection, self._database, messages)

    def due_targets(self, now: datetime) -> list[str]:
        """Targets with messages that `lease` would return."""
        query = select(alert_messages.c.target).where(*self._is_due(now)).distinct()
        return sorted(self._database.fetch_scalars(query))

    def lease(self, target: str, now: datetime, *, seconds: float) -> AlertMessage | None:
        """Take the oldest message that is due; nobody else gets it for `seconds`, and it counts one
        more attempt. A message waits until the earlier ones about the same alert have left for its
        target.
        """
        columns = alert_messages.c
        due = (
            select(alert_messages)
            .where(*self._is_due(now), columns.target == target)
            .order_by(columns.next_attempt_at, columns.created_at, columns.message_id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        with self._database.write_transaction() as connection:
            row = connection.execute(due).mappings().first()
            if row is None:
                return None
            attempt = {
                "n_attempts": row["n_attempts"] + 1,
                "next_attempt_at": now + timedelta(seconds=seconds),
            }
            connection.execute(self._update(row["message_id"], **attempt))
        return _build_message(row).model_copy(update=attempt)

    def mark_delivered(self, message_id: str, now: datetime) -> None:
        with self._database.write_transaction() as connection:
            connection.execute(
                self._update(message_id, state="delivered", delivered_at=now, last_error=None)
            )

    def mark_failed(self, message_id: str, error: str, *, next_attempt_at: datetime | None) -> None:
        """Record a failed attempt; without a next one the message is dead until it is replayed."""
        is_dead = next_attempt_at is None
        new_state = {"state": "dead"} if is_dead else {"next_attempt_at": next_attempt_at}
        failed = self._update(message_id, last_error=error.replace("\0", ""), **new_state)
        with self._database.write_transaction() as connection:
            connection.execute(failed)

    def replay(self, message_id: str, now: datetime, *, actor: str) -> AlertMessage:
        """Send a dead message again, from its first attempt; the audit chain keeps who wanted it.
        Raises NotFound for an unknown one.
        """
        new_state = {"state": "pending", "n_attempts": 0, "next_attempt_at": now}
        with audited_transaction(self._database) as (connection, ledger):
            replayed = self._update(message_id, from_state="dead", **new_state)
            row = connection.execute(replayed.returning(alert_messages)).mappings().first()
            if row is None:
                raise NotFound(f"No dead message {message_id}. The page Alerts lists them.")
            ledger.append(
                actor=actor,
                action="alert.replay",
                object_id=message_id,
                digest=content_hash(message_id),
            )
        return _build_message(row)

    def prune(self, *, delivered_before: datetime) -> int:
        """Delete messages that were delivered before a moment; returns their number."""
        columns = alert_messages.c
        old = (columns.state == "delivered", columns.delivered_at < delivered_before)
        with self._database.write_transaction() as connection:
            return connection.execute(alert_messages.delete().where(*old)).rowcount

    def get(self, message_id: str) -> AlertMessage:
        """Raises NotFound."""
        matches = self._read(alert_messages.c.message_id == message_id)
        if not matches:
            raise NotFound(f"There is no message {message_id}.")
        return matches[0]

    def page(self, only: AlertMessageFilter = ALL_MESSAGES) -> list[AlertMessage]:
        """Newest first, at most its `limit`."""
        values = {"state": only.state, "alert_id": only.alert_id}
        conditions = [alert_messages.c[k] == v for k, v in values.items() if v is not None]
        return self._read(*conditions, limit=only.limit)

    def _is_due(self, now: datetime) -> tuple[ColumnElement[bool], ...]:
        columns, earlier = alert_messages.c, alert_messages.alias()
        waits_for_another = exists().where(
            earlier.c.state == "pending",
            earlier.c.alert_id == columns.alert_id,
            earlier.c.target == columns.target,
            earlier.c.created_at < columns.created_at,
        )
        return (columns.state == "pending", columns.next_attempt_at <= now, ~waits_for_another)

    def _read(self, *conditions: Any, limit: int | None = None) -> list[AlertMessage]:
        query = (
            select(alert_messages)
            .where(*conditions)
            .order_by(alert_messages.c.created_at.desc(), alert_messages.c.message_id)
            .limit(limit)
        )
        return [_build_message(row) for row in self._database.fetch_mappings(query)]

    def _update(
        self, message_id: str, *, from_state: MessageState = "pending", **values: Any
    ) -> Any:
        return (
            alert_messages.update()
            .where(
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

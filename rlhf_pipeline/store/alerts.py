"""Alerts and silences: one alert per rule and subject whose condition has not ended."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import Connection, func, select

from rlhf_pipeline.errors import NotFound, StoreError
from rlhf_pipeline.monitoring import Alert, AlertMessage, AlertState, Silence
from rlhf_pipeline.records import content_hash
from rlhf_pipeline.store.alert_messages import insert_messages
from rlhf_pipeline.store.audit import Ledger, audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import alert_silences, alerts


class AlertStep(Protocol):
    """What changes of the alerts, and the messages about them."""

    @property
    def changed(self) -> Sequence[Alert]: ...

    @property
    def dropped(self) -> Sequence[int]: ...

    @property
    def messages(self) -> Sequence[AlertMessage]: ...

    @property
    def is_empty(self) -> bool: ...


# From the alerts that have not ended, the silences and the next number.
Advance = Callable[[Sequence[Alert], Sequence[Silence], int], AlertStep]


class Alerts:
    """Alerts change by rule or by hand; changes and their messages are stored together."""

    def __init__(self, database: Database):
        self._database = database

    def advance(self, step: Advance) -> AlertStep:
        """Store what `step` changes. It is asked twice where it changes something: the second time
        within the transaction, so that two processes open no alert twice.
        """
        with self._database.read_transaction() as connection:
            planned = self._plan(connection, step)
        if planned.is_empty:
            return planned
        with self._database.write_transaction() as connection:
            planned = self._plan(connection, step)
            for number in planned.dropped:
                connection.execute(alerts.delete().where(self._is(number)))
            for alert in planned.changed:
                self._put(connection, alert)
            insert_messages(connection, self._database, planned.messages)
        return planned

    def change(
        self,
        alert_id: int,
        change: Callable[[Alert], tuple[Alert, Sequence[AlertMessage]]],
        *,
        actor: str,
        action: str,
    ) -> Alert:
        """Change one alert by hand; raises NotFound. The audit chain keeps who did it."""
        with audited_transaction(self._database) as (connection, ledger):
            found = self._read(connection, alerts.c.alert_id == alert_id)
            if not found:
                raise NotFound(f"There is no alert {alert_id}. The page Alerts shows them.")
            changed, messages = change(found[0])
            self._put(connection, changed)
            insert_messages(connection, self._database, messages)
            _append(ledger, actor, f"alert.{action}", f"alert {alert_id}", changed)
        return changed

    def get(self, alert_id: int) -> Alert:
        """Raises NotFound."""
        with self._database.read_transaction() as connection:
            found = self._read(connection, alerts.c.alert_id == alert_id)
        if not found:
            raise NotFound(f"There is no alert {alert_id}. The page Alerts shows them.")
        return found[0]

    def page(
        self,
        *,
        states: Sequence[AlertState] = ("open", "acknowledged", "resolved"),
        rule: str | None = None,
        before_id: int | None = None,
        limit: int = 100,
    ) -> list[Alert]:
        """Newest first."""
        conditions: list[Any] = [alerts.c.state.in_(states)]
        if rule is not None:
            conditions.append(alerts.c.rule == rule)
        if before_id is not None:
            conditions.append(alerts.c.alert_id < before_id)
        with self._database.read_transaction() as connection:
            return self._read(connection, *conditions, newest_first=True, limit=limit)

    def count_open(self) -> int:
        return self._database.count(alerts, alerts.c.state == "open")

    def oldest_ongoing_at(self) -> datetime | None:
        """When the oldest alert whose condition has not ended was opened, also if it was resolved
        by hand.
        """
        ongoing = select(func.min(alerts.c.opened_at)).where(
            self._database.in_project(alerts), alerts.c.ended_at.is_(None)
        )
        with self._database.read_transaction() as connection:
            return connection.execute(ongoing).scalar()

    def _plan(self, connection: Connection, step: Advance) -> AlertStep:
        known = self._read(connection, alerts.c.ended_at.is_(None))
        silences = read_silences(connection, self._database)
        return step(known, silences, self._database.next_number(connection, alerts.c.alert_id))

    def _read(
        self,
        connection: Connection,
        *conditions: Any,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Alert]:
        order = alerts.c.alert_id.desc() if newest_first else alerts.c.alert_id
        wanted = (
            select(alerts.c.record)
            .where(self._database.in_project(alerts), *conditions)
            .order_by(order)
            .limit(limit)
        )
        return [Alert.from_json(text) for text in connection.execute(wanted).scalars()]

    def _put(self, connection: Connection, alert: Alert) -> None:
        values = alert.model_dump(
            include={"alert_id", "rule", "subject", "state", "opened_at", "ended_at"}
        ) | {"record": json_of(alert, f"Alert {alert.alert_id}")}
        updated = connection.execute(alerts.update().where(self._is(alert.alert_id)).values(values))
        if updated.rowcount == 0:
            self._database.insert(connection, alerts, [values])

    def _is(self, alert_id: int) -> Any:
        return self._database.in_project(alerts) & (alerts.c.alert_id == alert_id)


class Silences:
    """Keeps alerts from being sent for a while; ended silences remain as history."""

    def __init__(self, database: Database):
        self._database = database

    def add(
        self,
        *,
        rule: str | None,
        subject: str | None,
        reason: str,
        ends_at: datetime,
        actor: str,
    ) -> Silence:
        """Silence a rule, a subject or everything from now on. Raises StoreError for an end that
        is past.
        """
        now = self._database.clock.now().astimezone(UTC)
        if ends_at <= now:
            raise StoreError(
                f"The silence would end at {ends_at:%Y-%m-%d %H:%M}, which is past. Choose a later "
                "end."
            )
        with audited_transaction(self._database) as (connection, ledger):
            silence = Silence(
                silence_id=self._database.next_number(connection, alert_silences.c.silence_id),
                rule=rule,
                subject=subject,
                reason=reason,
                created_by=actor,
                created_at=now,
                ends_at=ends_at,
            )
            self._database.insert(connection, alert_silences, [_silence_row(silence)])
            name = f"silence {silence.silence_id}"
            _append(ledger, actor, "alert.silence", name, silence)
        return silence

    def end(self, silence_id: int, *, actor: str) -> Silence:
        """End a silence now. Raises NotFound, and StoreError if it has ended."""
        now = self._database.clock.now().astimezone(UTC)
        with audited_transaction(self._database) as (connection, ledger):
            known = {each.silence_id: each for each in read_silences(connection, self._database)}
            if silence_id not in known:
                raise NotFound(f"There is no silence {silence_id}. The page Alerts lists them.")
            silence = known[silence_id]
            if silence.ends_at <= now:
                raise StoreError(f"Silence {silence_id} ended at {silence.ends_at:%Y-%m-%d %H:%M}.")
            ended = silence.model_copy(update={"ends_at": now})
            connection.execute(
                alert_silences.update()
                .where(
                    self._database.in_project(alert_silences),
                    alert_silences.c.silence_id == silence_id,
                )
                .values(_silence_row(ended))
            )
            _append(ledger, actor, "alert.unsilence", f"silence {silence_id}", ended)
        return ended

    def all(self) -> list[Silence]:
        """Newest first."""
        with self._database.read_transaction() as connection:
            return read_silences(connection, self._database)[::-1]


def read_silences(connection: Connection, database: Database) -> list[Silence]:
    """Oldest first."""
    wanted = (
        select(alert_silences.c.record)
        .where(database.in_project(alert_silences))
        .order_by(alert_silences.c.silence_id)
    )
    return [Silence.from_json(text) for text in connection.execute(wanted).scalars()]


def _silence_row(silence: Silence) -> dict[str, Any]:
    return {
        "silence_id": silence.silence_id,
        "ends_at": silence.ends_at,
        "record": json_of(silence, f"Silence {silence.silence_id}"),
    }


def _append(ledger: Ledger, actor: str, action: str, name: str, record: Alert | Silence) -> None:
    ledger.append(
        actor=actor,
        action=action,
        object_id=name,
        digest=content_hash(record.model_dump(mode="json")),
    )

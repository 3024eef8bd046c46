"""Versions of the loop settings, as processes of the project read them from `rlhf.yaml`."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.audit import LOOP_SETTINGS_PUT, audited_transaction, row_digest
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import loop_settings

Given = Mapping[str, Mapping[str, Any]]


class LoopSettingsVersion(Record):
    """What the file set, and how that differs from the version before."""

    version: int
    given: dict[str, dict[str, Any]]
    changes: tuple[str, ...]
    created_at: datetime | None


DEFAULTS = LoopSettingsVersion(version=0, given={}, changes=(), created_at=None)


class LoopSettingsLog:
    """Version 0 is the defaults: nothing is stored before a file sets something."""

    def __init__(self, database: Database):
        self._database = database

    def latest(self) -> LoopSettingsVersion:
        with self._database.read_transaction() as connection:
            return self._latest(connection)

    def all(self) -> list[LoopSettingsVersion]:
        """Newest first, without version 0."""
        wanted = select(loop_settings).order_by(loop_settings.c.version.desc())
        return [_build_version(row) for row in self._database.fetch_mappings(wanted)]

    def record(
        self, given: Given, describe_changes: Callable[[Given, Given], Sequence[str]]
    ) -> LoopSettingsVersion:
        """The version that holds `given`: the latest, or a new one with its changes from it."""
        latest = self.latest()
        if latest.given == given:
            return latest
        with audited_transaction(self._database) as (connection, ledger):
            latest = self._latest(connection)
            if latest.given == given:  # another process was first
                return latest
            row = {
                "version": latest.version + 1,
                "record": json.dumps(given, sort_keys=True),
                "changes": json.dumps(list(describe_changes(latest.given, given))),
                "created_at": self._database.clock.now().astimezone(UTC),
                "created_by": "rlhf.yaml",
            }
            self._database.insert(connection, loop_settings, [row])
            ledger.append(
                actor="rlhf.yaml",
                action=LOOP_SETTINGS_PUT,
                object_id=str(row["version"]),
                digest=row_digest(loop_settings, row),
            )
        return _build_version(row)

    def _latest(self, connection: Connection) -> LoopSettingsVersion:
        wanted = select(loop_settings).order_by(loop_settings.c.version.desc()).limit(1)
        row = connection.execute(wanted).mappings().one_or_none()
        return DEFAULTS if row is None else _build_version(row)


def _build_version(row: RowMapping | Mapping[str, Any]) -> LoopSettingsVersion:
    return LoopSettingsVersion(
        version=row["version"],
        given=json.loads(row["record"]),
        changes=tuple(json.loads(row["changes"])),
        created_at=row["created_at"],
    )

"""Guidelines for annotators and rules for dealing cards; each change is a new version."""

import secrets
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import Connection, Table, select

from rlhf_pipeline.core.errors import NotFound, OutdatedEdit
from rlhf_pipeline.core.records import AnnotationRules, Guideline
from rlhf_pipeline.store.audit import GUIDELINES_ADD, RULES_PUT, audited_transaction, row_digest
from rlhf_pipeline.store.engine import Database, Repository
from rlhf_pipeline.store.schema import annotation_rules, guidelines


class Guidelines(Repository):
    """Version 0 means that no guidelines exist yet."""

    def latest(self) -> Guideline | None:
        return next(iter(self.all()), None)

    def get(self, version: int) -> Guideline:
        """Raises NotFound."""
        for guideline in self.all():
            if guideline.version == version:
                return guideline
        raise NotFound(f"There is no version {version} of the guidelines.")

    def all(self) -> list[Guideline]:
        """Newest first."""
        query = select(guidelines).order_by(guidelines.c.version.desc())
        rows = self._database.fetch_mappings(query)
        return [
            Guideline.model_validate({name: row[name] for name in Guideline.model_fields})
            for row in rows
        ]

    def add(self, text: str, *, after: int, actor: str) -> Guideline:
        """Add the version after `after`, the newest one that its author had read. Raises
        OutdatedEdit if there is a newer one.
        """
        with audited_transaction(self._database) as (connection, ledger):
            version = _next_version(self._database, connection, guidelines, after, "guidelines")
            row = {
                "version": version,
                "text": text,
                "created_at": self._database.clock.now().astimezone(UTC),
                "created_by": actor,
            }
            self._database.insert(connection, guidelines, [row])
            ledger.append(
                actor=actor,
                action=GUIDELINES_ADD,
                object_id=str(version),
                digest=row_digest(guidelines, row),
            )
        return Guideline.model_validate(row)


class Rules(Repository):
    """Version 0 is the defaults."""

    def latest(self) -> tuple[int, AnnotationRules]:
        query = (
            select(annotation_rules.c.version, annotation_rules.c.record)
            .order_by(annotation_rules.c.version.desc())
            .limit(1)
        )
        row = self._database.fetch_first(query)
        return (
            (0, AnnotationRules())
            if row is None
            else (row.version, AnnotationRules.from_json(row.record))
        )

    def history(self) -> list[tuple[int, AnnotationRules, datetime, str]]:
        """(version, rules, time, author), newest first."""
        query = select(annotation_rules).order_by(annotation_rules.c.version.desc())
        rows = self._database.fetch_all(query)
        return [
            (row.version, AnnotationRules.from_json(row.record), row.created_at, row.created_by)
            for row in rows
        ]

    def put(self, rules: AnnotationRules, *, after: int, actor: str) -> int:
        """Store the version after `after`; returns its number. Raises OutdatedEdit if there is a
        newer one.
        """
        record = rules.model_dump_json()
        with audited_transaction(self._database) as (connection, ledger):
            version = _next_version(self._database, connection, annotation_rules, after, "rules")
            row = {
                "version": version,
                "record": record,
                "created_at": self._database.clock.now().astimezone(UTC),
                "created_by": actor,
            }
            self._database.insert(connection, annotation_rules, [row])
            ledger.append(
                actor=actor,
                action=RULES_PUT,
                object_id=str(version),
                digest=row_digest(annotation_rules, row),
            )
        return version

    def draw_seed(self) -> None:
        """Draw a seed before cards are dealt: the default seed is public, and with it the places of
        hidden cards.
        """
        version, rules = self.latest()
        if version == 0:
            with suppress(OutdatedEdit):  # another process was first
                self.put(
                    rules.model_copy(update={"seed": secrets.randbits(48)}), after=0, actor="setup"
                )


def _next_version(
    database: Database, connection: Connection, table: Table, after: int, what: str
) -> int:
    version = database.next_number(connection, table.c.version)
    if version != after + 1:
        raise OutdatedEdit(
            f"The {what} are at version {version - 1}, but the edit is based on version {after}. "
            f"Read "
            "the newer one and edit that."
        )
    return version

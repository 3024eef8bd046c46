"""Records imports of files, and answers what an import must know of stored rows."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, select

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import Record, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import comparisons, imports, votes

ImportState = Literal["started", "finished", "failed"]
KILLED = (
    "ended without a report: it was killed or the machine stopped. Stored rows are kept; "
    "importing the file again completes them."
)
WITH_VOTES = ("votes", "preferences")  # kinds of imports
# In the record of an import of votes: the days it began to cast votes of, and when somebody took
# them for whole as they are.
DAYS, TAKEN_AT = "days", "taken_as_is_at"


class Import(Record):
    """One import of one file. `record` holds its settings and the counts of its rows."""

    import_id: int
    kind: str
    file: str
    state: ImportState
    started_at: datetime
    finished_at: datetime | None
    record: str


class UnfinishedImport(Record):
    """An import of votes that has not finished, so that its days may have only part of
    their votes.
    """

    import_id: int
    file: str
    state: ImportState
    started_at: datetime
    first_day: str | None  # None: still `started`, and its days are not known yet
    n_days: int
    error: str | None


class Imports(Repository):
    """Every import from its start, failed and killed ones included."""

    def start(self, kind: str, file: str, record: dict[str, Any]) -> int:
        """Record that an import began; returns its number. The caller makes sure that no other
        import runs: those still `started` were killed.
        """
        text = json_of(record, f"Import of {file}")
        now = self._database.clock.now()
        with self._database.write_transaction() as connection:
            self._fail_abandoned(connection)
            number = self._database.next_number(connection, imports.c.import_id)
            row = {
                "import_id": number,
                "kind": kind,
                "file": file,
                "state": "started",
                "started_at": now,
                "finished_at": None,
                "record": text,
            }
            self._database.insert(connection, imports, [row])
        return number

    def mark_casting(self, import_id: int, days: Sequence[str]) -> None:
        """Record that votes of these days are cast from now on: they are incomplete until this
        import or its repetition finishes.
        """
        with self._database.write_transaction() as connection:
            self._update_record(connection, import_id, {DAYS: sorted(set(days))})

    def finish(self, import_id: int, record: dict[str, Any]) -> None:
        """Record that all rows of the file are accounted for; `record` is added to the
        stored one.
        """
        self._end(import_id, "finished", record)

    def fail(self, import_id: int, record: dict[str, Any]) -> None:
        """Record that the import stopped before its end; `record` holds the error."""
        self._end(import_id, "failed", record)

    def find_unfinished(self) -> list[UnfinishedImport]:
        """Imports of votes that run, were killed or failed after their first vote, oldest first,
        without repeated ones.

        An import is repeated if a later import of a file with the same SHA-256 and mapping
        finished: it cast the missing votes. One that rejected every row repeats nothing.
        """
        votes_imports = [i for i in self.all() if i.kind in WITH_VOTES]
        records = {i.import_id: json.loads(i.record) for i in votes_imports}
        completed = {
            _reading_hash(r): i.import_id
            for i in votes_imports
            if i.state == "finished" and _has_accepted_rows(r := records[i.import_id])
        }
        half = []
        for votes_import in votes_imports:
            record = records[votes_import.import_id]
            days, read_as = record.get(DAYS), _reading_hash(record)
            # a running one may write any day
            has_begun = bool(days) or (days is None and votes_import.state == "started")
            is_repeated = (
                record.get("sha256") is not None
                and completed.get(read_as, 0) > votes_import.import_id
            )
            if (
                votes_import.state != "finished"
                and has_begun
                and TAKEN_AT not in record
                and not is_repeated
            ):
                half.append(
                    UnfinishedImport(
                        import_id=votes_import.import_id,
                        file=votes_import.file,
                        state=votes_import.state,
                        started_at=votes_import.started_at,
                        first_day=days[0] if days else None,
                        n_days=len(days or ()),
                        error=record.get("error"),
                    )
                )
        return half

    def accept_unfinished(self) -> list[UnfinishedImport]:
        """Treat the days of all unfinished imports as complete and return these imports; an act in
        the audit chain.

        The caller makes sure that no import runs: those still `started` were killed.
        """
        half, now = self.find_unfinished(), self._database.clock.now()
        if not half:
            return []
        with audited_transaction(self._database) as (connection, ledger):
            self._fail_abandoned(connection)
            for votes_import in half:
                text = self._update_record(connection, votes_import.import_id, {TAKEN_AT: now})
                ledger.append(
                    actor="import",
                    action="import.take_as_is",
                    object_id=f"import {votes_import.import_id}",
                    digest=content_hash(text),
                )
        return half

    def all(self) -> list[Import]:
        """Oldest first."""
        columns = [imports.c[name] for name in Import.model_fields]
        query = select(*columns).order_by(imports.c.import_id)
        return [Import.model_validate(dict(row)) for row in self._database.fetch_mappings(query)]

    def find_fields(
        self, comparison_ids: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """comparison_id -> these columns of those that are stored."""
        key = comparisons.c.comparison_id
        query = select(key, *(comparisons.c[name] for name in fields))
        rows = self._database.fetch_among(query, key, comparison_ids)
        return {row.comparison_id: dict(zip(fields, row[1:], strict=True)) for row in rows}

    def add_source_ids(self, source_ids: Mapping[str, str]) -> None:
        """Give stored comparisons the `source_pair_id` that they lack: by comparison id. An act in
        the audit chain.
        """
        with audited_transaction(self._database) as (connection, ledger):
            for comparison_id, source_id in source_ids.items():
                connection.execute(
                    comparisons.update()
                    .where(
                        comparisons.c.comparison_id == comparison_id,
                        comparisons.c.source_pair_id.is_(None),
                    )
                    .values(source_pair_id=source_id)
                )
            ledger.append(
                actor="import",
                action="comparisons.identify",
                object_id=f"{len(source_ids)} comparisons",
                digest=content_hash(sorted(source_ids.items())),
            )

    def find_known_keys(self, idempotency_keys: Sequence[str]) -> set[str]:
        """The idempotency keys under which a vote is stored."""
        key = votes.c.idempotency_key
        query = select(key)
        return {row[0] for row in self._database.fetch_among(query, key, idempotency_keys)}

    def find_votes(
        self, comparison_ids: Sequence[str]
    ) -> set[tuple[str, str, str, datetime | None]]:
        """(comparison, annotator, choice, time) of every vote on these comparisons, imported or
        not.
        """
        query = select(
            votes.c.comparison_id, votes.c.annotator_id, votes.c.choice, votes.c.voted_at
        )
        rows = self._database.fetch_among(query, votes.c.comparison_id, comparison_ids)
        return {row._tuple() for row in rows}

    def _end(self, import_id: int, state: ImportState, record: dict[str, Any]) -> None:
        with audited_transaction(self._database) as (connection, ledger):
            text = self._update_record(
                connection, import_id, record, state=state, finished_at=self._database.clock.now()
            )
            ledger.append(
                actor="import",
                action=f"import.{state}",
                object_id=f"import {import_id}",
                digest=content_hash(text),
            )

    def _fail_abandoned(self, connection: Connection) -> None:
        """Mark imports that are still `started` as failed, although none runs."""
        started = select(imports.c.import_id).where(imports.c.state == "started")
        for import_id in connection.execute(started).scalars().all():
            self._update_record(
                connection,
                import_id,
                {"error": KILLED},
                state="failed",
                finished_at=self._database.clock.now(),
            )

    def _update_record(
        self, connection: Connection, import_id: int, more: dict[str, Any], **columns: Any
    ) -> str:
        """The import's record with `more` in it, stored with other new values of its row. Raises
        StoreError for an unknown import.
        """
        this = imports.c.import_id == import_id
        before = connection.execute(select(imports.c.record).where(this)).scalar_one_or_none()
        if before is None:
            raise StoreError(f"There is no import {import_id}. Start it first.")
        text = json_of({**json.loads(before), **more}, f"Import {import_id}")
        connection.execute(imports.update().where(this).values(record=text, **columns))
        return text


def _reading_hash(record: dict[str, Any]) -> str:
    """Equal for the same bytes read by the same mapping."""
    return content_hash(record.get("sha256"), record.get("columns"), record.get("choices"))


def _has_accepted_rows(record: dict[str, Any]) -> bool:
    return not record.get("rejected") or any(
        record.get(count) for count in ("imported", "stored_before", "merged")
    )

"""Which files were imported, and what an import asks of what is stored. Knows provenance and keys; reads no file."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import func, select

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import Record, content_hash
from rlhf_pipeline.store.audit import acting
from rlhf_pipeline.store.conversion import batches, json_of
from rlhf_pipeline.store.engine import MAX_PARAMETERS, Database
from rlhf_pipeline.store.schema import comparisons, idempotency, imports, votes

State = Literal["started", "finished", "failed"]
KILLED = "ended without a word: killed, or the machine stopped. What it had stored is kept; the same import again completes it."


class Import(Record):
    """One import of one file. `record` is what it was told and what became of its rows."""

    import_id: int
    kind: str
    file: str
    state: State
    started_at: datetime
    finished_at: datetime | None
    record: str


class Imports:
    """Provenance of imported rows: every import from its start, also one that failed or was killed."""

    def __init__(self, database: Database):
        self._database = database

    def start(self, kind: str, file: str, record: dict[str, Any]) -> int:
        """Note that an import began; its number. Whoever calls it knows that no other is running: those still `started` were killed."""
        text = json_of(record, f"Import of {file}")
        now = self._database.clock.now()
        with self._database.writing() as connection:
            dead = imports.update().where(self._database.mine(imports), imports.c.state == "started")
            connection.execute(dead.values(state="failed", finished_at=now, record=json_of({"error": KILLED}, "A killed import")))
            last = connection.execute(select(func.max(imports.c.import_id)).where(self._database.mine(imports))).scalar() or 0
            row = {
                "import_id": last + 1,
                "kind": kind,
                "file": file,
                "state": "started",
                "started_at": now,
                "finished_at": None,
                "record": text,
            }
            self._database.insert(connection, imports, [row])
        return last + 1

    def finish(self, import_id: int, record: dict[str, Any]) -> None:
        """All rows of the file are accounted for in `record`."""
        self._end(import_id, "finished", record)

    def fail(self, import_id: int, record: dict[str, Any]) -> None:
        """The import stopped before its end; `record` says at what."""
        self._end(import_id, "failed", record)

    def all(self) -> list[Import]:
        """Oldest first."""
        columns = [imports.c[name] for name in Import.model_fields]
        wanted = select(*columns).where(self._database.mine(imports)).order_by(imports.c.import_id)
        with self._database.reading() as connection:
            return [Import.model_validate(dict(row)) for row in connection.execute(wanted).mappings()]

    def pair_keys(self, comparison_ids: Sequence[str]) -> dict[str, str]:
        """comparison_id -> pair_key of those that are stored."""
        found: dict[str, str] = {}
        with self._database.reading() as connection:
            for batch in batches(sorted(set(comparison_ids)), MAX_PARAMETERS):
                wanted = select(comparisons.c.comparison_id, comparisons.c.pair_key)
                mine = wanted.where(self._database.mine(comparisons), comparisons.c.comparison_id.in_(batch))
                found |= {row.comparison_id: row.pair_key for row in connection.execute(mine)}
        return found

    def known_keys(self, idempotency_keys: Sequence[str]) -> set[str]:
        """Those idempotency keys under which a vote is stored."""
        found: set[str] = set()
        with self._database.reading() as connection:
            for batch in batches(sorted(set(idempotency_keys)), MAX_PARAMETERS):
                wanted = select(idempotency.c.idempotency_key)
                mine = wanted.where(self._database.mine(idempotency), idempotency.c.idempotency_key.in_(batch))
                found.update(connection.execute(mine).scalars())
        return found

    def votes_on(self, comparison_ids: Sequence[str]) -> set[tuple[str, str, str, datetime | None]]:
        """(comparison, annotator, choice, moment) of every vote on these comparisons, whichever way it came in."""
        found: set[tuple[str, str, str, datetime | None]] = set()
        with self._database.reading() as connection:
            for batch in batches(sorted(set(comparison_ids)), MAX_PARAMETERS):
                wanted = select(votes.c.comparison_id, votes.c.annotator_id, votes.c.choice, votes.c.voted_at)
                mine = wanted.where(self._database.mine(votes), votes.c.comparison_id.in_(batch))
                found.update(row._tuple() for row in connection.execute(mine))
        return found

    def _end(self, import_id: int, state: State, record: dict[str, Any]) -> None:
        text = json_of(record, f"Import {import_id}")
        this = self._database.mine(imports), imports.c.import_id == import_id
        with acting(self._database) as (connection, ledger):
            values = {"state": state, "finished_at": self._database.clock.now(), "record": text}
            if connection.execute(imports.update().where(*this).values(values)).rowcount != 1:
                raise StoreError(f"There is no import {import_id} in project {self._database.project!r}. Start it first.")
            ledger.append(actor="import", action=f"import.{state}", object_id=f"import {import_id}", digest=content_hash(text))

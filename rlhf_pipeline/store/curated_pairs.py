"""Hand-made preference pairs: an edit or rejection is a revision, and none is ever overwritten."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from rlhf_pipeline.core.api_types.filters import PairFilter
from rlhf_pipeline.core.curation import (
    CuratedPair,
    PairStatus,
    PairTexts,
    find_edited_status,
)
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import datasets, pair_revisions

TEXTS = set(PairTexts.model_fields)
COLUMNS = ("pair_id", "revision", "dataset_id", "status", "edited_by", "edited_at")
REVISIONS = pair_revisions.alias("revisions")
# of each pair
_NEWEST = pair_revisions.c.revision == (
    select(func.max(REVISIONS.c.revision))
    .where(REVISIONS.c.pair_id == pair_revisions.c.pair_id)
    .scalar_subquery()
)


class CuratedPairs(Repository):
    """Each pair belongs to a data set, which its edits open for the next version."""

    def add(
        self,
        dataset_id: int,
        pairs: Sequence[tuple[PairTexts, tuple[int, ...]]],
        *,
        actor: str,
    ) -> list[CuratedPair]:
        """Store pairs, each with the feedback that it was made from: all or none. Raises NotFound
        for a data set that does not exist, DatasetConflict for an archived one.
        """
        with audited_transaction(self._database) as (connection, ledger):
            self._open_dataset(connection, dataset_id)
            first = self._database.next_number(connection, pair_revisions.c.pair_id)
            rows = [
                self._make_row(first + i, 1, dataset_id, "accepted", texts, feedback_ids, actor)
                for i, (texts, feedback_ids) in enumerate(pairs)
            ]
            return self._insert(connection, ledger, "pair.add", rows)

    def get(self, pair_id: int) -> CuratedPair:
        """The latest revision. Raises NotFound."""
        with self._database.read_transaction() as connection:
            return _get(connection, pair_id)

    def page(self, only: PairFilter, *, before_id: int | None = None) -> list[CuratedPair]:
        """Latest revisions, the newest pair first, at most the filter's `limit`."""
        conditions: list[ColumnElement[bool]] = [_NEWEST]
        if only.dataset_id is not None:
            conditions.append(pair_revisions.c.dataset_id == only.dataset_id)
        if only.status is not None:
            conditions.append(pair_revisions.c.status == only.status)
        if before_id is not None:
            conditions.append(pair_revisions.c.pair_id < before_id)
        query = select(pair_revisions).where(*conditions)
        return self._read(query.order_by(pair_revisions.c.pair_id.desc()).limit(only.limit))

    def of_dataset(self, dataset_id: int) -> list[CuratedPair]:
        """The latest revisions of all its pairs that are not rejected."""
        query = select(pair_revisions).where(
            _NEWEST,
            pair_revisions.c.dataset_id == dataset_id,
            pair_revisions.c.status == "accepted",
        )
        return self._read(query.order_by(pair_revisions.c.pair_id))

    def history(self, pair_id: int) -> list[CuratedPair]:
        """All revisions, oldest first."""
        query = select(pair_revisions).where(pair_revisions.c.pair_id == pair_id)
        return self._read(query.order_by(pair_revisions.c.revision))

    def revise(
        self, pair_id: int, change: dict[str, Any], *, actor: str, status: PairStatus = "accepted"
    ) -> CuratedPair:
        """Store the next revision, with the fields of `change`, of the given status; a change of
        nothing returns the latest one.

        Raises NotFound, DatasetConflict as `add`, pydantic's ValidationError for texts that cannot
        be.
        """
        with audited_transaction(self._database) as (connection, ledger):
            old = _get(connection, pair_id)
            self._open_dataset(connection, old.dataset_id)
            texts = PairTexts.model_validate(old.model_dump(include=TEXTS) | change)
            if status == old.status and texts.model_dump() == old.model_dump(include=TEXTS):
                return old
            row = self._make_row(
                pair_id, old.revision + 1, old.dataset_id, status, texts, old.feedback_ids, actor
            )
            action = "pair.revise" if status == "accepted" else "pair.reject"
            return self._insert(connection, ledger, action, [row])[0]

    def _make_row(
        self,
        pair_id: int,
        revision: int,
        dataset_id: int,
        status: PairStatus,
        texts: PairTexts,
        feedback_ids: tuple[int, ...],
        actor: str,
    ) -> dict[str, Any]:
        record = texts.model_dump(include=TEXTS) | {"feedback_ids": feedback_ids}
        return {
            "pair_id": pair_id,
            "revision": revision,
            "dataset_id": dataset_id,
            "status": status,
            "record": json_of(record, "The pair"),
            "edited_by": actor,
            "edited_at": self._now(),
        }

    def _insert(
        self, connection: Connection, ledger: Ledger, action: str, rows: list[dict[str, Any]]
    ) -> list[CuratedPair]:
        self._database.insert(connection, pair_revisions, rows)
        for row in rows:
            ledger.append(
                actor=row["edited_by"],
                action=action,
                object_id=f"{row['pair_id']} revision {row['revision']}",
                digest=row_digest(pair_revisions, row),
            )
        return [_build(row) for row in rows]

    def _open_dataset(self, connection: Connection, dataset_id: int) -> None:
        """A data set whose pairs change has a version to come."""
        query = select(datasets.c.name, datasets.c.status).where(
            datasets.c.dataset_id == dataset_id
        )
        row = connection.execute(query).first()
        if row is None:
            raise NotFound(f"There is no data set {dataset_id}.")
        connection.execute(
            datasets.update()
            .where(datasets.c.dataset_id == dataset_id)
            .values(status=find_edited_status(row.name, row.status), updated_at=self._now())
        )

    def _now(self) -> datetime:
        return self._database.clock.now().astimezone(UTC)

    def _read(self, query: Select[Any]) -> list[CuratedPair]:
        return [_build(row) for row in self._database.fetch_mappings(query)]


def _get(connection: Connection, pair_id: int) -> CuratedPair:
    query = select(pair_revisions).where(pair_revisions.c.pair_id == pair_id, _NEWEST)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound(f"There is no preference pair {pair_id}.")
    return _build(row)


def _build(row: Any) -> CuratedPair:
    columns = {name: row[name] for name in COLUMNS}
    return CuratedPair.model_validate(json.loads(row["record"]) | columns)

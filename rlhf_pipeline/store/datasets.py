"""Curated data sets, their frozen versions, and the rows of these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, func, select, update

from rlhf_pipeline.core.api_types.filters import DatasetFilter
from rlhf_pipeline.core.curation import (
    Dataset,
    DatasetChange,
    DatasetExport,
    DatasetQuality,
    DatasetQuery,
    DatasetStatus,
    DatasetType,
    DatasetVersion,
    NamedVersion,
    check_move,
    find_edited_status,
)
from rlhf_pipeline.core.errors import DatasetConflict, NotFound
from rlhf_pipeline.core.frames import DATASET_ROWS, check_frame
from rlhf_pipeline.core.records import canonical_json, content_hash
from rlhf_pipeline.store.audit import audited_transaction, row_digest
from rlhf_pipeline.store.conversion import batches, json_of, rows_of
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import dataset_rows, dataset_sources, dataset_versions, datasets

if TYPE_CHECKING:
    import pandas as pd

ALL_DATASETS = DatasetFilter()
NO_CHANGE = DatasetChange()
_NAMED = ("dataset_id", "version", "content_hash", "frozen_at")


class Datasets(Repository):
    """A data set changes until it is archived; its versions never do."""

    def add(
        self, name: str, kind: DatasetType, query: DatasetQuery, description: str, *, actor: str
    ) -> Dataset:
        """A new draft. Raises DatasetConflict for a name that is taken."""
        with audited_transaction(self._database) as (connection, ledger):
            _require_free(connection, name)
            now = self._now()
            row = {
                "dataset_id": self._database.next_number(connection, datasets.c.dataset_id),
                "name": name,
                "description": description,
                "type": kind,
                "status": "draft",
                "query": json_of(query, "The query"),
                "n_rows": 0,
                "quality": None,
                "last_export": None,
                "created_by": actor,
                "created_at": now,
                "updated_at": now,
            }
            self._database.insert(connection, datasets, [row])
            ledger.append(
                actor=actor,
                action="dataset.add",
                object_id=str(row["dataset_id"]),
                digest=row_digest(datasets, row),
            )
            return self._get(connection, datasets.c.dataset_id == row["dataset_id"])

    def get(self, dataset_id: int) -> Dataset:
        """Raises NotFound."""
        with self._database.read_transaction() as connection:
            return self._get(connection, datasets.c.dataset_id == dataset_id, str(dataset_id))

    def find(self, name: str) -> Dataset:
        """By name. Raises NotFound."""
        with self._database.read_transaction() as connection:
            return self._get(connection, datasets.c.name == name, repr(name))

    def page(
        self, only: DatasetFilter = ALL_DATASETS, *, before_id: int | None = None
    ) -> list[Dataset]:
        """Newest first, at most its `limit`; archived ones only where the filter names them."""
        conditions: list[Any] = [
            datasets.c.status == only.status if only.status else datasets.c.status != "archived"
        ]
        if only.type:
            conditions.append(datasets.c.type == only.type)
        if before_id is not None:
            conditions.append(datasets.c.dataset_id < before_id)
        query = _select_datasets().where(*conditions).order_by(datasets.c.dataset_id.desc())
        return [_build(row) for row in self._database.fetch_mappings(query.limit(only.limit))]

    def change(
        self,
        dataset_id: int,
        *,
        actor: str,
        name: str | None = None,
        description: str | None = None,
        query: DatasetQuery | None = None,
        status: DatasetStatus | None = None,
    ) -> Dataset:
        """Change what is not None. A new query of a frozen data set begins its next version.

        Raises NotFound, and DatasetConflict for an illegal move, a name that is taken and another
        name of one with versions. Freezing and exporting alone make it ready and exported.
        """
        with audited_transaction(self._database) as (connection, ledger):
            old = self._get(connection, datasets.c.dataset_id == dataset_id, str(dataset_id))
            new_status = old.status
            if status is not None and status != old.status:
                if status in ("ready", "exported"):
                    raise DatasetConflict(
                        f"Data set {old.name!r} becomes {status} by "
                        f"{'freezing a version' if status == 'ready' else 'an export'}."
                    )
                check_move(old.name, old.status, status)
                new_status = status
            if query is not None:
                new_status = find_edited_status(old.name, new_status)
            change = DatasetChange.model_construct(name=name, description=description, query=query)
            values = {**_edits(connection, old, change), "status": new_status}
            return self._update(
                connection, ledger, dataset_id, actor, f"dataset.{status or 'change'}", values
            )

    def record_build(
        self,
        dataset_id: int,
        quality: DatasetQuality,
        *,
        actor: str,
        change: DatasetChange = NO_CHANGE,
        read_at: datetime | None = None,
    ) -> Dataset:
        """Edit a data set, with the number of rows and the quality that it was built with; a draft
        becomes `curating`. `read_at`: its `updated_at` when the rows were read. Raises
        DatasetConflict if it was changed since.
        """
        with audited_transaction(self._database) as (connection, ledger):
            old = self._get(connection, datasets.c.dataset_id == dataset_id, str(dataset_id))
            _require_unchanged(old, read_at)
            values = {
                **_edits(connection, old, change),
                "status": find_edited_status(old.name, old.status, begins=True),
                "n_rows": quality.n_rows,
                "quality": json_of(quality, "The quality"),
            }
            return self._update(connection, ledger, dataset_id, actor, "dataset.build", values)

    def freeze(
        self,
        dataset_id: int,
        rows: pd.DataFrame,
        quality: DatasetQuality,
        *,
        actor: str,
        change: DatasetChange = NO_CHANGE,
        read_at: datetime | None = None,
    ) -> DatasetVersion:
        """Edit a data set, store DATASET_ROWS as its next version, and make it ready.

        Raises NotFound, DatasetConflict as `record_build` and where its status or a problem of the
        quality forbids it. A freeze that is killed leaves rows that nothing names and that the next
        one uses.
        """
        dataset = change.edit(self.get(dataset_id))
        _require_freezable(dataset, quality)
        records = rows_of(rows, DATASET_ROWS)
        lines = [canonical_json(record) for record in records]
        digest = hashlib.sha256("\n".join([dataset.type, *lines]).encode()).hexdigest()
        self._store_rows(digest, lines, [record["sources"] for record in records])
        with audited_transaction(self._database) as (connection, ledger):
            old = self._get(connection, datasets.c.dataset_id == dataset_id)
            _require_unchanged(old, read_at)
            dataset = change.edit(old)
            _require_freezable(dataset, quality)
            edits = _edits(connection, old, change)
            row = {
                "dataset_id": dataset_id,
                "version": dataset.n_versions + 1,
                "content_hash": digest,
                "n_rows": len(lines),
                "query": json_of(dataset.query, "The query"),
                "quality": json_of(quality, "The quality"),
                "frozen_by": actor,
                "frozen_at": self._now(),
            }
            self._database.insert(connection, dataset_versions, [row])
            ledger.append(
                actor=actor,
                action="dataset_version.freeze",
                object_id=f"{dataset_id} version {row['version']}",
                digest=row_digest(dataset_versions, row),
            )
            counts = {"n_rows": len(lines), "quality": row["quality"]}
            values = {**edits, "status": "ready", **counts}
            self._update(connection, ledger, dataset_id, actor, "dataset.ready", values)
        return _build_version(row)

    def record_export(self, dataset_id: int, export: DatasetExport, *, actor: str) -> Dataset:
        """A ready data set becomes exported; one that is edited or archived keeps its status."""
        with audited_transaction(self._database) as (connection, ledger):
            old = self._get(connection, datasets.c.dataset_id == dataset_id, str(dataset_id))
            status = "exported" if old.status == "ready" else old.status
            values = {"status": status, "last_export": json_of(export, "The export")}
            return self._update(connection, ledger, dataset_id, actor, "dataset.export", values)

    def versions(self, dataset_id: int) -> list[DatasetVersion]:
        """Newest first."""
        query = (
            select(dataset_versions)
            .where(dataset_versions.c.dataset_id == dataset_id)
            .order_by(dataset_versions.c.version.desc())
        )
        return [_build_version(row) for row in self._database.fetch_mappings(query)]

    def version(self, dataset_id: int, version: int | None = None) -> DatasetVersion:
        """A version; the newest by default. Raises NotFound."""
        for frozen in self.versions(dataset_id):
            if version in (None, frozen.version):
                return frozen
        number = "frozen version" if version is None else f"version {version}"
        raise NotFound(f"Data set {dataset_id} has no {number}. Freeze one first.")

    def rows(self, content_hash: str, *, after: int = -1, limit: int | None = None) -> pd.DataFrame:
        """DATASET_ROWS of a version, or `limit` of them after a row number."""
        import pandas as pd

        query = (
            select(dataset_rows.c.record)
            .where(dataset_rows.c.content_hash == content_hash, dataset_rows.c.row_no > after)
            .order_by(dataset_rows.c.row_no)
            .limit(limit)
        )
        records = [json.loads(text) for text in self._database.fetch_scalars(query)]
        return check_frame(pd.DataFrame(records, columns=list(DATASET_ROWS.columns)), DATASET_ROWS)

    def versions_of(self, *sources: str) -> list[NamedVersion]:
        """The versions with a row from one of the comparisons, entries of feedback or hand-made
        pairs, such as `comparison:c1`; by data set, oldest first.
        """
        query = (
            select(*(dataset_versions.c[name] for name in _NAMED), datasets.c.name)
            .join(datasets, datasets.c.dataset_id == dataset_versions.c.dataset_id)
            .join(
                dataset_sources,
                dataset_sources.c.content_hash == dataset_versions.c.content_hash,
            )
            .where(dataset_sources.c.source.in_(sources))
            .distinct()
            .order_by(dataset_versions.c.dataset_id, dataset_versions.c.version)
        )
        return [
            NamedVersion.model_validate(dict(row)) for row in self._database.fetch_mappings(query)
        ]

    def _store_rows(self, digest: str, lines: Sequence[str], sources: Sequence[str]) -> None:
        """Rows with what they were made from, those that an interrupted freeze lacks."""
        stored = self._database.count(dataset_rows, dataset_rows.c.content_hash == digest)
        for some in self._database.with_backoff(batches(range(stored, len(lines)), MAX_ROWS)):
            rows = [{"content_hash": digest, "row_no": n, "record": lines[n]} for n in some]
            # a revision of a pair is found by the pair
            names = {name.partition("@")[0] for n in some for name in json.loads(sources[n])}
            origins = [{"source": name, "content_hash": digest} for name in sorted(names)]
            with self._database.write_transaction() as connection:
                self._database.insert_new(connection, dataset_rows, rows)
                self._database.insert_new(connection, dataset_sources, origins)

    def _get(self, connection: Connection, condition: Any, name: str = "") -> Dataset:
        row = connection.execute(_select_datasets().where(condition)).mappings().first()
        if row is None:
            raise NotFound(f"There is no data set {name}. `rlhf datasets list` shows them.")
        return _build(row)

    def _update(
        self,
        connection: Connection,
        ledger: Any,
        dataset_id: int,
        actor: str,
        action: str,
        values: dict[str, Any],
    ) -> Dataset:
        """Change the columns whose value is not None, and link the act."""
        changed = {key: value for key, value in values.items() if value is not None}
        connection.execute(
            update(datasets)
            .where(datasets.c.dataset_id == dataset_id)
            .values(updated_at=self._now(), **changed)
        )
        ledger.append(
            actor=actor, action=action, object_id=str(dataset_id), digest=content_hash(changed)
        )
        return self._get(connection, datasets.c.dataset_id == dataset_id)

    def _now(self) -> datetime:
        return self._database.clock.now().astimezone(UTC)


def _select_datasets() -> Any:
    n_versions = (
        select(func.count())
        .select_from(dataset_versions)
        .where(dataset_versions.c.dataset_id == datasets.c.dataset_id)
        .scalar_subquery()
    )
    return select(datasets, n_versions.label("n_versions"))


def _require_free(connection: Connection, name: str) -> None:
    if connection.execute(select(datasets.c.name).where(datasets.c.name == name)).first():
        raise DatasetConflict(f"There is a data set {name!r} already. Choose another name.")


def _require_unchanged(dataset: Dataset, read_at: datetime | None) -> None:
    """Rows that were read before another edit are not those that the data set holds now."""
    if read_at not in (None, dataset.updated_at):
        raise DatasetConflict(
            f"Data set {dataset.name!r} was changed while its rows were read, so nothing was "
            "stored. Look at the change, then repeat yours."
        )


def _edits(connection: Connection, old: Dataset, change: DatasetChange) -> dict[str, Any]:
    """The columns of a change, None for what stays."""
    if change.name not in (None, old.name):
        if old.n_versions:
            raise DatasetConflict(
                f"Data set {old.name!r} has frozen versions, which models and exports call by its "
                "name. Leave the name, or make a new data set."
            )
        _require_free(connection, str(change.name))
    query = None if change.query is None else json_of(change.query, "The query")
    return {"name": change.name, "description": change.description, "query": query}


def _require_freezable(dataset: Dataset, quality: DatasetQuality) -> None:
    check_move(dataset.name, dataset.status, "ready")
    if quality.problems:
        raise DatasetConflict(
            f"Data set {dataset.name!r} cannot become ready. {' '.join(quality.problems)}"
        )


def _build(row: RowMapping) -> Dataset:
    quality, export = row["quality"], row["last_export"]
    return Dataset.model_validate(
        dict(row)
        | {
            "query": DatasetQuery.from_json(row["query"]),
            "quality": None if quality is None else DatasetQuality.from_json(quality),
            "last_export": None if export is None else DatasetExport.from_json(export),
        }
    )


def _build_version(row: Any) -> DatasetVersion:
    return DatasetVersion.model_validate(
        dict(row)
        | {
            "query": DatasetQuery.from_json(row["query"]),
            "quality": DatasetQuality.from_json(row["quality"]),
        }
    )

"""Reads model versions and champions from MLflow's own tables, without MLflow.

Every command asks for the champions, and importing MLflow takes a second; MLflow also migrates the
database that it opens. `tests/unit/registry/test_registry.py` holds these queries equal to the
registry's.
"""

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import TextClause, inspect, text

from rlhf_pipeline.core.records import Record
from rlhf_pipeline.store.database_copy import engine_of, is_sqlite, sqlite_file
from rlhf_pipeline.store.engine import read_only_engine
from rlhf_pipeline.store.faults import describe_url, translate_errors

ARTIFACTS = ("mlflow", "artifacts")  # folder of a home that holds the files
CHAMPIONS = text("SELECT name, version FROM registered_model_aliases WHERE alias = 'champion'")
VERSIONS = text(
    "SELECT v.name, v.version, v.run_id, v.source, r.artifact_uri, "
    "max(CASE WHEN t.key = 'content_hash' THEN t.value END) AS content_hash, "
    "max(CASE WHEN t.key = 'files_removed_at' THEN t.value END) AS removed_at "
    "FROM model_versions v JOIN runs r ON r.run_uuid = v.run_id "
    "LEFT JOIN model_version_tags t ON t.name = v.name AND t.version = v.version "
    "GROUP BY v.name, v.version, v.run_id, v.source, r.artifact_uri "
    "ORDER BY v.name, v.version"
)


class RegisteredModel(Record):
    """One version; `folder` is where its files lie below a home, None for a remote store."""

    name: str
    version: int
    run_id: str
    folder: str | None
    content_hash: str
    is_removed: bool

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


def is_readable(url: str) -> bool:
    """Whether MLflow keeps its tables in a database that can be read, not behind a server."""
    return url.startswith(("sqlite:", "postgres"))


def read_champions(url: str) -> dict[str, int]:
    """The champion of each model; empty without a database of MLflow. Raises StoreError."""
    return {row["name"]: row["version"] for row in _read(url, CHAMPIONS)}


def list_models(url: str) -> list[RegisteredModel]:
    """Every version whose run exists, by name and number. Raises StoreError."""
    return [
        RegisteredModel(
            name=row["name"],
            version=row["version"],
            run_id=row["run_id"],
            folder=_find_folder(row["artifact_uri"], row["source"], row["run_id"]),
            content_hash=row["content_hash"],
            is_removed=row["removed_at"] is not None,
        )
        for row in _read(url, VERSIONS)
    ]


def _read(url: str, query: TextClause) -> list[dict[str, Any]]:
    if not is_readable(url) or (is_sqlite(url) and not sqlite_file(url).is_file()):
        return []
    engine = read_only_engine(sqlite_file(url)) if is_sqlite(url) else engine_of(url)
    where = f"of MLflow, {describe_url(engine.url)}"
    with translate_errors(where), engine.connect() as connection:
        if not inspect(connection).has_table("registered_model_aliases"):
            return []
        return [dict(row) for row in connection.execute(query).mappings()]


def _find_folder(artifact_uri: str, source: str, run_id: str) -> str | None:
    """A home that was copied or moved has them below the same names in its own folder."""
    uri = urlsplit(artifact_uri)
    if uri.scheme not in ("", "file"):
        return None
    parts = PurePosixPath(unquote(uri.path)).parts
    starts = [n for n in range(len(parts) - 1) if parts[n : n + 2] == ARTIFACTS]
    start = starts[-1] if starts else 0  # elsewhere on this machine
    return str(PurePosixPath(*parts[start:], source.removeprefix(f"runs:/{run_id}/")))

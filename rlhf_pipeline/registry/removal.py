"""Removes the files of model versions; keeps their records and metrics."""

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf_pipeline.records import ModelVersion, Record
from rlhf_pipeline.registry.versions import REMOVED_TAG, Kind, Registry, path_in_run


class StoredVersion(Record):
    """A model version with its aliases and the state of its files."""

    version: ModelVersion
    aliases: tuple[str, ...] = ()
    is_in_use: bool = Field(
        default=False, description="the MLflow run that registered it has not ended"
    )
    removed_at: datetime | None = None


def stored_versions(registry: Registry, kind: Kind) -> list[StoredVersion]:
    """Every version of a kind whose MLflow run exists, oldest first."""
    removed, aliases = registry.removal_times(kind), registry.aliases(kind)
    stored = []
    for version in registry.list_versions(kind):
        run = registry.tracking.get_or_none(
            partial(registry.tracking.client.get_run, version.mlflow_run_id)
        )
        if run is not None:
            of_files = {
                "aliases": aliases.get(version.version, ()),
                "removed_at": removed.get(version.version),
            }
            stored.append(
                StoredVersion(version=version, is_in_use=run.info.status == "RUNNING", **of_files)
            )
    return stored


def version_size(registry: Registry, version: ModelVersion) -> int:
    """Size of a version's files in bytes; 0 if they are missing."""
    local = registry.local_folder(version)
    if local is not None:
        return sum(path.stat().st_size for path in local.rglob("*") if path.is_file())
    return sum(
        file.file_size or 0 for file in _remote_files(registry, version, path_in_run(version))
    )


def remove_files(
    registry: Registry,
    version: ModelVersion,
    cache: Path,
    at: datetime,
    *,
    is_needed: Callable[[], bool] = lambda: False,
) -> bool:
    """Delete the files of a version, then tag it as removed. An interrupted call can be repeated.

    Returns False and deletes nothing if the version has an alias or `is_needed()`: it may have been
    promoted since it was listed.
    """
    local, client = registry.local_folder(version), registry.tracking.client

    def note() -> None:
        client.set_model_version_tag(
            version.name, str(version.version), REMOVED_TAG, at.isoformat()
        )

    def detach() -> bool:
        """Runs under the write lock; promotions check the files under the same lock."""
        if version.version in registry.aliases(version.kind) or is_needed():
            return False
        if local is not None:
            _set_aside(local)
        else:
            _remove_remote(registry, version)
            note()
        return True

    if not registry.tracking.write(detach):
        return False
    for folder in (cache / version.content_hash, *([local] if local is not None else [])):
        doomed = _set_aside(folder)
        if doomed.exists():
            shutil.rmtree(doomed)
    if local is not None:
        registry.tracking.write(note)
    return True


def _set_aside(folder: Path) -> Path:
    """Rename a folder before its deletion, so that a reader finds all files or none. Returns the
    new path.
    """
    doomed = folder.with_name(f"{folder.name}.removing")
    if folder.is_dir():
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
    return doomed


def _remove_remote(registry: Registry, version: ModelVersion) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    run = registry.tracking.client.get_run(version.mlflow_run_id)
    path = path_in_run(version)
    if any(_remote_files(registry, version, path)):
        get_artifact_repository(run.info.artifact_uri).delete_artifacts(path)


def _remote_files(registry: Registry, version: ModelVersion, path: str) -> Iterator[Any]:
    for found in registry.tracking.client.list_artifacts(version.mlflow_run_id, path):
        if found.is_dir:
            yield from _remote_files(registry, version, found.path)
        else:
            yield found

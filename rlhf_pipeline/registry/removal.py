"""Decides which model versions need no files, and removes them; keeps records and metrics."""

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf_pipeline.core.records import ModelVersion, Promotion, Record
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


def removable_versions(
    versions: Sequence[StoredVersion], *, needed: Collection[str], n_latest: int
) -> list[StoredVersion]:
    """Versions of one model whose files may be deleted: never promoted, without alias, not needed,
    and older than the `n_latest` such versions.

    Files that a kept version shares stay. `needed` are labels, `name@version`.
    """
    spare = [
        v for v in versions if v.version.label not in needed and not v.aliases and not v.is_in_use
    ]
    beyond = sorted(spare, key=lambda v: v.version.version)[:-n_latest]
    labels = {v.version.label for v in beyond}
    shared = {v.version.uri for v in versions if v.version.label not in labels}
    return [v for v in beyond if v.removed_at is None and v.version.uri not in shared]


def needed_versions(
    versions: Iterable[StoredVersion], promotions: Iterable[Promotion], unfinished: Iterable[Record]
) -> set[str]:
    """Labels of past and present champions, of the versions they were trained from, and of those
    that `unfinished` decisions name.
    """
    promoted = {
        f"{promotion.model_name}@{number}"
        for promotion in promotions
        for number in (promotion.version, promotion.previous_version)
        if number is not None
    }
    parents = {
        v.version.parent
        for v in versions
        if v.version.label in promoted and v.version.parent is not None
    }
    named = {
        label
        for decision in unfinished
        for label in re.findall(r"[\w.-]+@\d+", decision.model_dump_json())
    }
    return promoted | parents | named


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

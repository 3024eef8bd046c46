"""Registers, finds and promotes model versions, and fetches their files.

A version stores its whole record as tags, so the registry alone can restore it.
"""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlhf_pipeline import __version__
from rlhf_pipeline.core.config import code_commit
from rlhf_pipeline.core.errors import (
    ArtefactError,
    ModelError,
    ModelHashMismatch,
    ModelNotFound,
    StoreError,
)
from rlhf_pipeline.core.files import translate_write_errors
from rlhf_pipeline.core.records import (
    ModelVersion,
    Promotion,
    content_hash,
    folder_hash,
)
from rlhf_pipeline.registry.runs import (
    UNKNOWN_CEILING,
    Run,
    TrackedRun,
    latest_runs,
    lineage_tags,
    missing_ceilings,
    open_parent_run,
    open_run,
    require_finite,
)
from rlhf_pipeline.registry.tracking import COMMIT, Tracking

Kind = Literal["policy", "reward_model"]
KINDS: tuple[Kind, ...] = ("policy", "reward_model")
CHAMPION = "champion"
CANDIDATE = "candidate"
PREVIOUS = "previous"
REMOVED_TAG = "files_removed_at"  # tag of versions whose files retention deleted
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # EFBIG is a limit of file sizes
LINEAGE = ("content_hash", "parent", "data_hash")  # versions that agree in these are the same


class ListedModel(ModelVersion):
    """A version with its aliases and the state of its files."""

    aliases: tuple[str, ...] = Field(
        default=(), description="champion, previous, candidate, or none"
    )
    removed_at: datetime | None = Field(
        default=None, description="when retention deleted the files"
    )
    code_commit: str | None = Field(default=None, description="of the code that made it")


class Registry:
    """Runs and model versions of one project, named `<project>.policy` and
    `<project>.reward_model`.

    `tracking_uri` is a database URL or the address of an MLflow server, `artifacts` a folder or URL
    for files, `ui` the address people open in a browser. Safe for several threads and processes.
    """

    def __init__(
        self,
        tracking_uri: str,
        artifacts: str | Path,
        project: str,
        ui: str = "",
        *,
        dagster_ui: str = "",
    ) -> None:
        self.project = project
        self.dagster_ui = dagster_ui.rstrip("/")
        self.tracking = Tracking(tracking_uri, artifacts, project, ui)

    def model_name(self, kind: Kind) -> str:
        return f"{self.project}.{kind}"

    @contextmanager
    def run(
        self, name: str, tags: Mapping[str, object | None] | None = None, run_key: str | None = None
    ) -> Iterator[Run]:
        """An MLflow run, closed as FINISHED, FAILED or KILLED. The same `run_key` re-opens the same
        run, so that a retry adds to it.
        """
        run = open_run(self.tracking, name, tags or {}, run_key)
        try:
            yield run
        except BaseException as cause:
            try:
                run.close("FAILED" if isinstance(cause, Exception) else "KILLED")
            except StoreError as refused:  # report the original error, not this one
                cause.add_note(f"The MLflow run {run.run_id} stays open: {refused}")
            raise
        run.close("FINISHED")

    def parent_run(self, name: str, key: str) -> str:
        """The id of the MLflow run above those of one day or one retraining."""
        return open_parent_run(self.tracking, name, key)

    def set_version_tags(self, kind: Kind, version: int, tags: Mapping[str, object]) -> None:
        """Add tags to a version, such as what the gate decided."""
        name = self.model_name(kind)
        for key, value in lineage_tags(tags).items():
            self.tracking.write(
                partial(self.tracking.client.set_model_version_tag, name, str(version), key, value)
            )

    def latest_runs(
        self, limit: int, *, stage: str | None = None, pipeline_run: str | None = None
    ) -> list[TrackedRun]:
        """The `limit` most recently started runs, newest first: all, or those of one stage, of one
        run of the pipeline, or of both.
        """
        return latest_runs(self.tracking, limit, stage=stage, pipeline_run=pipeline_run)

    def register(
        self,
        kind: Kind,
        folder: Path,
        *,
        run: Run,
        metrics: Mapping[str, float] | None = None,
        params: Mapping[str, Any] | None = None,
        parent: str | None = None,
        data_hash: str | None = None,
        data_seq: int | None = None,
    ) -> ModelVersion:
        """Copy `folder` into `run` and register it as a version, with metrics and lineage as tags.

        If the metrics contain an accuracy without its noise ceiling, a tag marks the ceiling as
        unknown. Files are copied before the version is created, so an interrupted call leaves no
        version without files. A repeated call returns the version with the same files, parent and
        data, and copies missing files again. Raises ModelNotFound for a missing or empty folder,
        InvalidScores for metrics that are not finite.
        """
        if not folder.is_dir() or not any(p.is_file() for p in folder.rglob("*")):
            raise ModelNotFound(
                f"{folder} contains no files to register as a {kind}. Train it again."
            )
        tags = {
            "kind": kind,
            "content_hash": folder_hash(folder),
            **lineage_tags(
                {
                    "parent": parent,
                    "data_hash": data_hash,
                    "data_seq": data_seq,
                    COMMIT: code_commit(),
                }
            ),
            "metrics": json.dumps(require_finite(metrics or {}, self.model_name(kind))),
            "params": json.dumps(params or {}, sort_keys=True, default=str),
            "params_hash": content_hash(params or {}),
            "rlhf_pipeline.version": __version__,
            **dict.fromkeys(missing_ceilings(metrics or {}), UNKNOWN_CEILING),
        }
        path = f"model/{tags['content_hash'][:12]}"
        same = self._find_same_version(kind, tags)
        if same is None or not self._has_files(same):
            self.tracking.client.log_artifacts(
                same.mlflow_run_id if same else run.run_id, str(folder), path
            )
            if same is not None and self._find_removal(same) is not None:
                self.tracking.write(
                    lambda: self.tracking.client.delete_model_version_tag(
                        same.name, str(same.version), REMOVED_TAG
                    )
                )
        version = same or self.tracking.write(
            lambda: self._create_version(kind, run.run_id, path, tags)
        )
        run.set_tags({f"registered.{kind}": version.label})
        return version

    def get(self, kind: Kind, alias_or_version: str | int) -> ModelVersion | None:
        """The version with this alias or number, or None. Raises ModelError if this pipeline did
        not register it.
        """
        key = str(alias_or_version)
        number = key if key.isdecimal() else self._aliases(kind).get(key)
        if number is None:
            return None
        entry = self.tracking.get_or_none(
            lambda: self.tracking.client.get_model_version(self.model_name(kind), str(number))
        )
        return None if entry is None else _to_model_version(entry)

    def list_versions(self, kind: Kind) -> list[ModelVersion]:
        """All versions that this pipeline registered, oldest first."""
        return sorted(
            (_to_model_version(e) for e in self._search(kind) if "content_hash" in e.tags),
            key=lambda m: m.version,
        )

    def list_models(self, *kinds: Kind) -> list[ListedModel]:
        """The versions of these kinds, by default of all, oldest first within a kind."""
        return [
            ListedModel(
                **_to_model_version(entry).model_dump(),
                aliases=aliases.get(int(entry.version), ()),
                removed_at=entry.tags.get(REMOVED_TAG),
                code_commit=entry.tags.get(COMMIT),
            )
            for kind in kinds or KINDS
            for aliases in [self.aliases(kind)]
            for entry in sorted(self._search(kind), key=lambda e: int(e.version))
            if "content_hash" in entry.tags
        ]

    def aliases(self, kind: Kind) -> dict[int, tuple[str, ...]]:
        """Version number -> its aliases, for versions that have any."""
        by_version: dict[int, tuple[str, ...]] = {}
        for alias, number in sorted(self._aliases(kind).items()):
            by_version[int(number)] = (*by_version.get(int(number), ()), alias)
        return by_version

    def set_alias(self, kind: Kind, alias: str, version: int) -> None:
        """Point `alias` at `version`. Raises ModelNotFound or ModelHashMismatch if the version or
        its files are missing or damaged.
        """
        model = self.require(kind, version)

        def point() -> None:
            # under the lock, because retention may have removed the files since they were verified
            self.refuse_without_files(model)
            self.tracking.client.set_registered_model_alias(model.name, alias, str(version))

        self.tracking.write(point)

    def follow(self, kind: Kind, promotion: Promotion) -> None:
        """Let the aliases name the champion and the previous one of the store's last promotion.

        The store is written first: what an interrupted promotion left behind is made good here. A
        version that was deleted from the registry gets no alias.
        """
        aliases, name = self._aliases(kind), self.model_name(kind)
        targets = {CHAMPION: promotion.version, PREVIOUS: promotion.previous_version}
        for alias, version in targets.items():
            if version is not None and aliases.get(alias) != str(version):
                point = partial(
                    self.tracking.client.set_registered_model_alias, name, alias, str(version)
                )
                self.tracking.write(partial(self.tracking.get_or_none, point))

    def fetch_folder(self, model: ModelVersion, cache: Path) -> Path:
        """A local folder with the version's files, verified against its content hash. Do not write
        to it.

        Local files are used in place, remote ones are downloaded once into `cache`. Raises
        ModelNotFound if they are missing, ModelHashMismatch if they differ from the registered
        ones, ArtefactError if the disk is full.
        """
        folder = self.local_folder(model)
        if folder is None:
            folder = cache / model.content_hash
            if not folder.is_dir() or folder_hash(folder) != model.content_hash:
                self._download(model, folder)
        return self._verify(folder, model)

    def _search(self, kind: Kind, also: str = "") -> Iterator[Any]:
        token = None
        while True:
            page = self.tracking.client.search_model_versions(
                f"name = '{self.model_name(kind)}'{also}", max_results=1000, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _find_same_version(self, kind: Kind, tags: Mapping[str, str]) -> ModelVersion | None:
        entries = self._search(kind, f" and tags.`content_hash` = '{tags['content_hash']}'")
        same = [
            _to_model_version(e)
            for e in entries
            if all(e.tags.get(key) == tags.get(key) for key in LINEAGE)
        ]
        return min(same, key=lambda m: m.version, default=None)

    def _create_version(
        self, kind: Kind, run_id: str, path: str, tags: dict[str, str]
    ) -> ModelVersion:
        # Check again under the lock: another process may have registered the same files.
        same = self._find_same_version(kind, tags)
        if same is not None:
            return same
        client, name = self.tracking.client, self.model_name(kind)
        if self.tracking.get_or_none(lambda: client.get_registered_model(name)) is None:
            client.create_registered_model(name)
        source = f"runs:/{run_id}/{path}"
        return _to_model_version(client.create_model_version(name, source, run_id, tags=tags))

    def _aliases(self, kind: Kind) -> dict[str, str]:
        entry = self.tracking.get_or_none(
            lambda: self.tracking.client.get_registered_model(self.model_name(kind))
        )
        return {} if entry is None else dict(entry.aliases)

    def refuse_without_files(self, model: ModelVersion) -> None:
        """Raise ModelNotFound where retention removed the version's files; a quick look, for
        callers that hold the lock.
        """
        removed_at = self._find_removal(model)
        if removed_at is not None:
            raise ModelNotFound(
                f"Retention removed the files of {model.label} on {removed_at[:10]}; its record "
                "and metrics are kept. Choose another version (`rlhf models list`), or train it "
                "again."
            )

    def _find_removal(self, model: ModelVersion) -> str | None:
        """When retention removed the version's files, in ISO 8601."""
        entry = self.tracking.client.get_model_version(model.name, str(model.version))
        removed_at: str | None = entry.tags.get(REMOVED_TAG)
        return removed_at

    def require(self, kind: Kind, version: int, *, is_hashed: bool = True) -> ModelVersion:
        """A version whose files are there and whole; without `is_hashed` only there, as hashing
        large files takes minutes. Raises ModelNotFound or ModelHashMismatch.
        """
        model = self.get(kind, version)
        if model is None:
            models = ", ".join(str(m.version) for m in self.list_versions(kind))
            raise ModelNotFound(
                f"{self.model_name(kind)} has no version {version}. Registered: {models or 'none'}."
            )
        local = self.local_folder(model)
        if local is None or (not is_hashed and local.is_dir()):
            self.refuse_without_files(model)
        else:
            self._verify(local, model)
        return model

    def _verify(self, folder: Path, model: ModelVersion) -> Path:
        if not folder.is_dir():
            self.refuse_without_files(model)
            raise ModelNotFound(
                f"The files of {model.label} are missing from {folder}. Restore them, roll back, "
                "or train and register again."
            )
        actual_hash = folder_hash(folder)
        if actual_hash != model.content_hash:
            raise ModelHashMismatch(
                f"{folder} has hash {actual_hash[:12]}, but {model.label} was registered with "
                f"{model.content_hash[:12]}. Restore the files or roll back to another version."
            )
        return folder

    def _has_files(self, model: ModelVersion) -> bool:
        local = self.local_folder(model)
        if local is None:
            return bool(
                self.tracking.client.list_artifacts(model.mlflow_run_id, path_in_run(model))
            )
        return local.is_dir() and folder_hash(local) == model.content_hash

    def storage(self, model: ModelVersion) -> Any:
        """MLflow's storage of the files of the version's run. Raises ModelNotFound without the
        run.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        run = self.tracking.get_or_none(lambda: self.tracking.client.get_run(model.mlflow_run_id))
        if run is None:
            raise ModelNotFound(
                f"The MLflow run {model.mlflow_run_id} of {model.label} does not exist. Restore "
                "it, or roll back to another version."
            )
        return get_artifact_repository(
            run.info.artifact_uri, tracking_uri=self.tracking.tracking_uri
        )

    def local_folder(self, model: ModelVersion) -> Path | None:
        """Folder of the version's files, or None if they are remote. Raises ModelNotFound without
        the MLflow run.
        """
        from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

        storage = self.storage(model)
        if not isinstance(storage, LocalArtifactRepository):
            return None
        return Path(storage.artifact_dir) / path_in_run(model)

    def _download(self, model: ModelVersion, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        with translate_write_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            try:
                # MLflow's client hides the cause of a failure, the storage behind it does not
                got = Path(self.storage(model).download_artifacts(path_in_run(model), folder))
                if not got.is_dir():
                    raise FileNotFoundError(f"no folder {path_in_run(model)}")
            except Exception as cause:  # each kind of storage has its own
                self.refuse_without_files(model)
                if refusal := _find_full_disk(cause):
                    raise ArtefactError(
                        f"Cannot download the files of {model.label} to {target.parent}: "
                        f"{refusal}. Free some space and run again."
                    ) from cause
                raise ModelNotFound(
                    f"The files of {model.label} cannot be read from {model.uri}: {cause}"
                ) from cause
            if not target.is_dir():  # another process may have downloaded it first
                got.rename(target)


def _find_full_disk(error: Exception) -> str | None:
    """What a full disk said, where that is the cause: MLflow repeats it in a text."""
    number = re.search(r"\[Errno (\d+)\]", str(error))
    return os.strerror(int(number[1])) if number and int(number[1]) in DISK_FULL else None


def _to_model_version(entry: Any) -> ModelVersion:
    tags = entry.tags
    if "content_hash" not in tags:
        raise ModelError(
            f"{entry.name}@{entry.version} was not registered by this pipeline. Point the alias "
            "at a version of this pipeline."
        )
    return ModelVersion(
        name=entry.name,
        version=int(entry.version),
        kind=tags["kind"],
        uri=entry.source,
        content_hash=tags["content_hash"],
        mlflow_run_id=entry.run_id,
        parent=tags.get("parent"),
        data_hash=tags.get("data_hash"),
        data_seq=int(tags["data_seq"]) if "data_seq" in tags else None,
        metrics=json.loads(tags["metrics"]),
        params=json.loads(tags["params"]),
        created_at=datetime.fromtimestamp(entry.creation_timestamp / 1000, UTC),
    )


def path_in_run(model: ModelVersion) -> str:
    return model.uri.removeprefix(f"runs:/{model.mlflow_run_id}/")

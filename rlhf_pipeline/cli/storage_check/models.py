"""Checks MLflow on a copy of its database: promoted versions, their runs, and the files of every
registered version.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_pipeline.cli.storage_check.finding import Finding, summarise
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ModelNotFound, PipelineError, StoreError
from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.records import ModelVersion
from rlhf_pipeline.registry import CANDIDATE, CHAMPION, KINDS, PREVIOUS, Kind, Registry
from rlhf_pipeline.store import Store, database_copy, database_dump

RESTORE = "Restore the last backup with `rlhf restore FOLDER --replace`"


def check_models(settings: Settings, store: Store, progress: Progress) -> Iterator[Finding]:
    artifacts = settings.home / "mlflow" / "artifacts"
    try:
        with _open_registry_copy(settings) as registry:
            if registry is None:
                yield _explain_missing_database(settings, artifacts, store)
                return
            yield Finding("MLflow", f"{len(registry.list_models())} model versions")
            for kind in KINDS:
                yield _check_champion(registry, kind, store)
                yield _check_versions(registry, kind, settings, store, progress)
    except PipelineError as error:
        yield Finding("MLflow", str(error), is_sound=False)
    except Exception as cause:  # noqa: BLE001 a damaged database raises whatever MLflow trips over
        why = " ".join(str(cause).split()) or type(cause).__name__
        yield Finding("MLflow", f"Its database cannot be read: {why}. {RESTORE}.", is_sound=False)


@contextmanager
def _open_registry_copy(settings: Settings) -> Iterator[Registry | None]:
    """Open the registry on a copy, because MLflow migrates and completes the database that it
    opens; None if the file does not exist.
    """
    artifacts = settings.home / "mlflow" / "artifacts"
    if settings.tracking_uri.startswith("http") or not database_dump.is_sqlite(
        settings.tracking_uri
    ):
        yield Registry(settings.tracking_uri, artifacts, settings.project)
        return
    file = database_dump.sqlite_file(settings.tracking_uri)
    if not file.is_file():
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "mlflow.db"
        if not database_dump.copy_verified_sqlite(file, copy):
            raise StoreError(f"MLflow's database {file} holds no tables. {RESTORE}.")
        registry = Registry(f"sqlite:///{copy}", artifacts, settings.project)
        # paths of a copied or moved home follow with its next command
        if file.parent.resolve() == artifacts.parent.resolve():
            old, new = registry.find_moved_artifacts()
            if old != new:
                database_copy.relocate(f"sqlite:///{copy}", old, new)
        yield registry


def _explain_missing_database(settings: Settings, artifacts: Path, store: Store) -> Finding:
    """No fault for a home that never had models; one that promoted a model has lost them."""
    promoted = [kind for kind in KINDS if store.promotions.history(f"{settings.project}.{kind}")]
    if not promoted and not artifacts.exists():
        return Finding("MLflow", "no model was registered yet")
    file = database_dump.sqlite_file(settings.tracking_uri)
    lost = (
        f"MLflow's database {file} is missing, although models were registered. {RESTORE}; the "
        "next run would begin with a new policy."
    )
    return Finding("MLflow", lost, is_sound=False)


def _check_champion(registry: Registry, kind: Kind, store: Store) -> Finding:
    """Compare the registry's champion with the last promotion in the store."""
    name, champion = registry.model_name(kind), registry.get(kind, CHAMPION)
    promotion = store.promotions.champion(name)
    if promotion is None and champion is None:
        return Finding(f"champion {kind}", "none yet")
    recorded = None if promotion is None else f"{name}@{promotion.version}"
    registered = None if champion is None else champion.label
    if recorded != registered:
        return Finding(
            f"champion {kind}",
            f"MLflow says {registered or 'none'}, the store recorded the promotion of "
            f"{recorded or 'none'}. Restore both from one backup, or name the champion with "
            "`rlhf models promote`.",
            is_sound=False,
        )
    return Finding(f"champion {kind}", f"{registered}, as promoted")


def _check_versions(
    registry: Registry, kind: Kind, settings: Settings, store: Store, progress: Progress
) -> Finding:
    """Check runs, files and votes of all versions. Retention may have removed the files of a
    version that nothing refers to.
    """
    versions = registry.list_versions(kind)
    referenced = _find_referenced(registry, kind, store)
    known = {version.version for version in versions}
    faults = [
        f"{registry.model_name(kind)}@{number} was promoted, but MLflow does not know it. "
        f"{RESTORE}."
        for number in sorted(referenced - known)
    ]
    faults += [
        f"The MLflow run of {version.label} is deleted, and `mlflow gc` would remove its files. "
        f"Restore it: `mlflow runs restore --run-id {version.mlflow_run_id}`."
        for version in versions
        if version.version in referenced and registry.has_deleted_run(version)
    ]
    n_removed, max_seq = 0, store.votes.max_seq()
    with tempfile.TemporaryDirectory() as downloads:
        for done, version in enumerate(versions):
            progress(done, len(versions), version.label)
            try:
                faults += _find_misplaced_files(registry, version, settings.home, Path(downloads))
            except ModelNotFound as gone:
                n_removed += version.version not in referenced
                faults += [str(gone)] if version.version in referenced else []
            except PipelineError as error:
                faults.append(str(error))
            if version.data_seq is not None and version.data_seq > max_seq:
                faults.append(
                    f"{version.label} rests on votes up to {version.data_seq}, but the store ends "
                    f"at {max_seq}. {RESTORE}."
                )
    removed = f", {n_removed} without files that nothing refers to" if n_removed else ""
    return summarise(
        f"versions of {kind}",
        f"{len(versions)}, with runs and files as registered{removed}",
        faults,
    )


def _find_referenced(registry: Registry, kind: Kind, store: Store) -> set[int]:
    aliases = [registry.get(kind, alias) for alias in (CHAMPION, PREVIOUS, CANDIDATE)]
    promoted = {
        promotion.version for promotion in store.promotions.history(registry.model_name(kind))
    }
    return promoted | {version.version for version in aliases if version is not None}


def _find_misplaced_files(
    registry: Registry, version: ModelVersion, home: Path, downloads: Path
) -> list[str]:
    """Raises ModelError where the files are not those that were registered."""
    folder = registry.fetch_folder(version, downloads)
    if folder.is_relative_to(downloads) or folder.resolve().is_relative_to(home.resolve()):
        return []
    return [
        f"The files of {version.label} lie in {folder}, outside the home {home}. Restore a backup, "
        "which puts them into the home."
    ]

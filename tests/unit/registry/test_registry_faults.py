"""A damaged, foreign or read-only MLflow database: named errors with place and cure."""

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from rlhf_pipeline.core.errors import ArtefactError, StoreError
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.registry.faults import DatabaseFaults, FaultTranslatingClient


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database in one file."""
    home = tmp_path_factory.mktemp("mlflow")
    Registry(f"sqlite:///{home / 'mlflow.db'}", home / "artifacts", "demo").tracking.open()
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return home / "mlflow.db"


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(migrated, tmp_path / "mlflow.db"))


def no_database(path: Path) -> None:
    path.write_text("not a database " * 4000)


def overwritten_pages(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


def missing_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE model_versions")


def newer_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
        connection.commit()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    no_database: "is damaged. Restore a backup",
    overwritten_pages: "is damaged. Restore a backup",
    missing_table: "lacks tables. Restore a backup",
    newer_version: "another version of MLflow. Install that version",
    a_folder: "cannot be opened. Check its path",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_database_is_named_with_its_cure(
    database: Path, damage: Callable[[Path], None]
) -> None:
    damage(database)
    registry = Registry(f"sqlite:///{database}", database.parent / "artifacts", "demo")
    for act in (registry.list_models, lambda: registry.set_alias("policy", "champion", 1)):
        with pytest.raises(StoreError, match=f"MLflow's database {database} .*") as named:
            act()
        assert DAMAGES[damage] in str(named.value)
        assert "SELECT" not in str(named.value)


def test_unreachable_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StoreError, match=r"MLflow's server http://127\.0\.0\.1:9 does not answer"):
        Registry("http://127.0.0.1:9", tmp_path / "artifacts", "demo").list_models()


def test_mlflow_outage_at_registration_keeps_the_champion(database: Path) -> None:
    registry = Registry(f"sqlite:///{database}", database.parent / "artifacts", "demo")
    folders = [database.parent / name for name in ("first", "candidate")]
    for folder in folders:
        folder.mkdir()
        (folder / "weights").write_text(folder.name)
    with registry.run("bootstrap", {}, run_key="r1") as run:
        first = registry.register("policy", folders[0], run=run)
    registry.set_alias("policy", "champion", first.version)

    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

    with registry.run("candidate_model", {}, run_key="r2") as run:
        rename("model_versions", "gone")
        with pytest.raises(StoreError, match=r"lacks tables\. Restore a backup"):
            registry.register("policy", folders[1], run=run)
        rename("gone", "model_versions")
        assert registry.get("policy", "champion") == first
        assert registry.register("policy", folders[1], run=run).version == 2
    assert registry.get("policy", "champion") == first


class BrokenStorage:
    """A client whose storage of files fails."""

    def __init__(self, cause: Exception) -> None:
        self._cause = cause

    def log_artifacts(self, *_: object) -> None:
        raise self._cause


@pytest.mark.parametrize(
    ("cause", "kind", "message"),
    [
        (
            shutil.Error([("a", "b", "[Errno 28] No space left on device")]),
            ArtefactError,
            "could not copy model into the files of its run r1: No space left on device. Check",
        ),
        (KeyError("no bucket"), ArtefactError, "KeyError('no bucket'). Check that the storage"),
        (MlflowException("API request failed"), StoreError, "does not answer: API request failed"),
    ],
)
def test_files_that_cannot_be_stored_are_named_with_the_cure(
    cause: Exception, kind: type[Exception], message: str
) -> None:
    client = FaultTranslatingClient(BrokenStorage(cause), DatabaseFaults(None, "http://h"))
    with pytest.raises(kind, match=re.escape(message)):
        client.log_artifacts("r1", "model", "path")


def test_a_lock_of_another_process_is_named_with_its_cure(tmp_path: Path) -> None:
    faults = DatabaseFaults(tmp_path / "mlflow.db", "")
    message = r"mlflow\.db is locked by another process\. End it"
    with pytest.raises(StoreError, match=message), faults.translate():
        raise sqlite3.OperationalError("database is locked")

"""A backup holds all that it says, or is refused; so is one that would be restored outside the
home.
"""

import hashlib
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline import backups
from rlhf_pipeline.cli import storage
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import HomeFacts, Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.frames import VOTES

DAY = "2026-01-01"


def test_file_replaced_during_a_backup_is_readable_after_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, folder = Workspace(Settings(home=tmp_path / "home")), tmp_path / "backup"
    prepare(workspace)
    workspace.files.write_frame("votes", VOTES.empty_frame(), DAY)
    copied = backups._copy

    def write_then_copy(source: Path, target: Path) -> None:
        if source.name == f"{DAY}.parquet" and source.is_relative_to(tmp_path / "home"):
            workspace.files.write_frame("votes", vote(), DAY)
        copied(source, target)

    monkeypatch.setattr(backups, "_copy", write_then_copy)
    facts = HomeFacts.load(tmp_path / "home")
    assert facts is not None
    manifest = backups.back_up(
        tmp_path / "home", facts, {"store": workspace.settings.store_url}, folder
    )
    assert manifest.replaced == (f"frames/votes/{DAY}.parquet",)
    monkeypatch.undo()
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "restored"))
    storage.restore(folder)
    restored = Workspace.from_environment()
    assert len(restored.files.read_frame("votes", DAY)) == 1
    assert [known.path for known in restored.store.file_hashes.all()] == [
        f"frames/votes/{DAY}.parquet"
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one frame and a file of a model."""
    workspace = Workspace(Settings(home=tmp_path / "home"))
    prepare(workspace)
    workspace.files.write_frame("votes", VOTES.empty_frame(), DAY)
    workspace.store.close()
    (tmp_path / "home" / "mlflow" / "artifacts" / "demo").mkdir(parents=True)
    (tmp_path / "home" / "mlflow" / "artifacts" / "demo" / "model.safetensors").write_bytes(
        b"weights"
    )
    return workspace.settings.home


def back_up(home: Path, folder: Path) -> backups.Manifest:
    facts = HomeFacts.load(home)
    assert facts is not None
    return backups.back_up(home, facts, {"store": f"sqlite:///{home / 'store.db'}"}, folder)


def test_linked_kept_folder_is_in_the_backup(home: Path, tmp_path: Path) -> None:
    os.replace(home / "mlflow" / "artifacts", tmp_path / "disk")
    (home / "mlflow" / "artifacts").symlink_to(tmp_path / "disk")
    assert "mlflow/artifacts/demo/model.safetensors" in back_up(home, tmp_path / "backup").files


def test_folder_linked_deeper_is_refused_and_not_left_out(home: Path, tmp_path: Path) -> None:
    os.replace(home / "mlflow" / "artifacts" / "demo", tmp_path / "disk")
    (home / "mlflow" / "artifacts" / "demo").symlink_to(tmp_path / "disk")
    with pytest.raises(
        ConfigurationError,
        match="artifacts/demo links to another folder, which a backup does not follow",
    ):
        back_up(home, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("name", ["frames/backup", "models/backup", "mlflow/artifacts/backup"])
def test_backup_does_not_go_into_a_folder_that_it_copies(home: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is inside .* backed-up folders"):
        back_up(home, home / name)


@pytest.mark.parametrize("changed", ["../outside.txt", "/outside.txt", "databases/other.db"])
def test_manifest_with_a_foreign_path_is_refused(home: Path, tmp_path: Path, changed: str) -> None:
    manifest = back_up(home, tmp_path / "backup")
    files = manifest.files | {changed: (0, hashlib.sha256(b"").hexdigest())}
    (tmp_path / "backup" / backups.MANIFEST).write_text(
        manifest.model_copy(update={"files": files}).model_dump_json()
    )
    with pytest.raises(ConfigurationError, match=r"manifest\.json cannot be read"):
        backups.restore(tmp_path / "backup", tmp_path / "restored", {}, {})
    assert not (tmp_path / "restored").exists()


def test_restore_into_a_file_is_refused(home: Path, tmp_path: Path) -> None:
    back_up(home, tmp_path / "backup")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match=r"file is a file\. Name a folder"):
        backups.restore(tmp_path / "backup", tmp_path / "file", {}, {})


def test_interrupted_restore_is_refused_until_it_is_repeated(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(home / "mlflow")
    back_up(home, tmp_path / "backup")
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "restored"))
    copied = backups._copy

    def copy_until_the_frames(source: Path, target: Path) -> None:
        if target.suffix == ".parquet":
            raise KeyboardInterrupt
        copied(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(backups, "_copy", copy_until_the_frames)
        with pytest.raises(KeyboardInterrupt):
            storage.restore(tmp_path / "backup")
    assert (tmp_path / "restored" / "store.db").exists()
    with pytest.raises(
        ConfigurationError, match=r"A restore into .* was interrupted.*restore FOLDER --replace"
    ):
        Workspace.from_environment(initialising=True)
    storage.restore(tmp_path / "backup", replace=True)
    assert Workspace.from_environment().files.days("votes") == [DAY]


def vote() -> pd.DataFrame:
    values = {
        "text": "x",
        "json": "{}",
        "int": 1,
        "float": 0.5,
        "bool": True,
        "time": pd.Timestamp("2026-01-01", tz="UTC"),
    }
    row = {
        name: column.values[0] if column.values else values[column.kind]
        for name, column in VOTES.columns.items()
    }
    return pd.DataFrame([row | {"day": DAY}])

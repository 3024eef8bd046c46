"""A file that is replaced while a backup is taken is not called damaged after the restore."""

from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline import backups
from rlhf_pipeline.cli import storage
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import HomeFacts, Settings
from rlhf_pipeline.frames import VOTES

DAY = "2026-01-01"


def test_file_replaced_during_a_backup_is_readable_after_the_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, folder = Workspace(Settings(home=tmp_path / "home")), tmp_path / "backup"
    prepare(workspace)
    workspace.files.write_frame("votes", VOTES.empty(), DAY)
    copied = backups._copied

    def write_then_copy(source: Path, target: Path) -> None:
        if source.name == f"{DAY}.parquet" and source.is_relative_to(tmp_path / "home"):
            workspace.files.write_frame("votes", vote(), DAY)
        copied(source, target)

    monkeypatch.setattr(backups, "_copied", write_then_copy)
    facts = HomeFacts.of(tmp_path / "home")
    assert facts is not None
    manifest = backups.back_up(tmp_path / "home", facts, {"store": workspace.settings.store_url}, folder)
    assert manifest.replaced == (f"frames/votes/{DAY}.parquet",)
    monkeypatch.undo()
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "restored"))
    storage.restore(folder)
    assert len(Workspace.here().files.read_frame("votes", DAY)) == 1


def vote() -> pd.DataFrame:
    values = {"text": "x", "json": "{}", "int": 1, "float": 0.5, "bool": True, "time": pd.Timestamp("2026-01-01", tz="UTC")}
    row = {name: column.values[0] if column.values else values[column.kind] for name, column in VOTES.columns.items()}
    return pd.DataFrame([row | {"day": DAY}])

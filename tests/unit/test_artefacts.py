"""Frames and records survive a round trip, a full disk, a kill and a deleted file."""

import errno
import os
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.errors import ArtefactError, FrameError, MissingPartition
from rlhf_pipeline.frames import RETRAINING_SET
from rlhf_pipeline.records import ModelVersion

ROW = {
    "comparison_id": "c1", "prompt_id": "p1", "prompt": "Why?", "chosen": "Because.", "rejected": "No.", "margin": 0.5, "weight": 1.0,
    "information": 0.3, "reason": "uncertain", "split": "train", "day": "2026-01-01",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Artefacts:
    return Artefacts(tmp_path)


def test_a_frame_comes_back_equal_and_typed(files: Artefacts) -> None:
    frame = pd.DataFrame([ROW])
    files.write_frame("retraining_set", frame, "2026-01-01")
    back = files.read_frame("retraining_set", "2026-01-01")
    assert back.to_dict("records") == [ROW]
    assert {c: str(t) for c, t in back.dtypes.items()} == {c: column.dtype for c, column in RETRAINING_SET.columns.items()}


def test_the_memory_file_system_works_like_a_folder() -> None:
    files = Artefacts("memory://rlhf-test")
    files.write_frame("retraining_set", pd.DataFrame([ROW]), "2026-01-01")
    assert files.days("retraining_set") == ["2026-01-01"]
    assert len(files.read_days("retraining_set", ["2026-01-01", "2026-01-02"])) == 1


def test_days_never_made_are_empty_and_lost_days_are_named(files: Artefacts) -> None:
    files.write_frame("retraining_set", pd.DataFrame([ROW]), "2026-01-01")
    days = ["2026-01-01", "2026-01-02"]
    assert len(files.read_days("retraining_set", days)) == 1
    with pytest.raises(MissingPartition, match="2026-01-02"):
        files.read_days("retraining_set", days, expected=frozenset(days))
    with pytest.raises(MissingPartition, match="2026-01-02"):
        files.read_frame("retraining_set", "2026-01-02")


def test_no_days_at_all_give_the_empty_typed_frame(files: Artefacts) -> None:
    assert list(files.read_days("retraining_set", ["2026-01-01"]).columns) == list(RETRAINING_SET.columns)


def test_a_frame_that_breaks_its_schema_replaces_nothing(files: Artefacts) -> None:
    files.write_frame("retraining_set", pd.DataFrame([ROW]), "2026-01-01")
    with pytest.raises(FrameError, match="margin"):
        files.write_frame("retraining_set", pd.DataFrame([ROW | {"margin": float("nan")}]), "2026-01-01")
    assert files.read_frame("retraining_set", "2026-01-01")["margin"].tolist() == [0.5]


def test_a_full_disk_leaves_the_last_good_file(files: Artefacts, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_frame("retraining_set", pd.DataFrame([ROW]), "2026-01-01")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtefactError, match=r"No space left.*Free some space"):
        files.write_frame("retraining_set", pd.DataFrame([ROW | {"margin": 0.9}]), "2026-01-01")
    monkeypatch.undo()
    assert files.read_frame("retraining_set", "2026-01-01")["margin"].tolist() == [0.5]
    assert list((files.base / "retraining_set").iterdir()) == [files.path("retraining_set", "2026-01-01")]


def test_a_broken_parquet_file_is_named(files: Artefacts) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        files.write_frame("retraining_set", pd.DataFrame([ROW | {"day": day}]), day)
    broken = Path(files.path("retraining_set", "2026-01-02").path)
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ArtefactError, match=r"2026-01-02\.parquet"):
        files.read_days("retraining_set", ["2026-01-01", "2026-01-02"])


def test_a_record_comes_back_and_a_broken_one_is_named(files: Artefacts) -> None:
    version = ModelVersion(name="demo.policy", version=1, kind="policy", uri="runs:/1/model", content_hash="ab")
    files.write_record("candidate_model", version)
    assert files.read_record("candidate_model", ModelVersion) == version
    Path(files.path("candidate_model").path).write_text("{")
    with pytest.raises(ArtefactError, match="Materialise candidate_model again"):
        files.read_record("candidate_model", ModelVersion)

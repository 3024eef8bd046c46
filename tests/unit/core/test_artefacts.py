"""Frames and records survive a round trip, a full disk, a kill and a deleted file: in a folder, in
memory and in an object store.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import ArtefactError, FrameError, MissingPartition
from rlhf_pipeline.core.frames import RETRAINING_SET
from rlhf_pipeline.core.records import ModelVersion
from tests.s3 import S3, local_s3

ROW = {
    "comparison_id": "c1",
    "prompt_id": "p1",
    "prompt": "Why?",
    "chosen": "Because.",
    "rejected": "No.",
    "margin": 0.5,
    "weight": 1.0,
    "origin": "vote",
    "information": 0.3,
    "difficulty": 0.4,
    "reason": "uncertain",
    "split": "train",
    "day": "2026-01-01",
}
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with local_s3() as server:
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Artefacts:
    """Artefacts in a new place of each kind."""
    if request.param == "folder":
        return Artefacts(tmp_path)
    name = f"frames-{uuid.uuid4().hex}"
    return Artefacts(
        request.getfixturevalue("s3").url(name) if request.param == "s3" else f"memory://{name}"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Artefacts:
    return Artefacts(tmp_path)


def test_a_frame_comes_back_equal_and_typed(files: Artefacts) -> None:
    frame = pd.DataFrame([ROW])
    files.write_frame("retraining_set", frame, "2026-01-01")
    back = files.read_frame("retraining_set", "2026-01-01")
    assert back.drop(columns="dataset").to_dict("records") == [ROW]
    assert back["dataset"].isna().all()  # an optional column
    assert {c: str(t) for c, t in back.dtypes.items()} == {
        c: column.dtype for c, column in RETRAINING_SET.columns.items()
    }
    files.write_frame("retraining_set", frame.assign(margin=0.9), "2026-01-01")
    assert files.read_frame("retraining_set", "2026-01-01")["margin"].tolist() == [0.9]


def test_a_range_is_read_as_one_frame_in_the_order_of_days(files: Artefacts) -> None:
    days = [f"2026-01-{n:02}" for n in range(1, 31)]
    for day in reversed(days):
        files.write_frame(
            "retraining_set",
            pd.DataFrame([ROW | {"day": day, "comparison_id": f"{day}-{n}"} for n in (1, 2)]),
            day,
        )
    assert files.days("retraining_set") == days
    back = files.read_days("retraining_set", days[3:-1])
    assert back["comparison_id"].tolist() == [f"{day}-{n}" for day in days[3:-1] for n in (1, 2)]


def test_unmade_days_are_empty_and_lost_days_are_named(files: Artefacts) -> None:
    assert files.days("retraining_set") == []
    files.write_frame("retraining_set", pd.DataFrame([ROW]), "2026-01-01")
    days = ["2026-01-01", "2026-01-02"]
    assert len(files.read_days("retraining_set", days)) == 1
    with pytest.raises(MissingPartition, match="2026-01-02"):
        files.read_days("retraining_set", days, expected=frozenset(days))
    with pytest.raises(MissingPartition, match="2026-01-02"):
        files.read_frame("retraining_set", "2026-01-02")


def test_a_frame_that_breaks_its_schema_replaces_nothing(files: Artefacts) -> None:
    files.write_frame("retraining_set", pd.DataFrame([ROW]), "2026-01-01")
    with pytest.raises(FrameError, match="margin"):
        files.write_frame(
            "retraining_set", pd.DataFrame([ROW | {"margin": float("nan")}]), "2026-01-01"
        )
    assert files.read_frame("retraining_set", "2026-01-01")["margin"].tolist() == [0.5]


def test_a_record_comes_back_and_a_broken_one_is_named(files: Artefacts) -> None:
    version = ModelVersion(
        name="demo.policy", version=1, kind="policy", uri="runs:/1/model", content_hash="ab"
    )
    with pytest.raises(MissingPartition, match="Materialise candidate_model first"):
        files.read_record("candidate_model", ModelVersion)
    files.write_record("candidate_model", version)
    assert files.read_record("candidate_model", ModelVersion) == version
    files.path("candidate_model").write_text("{")
    with pytest.raises(ArtefactError, match="Materialise candidate_model again"):
        files.read_record("candidate_model", ModelVersion)

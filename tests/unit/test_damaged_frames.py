"""Damaged frames are named with their cure: flipped bits, cut and empty files, folders, other
columns.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline import artefacts
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.errors import ArtefactError
from rlhf_pipeline.records import CalibrationWindow, ModelVersion

DAY = "2026-01-01"
N_FLIPS = 40


def rows(n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "comparison_id": [f"c{i}" for i in range(n)],
            "prompt_id": [f"p{i % 7}" for i in range(n)],
            "prompt": [f"Why {i}?" for i in range(n)],
            "chosen": [f"Because of {i * 31 % 17}." for i in range(n)],
            "rejected": ["No."] * n,
            "margin": [i / 50 for i in range(n)],
            "weight": [1.0] * n,
            "origin": "vote",
            "information": [i / (n + 1) for i in range(n)],
            "difficulty": [i / n for i in range(n)],
            "reason": "uncertain",
            "split": "train",
            "day": DAY,
        }
    )


@pytest.fixture
def frame() -> pd.DataFrame:
    return rows(40)


@pytest.fixture
def files(tmp_path: Path, frame: pd.DataFrame) -> Artefacts:
    files = Artefacts(tmp_path)
    files.write_frame("retraining_set", frame, DAY)
    return files


def path_in(files: Artefacts) -> Path:
    return Path(str(files.path("retraining_set", DAY)))


def outcome(files: Artefacts, content: bytes, frame: pd.DataFrame) -> str:
    """What the error says; without one whether the frame is the same."""
    path_in(files).write_bytes(content)
    try:
        return "equal" if files.read_frame("retraining_set", DAY).equals(frame) else "different"
    except ArtefactError as error:
        return str(error)


def is_named(files: Artefacts, said: str) -> bool:
    return str(path_in(files)) in said and "Materialise retraining_set again" in said


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_flipped_bit_is_named_with_its_cure(files: Artefacts, frame: pd.DataFrame) -> None:
    content = path_in(files).read_bytes()
    bits = random.Random(7).sample(range(len(content) * 8), N_FLIPS)
    found = [outcome(files, flipped(content, bit), frame) for bit in bits]
    named = [is_named(files, said) for said in found if said not in ("equal", "different")]
    assert all(named)
    assert len(named) > N_FLIPS / 4


@pytest.mark.parametrize("length", [0, 3, 100, -1, -9])
def test_cut_frame_is_named_with_its_cure(
    files: Artefacts, frame: pd.DataFrame, length: int
) -> None:
    content = path_in(files).read_bytes()
    assert is_named(files, outcome(files, content[:length], frame))


def test_folder_in_place_of_a_frame_is_named(files: Artefacts) -> None:
    path_in(files).unlink()
    path_in(files).mkdir()
    for read in (
        lambda: files.read_frame("retraining_set", DAY),
        lambda: files.read_days("retraining_set", [DAY]),
    ):
        with pytest.raises(ArtefactError, match=rf"{path_in(files)}.*folder.*Move it away"):
            read()


def test_frame_of_other_columns_is_named(files: Artefacts, frame: pd.DataFrame) -> None:
    frame.drop(columns="margin").to_parquet(path_in(files))
    with pytest.raises(
        ArtefactError, match=rf"{path_in(files)}.*margin.*Materialise retraining_set"
    ):
        files.read_frame("retraining_set", DAY)


class Hashes:
    """Remembers the content of each file as the store remembers its hash."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    @contextmanager
    def record_replacement(self, contents: Mapping[str, bytes]) -> Iterator[None]:
        yield
        self.contents.update(contents)

    def find_changed(self, contents: Mapping[str, bytes]) -> list[str]:
        return [
            path
            for path, content in contents.items()
            if self.contents.get(path, content) != content
        ]


@pytest.fixture
def recorded(tmp_path: Path) -> Artefacts:
    return Artefacts(tmp_path, Hashes())


def test_flipped_bit_in_the_footer_of_a_recorded_frame_is_named(
    recorded: Artefacts, frame: pd.DataFrame
) -> None:
    recorded.write_frame("retraining_set", frame, DAY)
    content = path_in(recorded).read_bytes()
    for bit in random.Random(7).sample(range(len(content) * 8), N_FLIPS):
        assert is_named(recorded, outcome(recorded, flipped(content, bit), frame)), bit
    assert outcome(recorded, content, frame) == "equal"


def test_changed_record_is_named_where_it_is_read(recorded: Artefacts) -> None:
    version = ModelVersion(
        name="demo.policy", version=1, kind="policy", uri="runs:/1/model", content_hash="ab"
    )
    path = Path(str(recorded.write_record("candidate_model", version)))
    path.write_text(path.read_text().replace('"version": 1', '"version": 3'))
    with pytest.raises(
        ArtefactError,
        match=rf"{path} was changed since it was written.*Materialise candidate_model again",
    ):
        recorded.read_record("candidate_model", ModelVersion)


def test_changed_report_is_named_where_it_is_read(recorded: Artefacts) -> None:
    recorded.write({recorded.report_path(DAY): b"<p>stable</p>"})
    Path(str(recorded.report_path(DAY))).write_bytes(b"<p>drift</p>")
    with pytest.raises(
        ArtefactError, match=r"drift_2026-01-01\.html was changed.*Materialise drift_report again"
    ):
        recorded.read_report(DAY)


def test_changed_window_is_made_again(recorded: Artefacts) -> None:
    unknown = dict.fromkeys(("last_seq", "accuracy", "noise_ceiling", "ece", "brier"))
    window = CalibrationWindow(
        day=DAY,
        first_day=DAY,
        n_votes=12,
        n_comparisons=9,
        n_prompts=9,
        reward_models=("m@1",),
        **unknown,
    )
    recorded.write({recorded.window_path(DAY): window.model_dump_json().encode()})
    assert recorded.read_windows([DAY]) == {DAY: window}
    path = Path(str(recorded.window_path(DAY)))
    path.write_text(path.read_text().replace("12", "13"))
    assert recorded.read_windows([DAY]) == {}


def test_file_replaced_while_it_is_read_is_read_again(
    recorded: Artefacts, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.write_frame("retraining_set", frame, DAY)
    old = path_in(recorded).read_bytes()
    recorded.write_frame("retraining_set", frame.head(3), DAY)
    reads = [old, path_in(recorded).read_bytes()]
    monkeypatch.setattr(artefacts, "get_many", lambda paths: [reads.pop(0)])
    assert len(recorded.read_frame("retraining_set", DAY)) == 3

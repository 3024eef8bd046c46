"""Damaged frames are named with their cure: flipped bits, cut and empty files, folders, other
columns.
"""

import random
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import ArtefactError

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


def is_named(files: Artefacts, outcome_text: str) -> bool:
    return (
        str(path_in(files)) in outcome_text and "Materialise retraining_set again" in outcome_text
    )


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_flipped_bit_is_reported_with_its_cure(files: Artefacts, frame: pd.DataFrame) -> None:
    content = path_in(files).read_bytes()
    bits = random.Random(7).sample(range(len(content) * 8), N_FLIPS)
    outcomes = [outcome(files, flipped(content, bit), frame) for bit in bits]
    named = [
        is_named(files, outcome_text)
        for outcome_text in outcomes
        if outcome_text not in ("equal", "different")
    ]
    assert all(named)
    assert len(named) > N_FLIPS / 4


def test_all_readers_refuse_the_same_damage(files: Artefacts, frame: pd.DataFrame) -> None:
    """A reader of one column by another way took 30 of 800 flipped bits for other values."""
    content = path_in(files).read_bytes()
    known = files.count_values("retraining_set", DAY, "comparison_id")
    assert set(known) == set(frame["comparison_id"])
    for bit in random.Random(7).sample(range(len(content) * 8), 200):
        path_in(files).write_bytes(flipped(content, bit))
        try:
            files.read_frame("retraining_set", DAY)
        except ArtefactError:
            with pytest.raises(ArtefactError, match="Materialise retraining_set again"):
                files.count_values("retraining_set", DAY, "comparison_id")

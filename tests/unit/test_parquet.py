"""A flipped bit in a page of a frame or an export is an error, or changes no value."""

import io
import random

import pandas as pd

from rlhf_pipeline.datasets.formats.parquet import Parquet
from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.frames import FrameSchema, integer, number, text

SCHEMA = FrameSchema(
    "judged", {"name": text("who"), "n": integer("how many"), "share": number("of all")}
)
N_FLIPS = 400


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": [f"c{i * 31 % 97}" for i in range(60)],
            "n": range(60),
            "share": [i / 61 for i in range(60)],
        }
    )


def footer_start(content: bytes) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def test_flipped_bit_in_an_exported_file_never_changes_a_value() -> None:
    file = io.BytesIO()
    Parquet().write([frame()], SCHEMA, file)
    content = file.getvalue()
    outcomes = []
    for bit in random.Random(7).sample(range(footer_start(content) * 8), 100):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            outcomes.append(Parquet().read(io.BytesIO(bytes(changed)), SCHEMA).equals(frame()))
        except FrameError:
            continue
    assert all(outcomes)
    assert len(outcomes) < 50

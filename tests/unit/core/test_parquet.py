"""A flipped bit in a page of a frame or an export is an error, or changes no value."""

import io
import random
from pathlib import Path

import pandas as pd

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.frames import FrameSchema, integer, number, text
from rlhf_pipeline.core.row_files.parquet_rows import ParquetFile
from rlhf_pipeline.feedback.datasets.formats.parquet import Parquet

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


def test_flipped_bit_in_an_exported_file_never_changes_a_value(tmp_path: Path) -> None:
    file = io.BytesIO()
    Parquet().write([frame()], SCHEMA, file)
    content = file.getvalue()
    path, columns, outcomes = tmp_path / "changed.parquet", list(SCHEMA.columns), []
    for bit in random.Random(7).sample(range(footer_start(content) * 8), 100):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            path.write_bytes(changed)
            rows = [{name: row.cells[name] for name in columns} for row in ParquetFile(path)]
            outcomes.append(rows == frame().to_dict("records"))
        except DatasetError:
            continue
    assert all(outcomes)
    assert len(outcomes) < 50

"""JSON Lines: one JSON object per line, in UTF-8."""

import json
from collections.abc import Iterable
from typing import IO, Any, ClassVar

import pandas as pd

from rlhf_pipeline.core.frames import FrameSchema, check_frame
from rlhf_pipeline.feedback.datasets.formats.base import plain_columns

# Characters that JSON does not escape but many readers treat as line ends.
LINE_ENDS = {character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


class Jsonl:
    """Missing values are null, never omitted; numbers have enough digits to be read back
    exactly.
    """

    name: ClassVar[str] = "jsonl"
    suffix: ClassVar[str] = ".jsonl"

    def write(self, batches: Iterable[pd.DataFrame], schema: FrameSchema, file: IO[bytes]) -> int:
        n = 0
        for batch in batches:
            columns = plain_columns(check_frame(batch, schema), schema)
            lines = [
                encode_line(dict(zip(columns, values, strict=True)))
                for values in zip(*columns.values(), strict=True)
            ]
            file.write("".join(lines).encode())
            n += len(lines)
        return n


def encode_line(row: dict[str, Any]) -> str:
    """A line with its end. Raises ValueError for NaN and infinite numbers."""
    line = json.dumps(row, ensure_ascii=False, allow_nan=False)
    for character, escaped in LINE_ENDS.items():
        line = line.replace(character, escaped)
    return f"{line}\n"

"""What every file format can do: frames to a file as they come, and the file back to one frame.
Knows no kind of row.
"""

from collections.abc import Iterable
from typing import IO, Any, ClassVar, Protocol

import pandas as pd

from rlhf_pipeline.frames import FrameSchema


class Format(Protocol):
    """One kind of file. What is written comes back equal: texts to the character, missing apart
    from empty, fractions to the bit.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]

    def write(self, batches: Iterable[pd.DataFrame], schema: FrameSchema, file: IO[bytes]) -> int:
        """Write frames of `schema` one after the other, holding one at a time; returns the number
        of rows.

        No frame at all is a file that reads as the empty frame. `file` stays open. Raises
        FrameError for a frame that breaks the schema.
        """
        ...

    def read(self, file: IO[bytes], schema: FrameSchema) -> pd.DataFrame:
        """All rows as one frame of `schema`. Raises FrameError naming the line, or what else is
        wrong with the file.
        """
        ...


def plain_columns(frame: pd.DataFrame, schema: FrameSchema) -> dict[str, list[Any]]:
    """Columns as lists of str, int, float, bool; times as ISO 8601 with microseconds and Z; what is
    missing as None.
    """
    columns = {}
    for name, column in schema.columns.items():
        series = frame[name]
        if column.kind == "time":
            naive = series.dt.tz_convert("UTC").dt.tz_localize(None)
            series = pd.Series(naive.dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        present = series.astype(object)
        columns[name] = present.where(series.notna(), None).tolist()
    return columns

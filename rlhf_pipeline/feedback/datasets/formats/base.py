"""The protocol of file formats, which write frames to a file; `row_files` reads files."""

from collections.abc import Iterable
from typing import IO, Any, ClassVar, Protocol

import pandas as pd

from rlhf_pipeline.core.frames import FrameSchema


class Format(Protocol):
    """One file format, which loses nothing: floats are exact, and missing differs from empty."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    def write(self, batches: Iterable[pd.DataFrame], schema: FrameSchema, file: IO[bytes]) -> int:
        """Write the frames of `schema` one by one, with one in memory. Returns the number of rows.

        Leaves `file` open. Raises FrameError if a frame breaks the schema.
        """


def plain_columns(frame: pd.DataFrame, schema: FrameSchema) -> dict[str, list[Any]]:
    """Columns as lists of str, int, float, bool; times as ISO 8601 with microseconds and Z; missing
    values as None.
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

"""One row of a file, and what every kind of file of rows can do. Knows no format and no meaning of
a column.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_pipeline.errors import DatasetError

MEGABYTE = 1_000_000
MAX_LINE = 64 * MEGABYTE  # characters of one line, or of one quoted cell
BATCH_BYTES = 8 * MEGABYTE
BATCH_ROWS = 2_000


@dataclass(frozen=True)
class FileRow:
    """One row: the line of the file it begins on (Parquet: its number), its cells by column, and
    why it cannot be read, if so.
    """

    line: int
    cells: dict[str, Any]
    fault: str | None = None

    @property
    def size(self) -> int:
        """Roughly its bytes in memory."""
        return 500 + sum(len(value) for value in self.cells.values() if isinstance(value, str))


class RowFile(Protocol):
    """An open file of rows. `size` and `position` are in the same unit, bytes or rows: how far
    reading has come.
    """

    columns: list[str]
    size: int
    is_csv: bool

    @property
    def position(self) -> int: ...

    def __iter__(self) -> Iterator[FileRow]: ...


def chunks(
    rows: Iterable[FileRow], max_rows: int = BATCH_ROWS, max_bytes: int = BATCH_BYTES
) -> Iterator[list[FileRow]]:
    """Consecutive lists of at most `max_rows` rows and roughly `max_bytes`; a larger row comes
    alone.
    """
    batch: list[FileRow] = []
    size = 0
    for row in rows:
        row_size = row.size
        if batch and (len(batch) == max_rows or size + row_size > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row_size
    if batch:
        yield batch


@contextlib.contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise DatasetError(
            f"{path} cannot be read: {cause.strerror or cause}. Check its permissions and the disk."
        ) from cause

"""A row of a file, the protocol of files of rows, and batches of rows."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_pipeline.core.errors import DatasetError

MEGABYTE = 1_000_000
MAX_LINE = 64 * MEGABYTE  # limit of a line or quoted cell, in characters
BATCH_BYTES = 8 * MEGABYTE
BATCH_ROWS = 2_000


@dataclass(frozen=True)
class FileRow:
    """One row: its first line in the file (Parquet: its number), its cells by column, and its fault
    if it cannot be read.
    """

    line: int
    cells: dict[str, Any]
    fault: str | None = None

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return 500 + sum(len(value) for value in self.cells.values() if isinstance(value, str))


class RowFile(Protocol):
    """An open file of rows. `position` is the progress of reading, in the unit of `size`: bytes or
    rows.
    """

    size: int
    is_csv: bool

    @property
    def columns(self) -> list[str]: ...

    @property
    def position(self) -> int: ...

    def __iter__(self) -> Iterator[FileRow]: ...


def chunks(
    rows: Iterable[FileRow], max_rows: int = BATCH_ROWS, max_bytes: int = BATCH_BYTES
) -> Iterator[list[FileRow]]:
    """Consecutive lists of at most `max_rows` rows and about `max_bytes`; a larger row is a list by
    itself.
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

"""A row of a file, the protocol of files of rows, and batches of rows."""

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from rlhf_pipeline.core.errors import DatasetError

MEGABYTE = 1_000_000
GZIP = ".gz"
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
    rows; a compressed file has size 0. `notes` says how the file was read where that is no matter
    of course.
    """

    size: int
    is_csv: bool
    notes: list[str]

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


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed where its name ends in .gz."""
    if path.suffix.lower() == GZIP:
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def count_bytes(path: Path) -> int:
    """The size that `position` counts to; 0 where it is unknown before the file is read."""
    return 0 if path.suffix.lower() == GZIP else path.stat().st_size


@contextlib.contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as cause:
        raise DatasetError(
            f"{path} is no whole gzip file ({cause}). Copy it again, or leave .gz out of its name."
        ) from cause
    except OSError as cause:
        raise DatasetError(
            f"{path} cannot be read: {cause.strerror or cause}. Check its permissions and the disk."
        ) from cause

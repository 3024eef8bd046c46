"""Sorts the new votes of a file by time on disk, in a SQLite table that ends with the process."""

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rlhf_pipeline.core.files import translate_write_errors

COLUMNS = {
    "comparison_id": "TEXT",
    "annotator_id": "TEXT",
    "annotator_kind": "TEXT",
    "choice": "TEXT",
    "strength": "INTEGER",
    "duration_s": "REAL",
    "reason": "TEXT",
    "stated_confidence": "REAL",
    "task_id": "TEXT",
    "is_blind": "INTEGER",
    "idempotency_key": "TEXT",
}
_DECLARED = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
BATCH_ROWS = 10_000  # votes in memory at once
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CREATE = f"CREATE TABLE votes (at_us INTEGER, line INTEGER, {_DECLARED})"
_ADD = f"INSERT INTO votes VALUES (?, ?, {', '.join('?' * len(COLUMNS))})"
_INDEX = "CREATE INDEX IF NOT EXISTS by_time ON votes (at_us IS NULL, at_us, line)"
_IN_ORDER = f"SELECT at_us, {', '.join(COLUMNS)} FROM votes ORDER BY at_us IS NULL, at_us, line"


class StagedVotes:
    """Add all votes, then iterate over batches of them: by time, those without a time last, ties
    by line.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._n = 0
        file = folder / "staged.db"
        with _disk_refusals(folder):
            file.unlink(missing_ok=True)  # of an import that was killed before the next unlink
            self._table = sqlite3.connect(file, isolation_level=None)
            self._table.execute("PRAGMA journal_mode = OFF")
            self._table.execute(_CREATE)
            file.unlink()  # what stays open ends with the process, however that ends
            self._table.execute("BEGIN")

    def __len__(self) -> int:
        return self._n

    def add(self, votes: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Stage the votes of these lines: `voted_at` and COLUMNS. Raises ArtefactError if the disk
        is full.
        """
        rows = [
            (_count_us(vote["voted_at"]), line, *map(vote.get, COLUMNS)) for line, vote in votes
        ]
        with _disk_refusals(self._folder):
            self._table.executemany(_ADD, rows)
        self._n += len(rows)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        with _disk_refusals(self._folder):
            self._table.execute(_INDEX)
            rows = self._table.execute(_IN_ORDER)
            while batch := rows.fetchmany(BATCH_ROWS):
                yield [
                    {"voted_at": _to_time(at_us), **dict(zip(COLUMNS, cells, strict=True))}
                    for at_us, *cells in batch
                ]


def _count_us(moment: datetime | None) -> int | None:
    """Microseconds since 1970."""
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def _to_time(at_us: int | None) -> datetime | None:
    return None if at_us is None else _EPOCH + at_us * _MICROSECOND


@contextmanager
def _disk_refusals(folder: Path) -> Iterator[None]:
    """Turn SQLite's refusal of a full disk into an ArtefactError with its cure."""
    with translate_write_errors(folder):
        try:
            yield
        except sqlite3.OperationalError as cause:
            if "full" not in str(cause):
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from cause

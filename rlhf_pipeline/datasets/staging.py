"""Sorts records by time on disk, in a SQLite table that ends with the process."""

import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_pipeline.files import translate_write_errors

LAST = "~"  # sorts after every year


class Staging:
    """Add all records, then iterate: by time, records without time last, ties by `line`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._n = 0
        file = folder / "staged.db"
        with _disk_refusals(folder):
            file.unlink(missing_ok=True)  # of an import that was killed before the next unlink
            self._table = sqlite3.connect(file, isolation_level=None)
            self._table.execute("PRAGMA journal_mode = OFF")
            self._table.execute("CREATE TABLE records (moment TEXT, line INTEGER, record TEXT)")
            file.unlink()  # what stays open ends with the process, however that ends
            self._table.execute("BEGIN")

    def __len__(self) -> int:
        return self._n

    def add(self, moment: datetime | None, line: int, record: dict[str, Any]) -> None:
        """Stage one record. Raises ArtefactError if the disk is full."""
        when = moment.astimezone(UTC).isoformat(timespec="microseconds") if moment else LAST
        row = (when, line, json.dumps(record))
        with _disk_refusals(self._folder):
            self._table.execute("INSERT INTO records VALUES (?, ?, ?)", row)
        self._n += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with _disk_refusals(self._folder):
            self._table.execute("CREATE INDEX IF NOT EXISTS by_time ON records (moment, line)")
            rows = self._table.execute("SELECT record FROM records ORDER BY moment, line")
            for (record,) in rows:
                yield json.loads(record)


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

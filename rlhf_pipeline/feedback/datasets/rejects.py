"""Counts imported rows, and writes rejected ones with line and reason beside the input."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from rlhf_pipeline.core.files import translate_write_errors
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.core.row_files import FileRow

MAX_SHOWN = 1_000  # characters kept per cell, enough to find the row
MAX_KINDS = 100  # different reasons counted separately


class Rejects:
    """Writes `<input>.rejected.jsonl` if there is a reject; in `fallback` if the input's folder is
    not writable.

    A file of an earlier import of the same input is replaced or, without rejects, removed.
    """

    def __init__(self, input_file: Path, fallback: Path):
        folder = input_file.parent if os.access(input_file.parent, os.W_OK) else fallback
        self.path = folder / f"{input_file.name}.rejected.jsonl"
        self._unfinished = folder / f".{input_file.name}.rejected.tmp"
        self._file: IO[str] | None = None
        self.n = 0
        self.first: list[tuple[int, str]] = []
        self.reasons: Counter[str] = Counter()

    def add(self, line: int, reason: str, cells: Mapping[str, Any]) -> None:
        self.n += 1
        if len(self.first) < 3:
            self.first.append((line, reason))
        kind = (
            reason if reason in self.reasons or len(self.reasons) < MAX_KINDS else "other reasons"
        )
        self.reasons[kind] += 1
        with translate_write_errors(self.path):
            if self._file is None:
                self._unfinished.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._unfinished.open("w", encoding="utf-8")
            row = {name: _shorten(value) for name, value in cells.items()}
            json.dump({"line": line, "reason": reason, "row": row}, self._file, default=str)
            self._file.write("\n")

    def add_all(self, refusals: Iterable[tuple[FileRow, str]]) -> None:
        """Add the rejects of one batch in the order of the file."""
        for row, reason in sorted(refusals, key=lambda item: item[0].line):
            self.add(row.line, reason, row.cells)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with translate_write_errors(self.path):
            if self._file is not None:
                self._file.close()
                os.replace(self._unfinished, self.path)
            elif error is None:
                self.path.unlink(missing_ok=True)


def _shorten(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_SHOWN:
        return f"{value[:MAX_SHOWN]}… ({len(value):,} characters)"
    return value


class ImportCounts(Record):
    """Rows of a file by outcome; each row has exactly one."""

    imported: int = 0
    stored_before: int = 0
    merged: int = 0
    rejected: int = 0

    def plus(self, **more: int) -> Self:
        """These counts with `more` added.

        >>> ImportCounts(stored_before=1).plus(stored_before=2, merged=1).total
        4
        """
        return self.model_copy(update={name: getattr(self, name) + n for name, n in more.items()})

    @property
    def total(self) -> int:
        return self.imported + self.stored_before + self.merged + self.rejected

    def __str__(self) -> str:
        """
        >>> print(ImportCounts(imported=63011))
        63,011 imported, 0 already known, 0 merged, 0 rejected
        """
        return (
            f"{self.imported:,} imported, {self.stored_before:,} already known, {self.merged:,} "
            f"merged, {self.rejected:,} rejected"
        )

"""Writes rejected rows, with line and reason, to a file beside the input."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from rlhf_pipeline.files import translate_write_errors
from rlhf_pipeline.row_files import FileRow

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

    def add_all(self, refused: Iterable[tuple[FileRow, str]]) -> None:
        """Add the rejects of one batch in the order of the file."""
        for row, reason in sorted(refused, key=lambda item: item[0].line):
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

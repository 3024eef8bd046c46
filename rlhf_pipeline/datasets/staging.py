"""Sorts records by time on disk, with bounded memory.

An external merge sort: records are sorted in runs of some megabytes, and the runs are merged during
iteration.
"""

import heapq
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf_pipeline.files import translate_write_errors

RUN_BYTES = 16_000_000
FAN_IN = 64  # files open at once
LAST = "~"  # sorts after every year


class Staging:
    """Add all records, then iterate: by time, records without time last, ties by `line`."""

    def __init__(self, folder: Path, *, run_bytes: int = RUN_BYTES, fan_in: int = FAN_IN):
        self._folder = folder
        self._run_bytes = run_bytes
        self._fan_in = fan_in
        self._held: list[str] = []
        self._held_bytes = 0
        self._runs: list[Path] = []
        self._n_runs = 0
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, moment: datetime | None, line: int, record: dict[str, Any]) -> None:
        """Stage one record. Raises ArtefactError if the disk is full."""
        when = moment.astimezone(UTC).isoformat(timespec="microseconds") if moment else LAST
        # json.dumps writes ASCII without tabs and line breaks
        entry = f"{when}\t{line:015d}\t{json.dumps(record)}\n"
        self._held.append(entry)
        self._held_bytes += len(entry) + 60
        self._n += 1
        if self._held_bytes > self._run_bytes:
            self._write_run()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with translate_write_errors(self._folder):
            if self._held:
                self._write_run()
            while len(self._runs) > self._fan_in:
                self._merge_first()
        with ExitStack() as open_files:
            for entry in self._merge(self._runs, open_files):
                yield json.loads(entry.split("\t", 2)[2])

    def _write_run(self) -> None:
        self._held.sort()
        with (
            translate_write_errors(self._folder),
            self._new_run().open("w", encoding="ascii") as file,
        ):
            file.writelines(self._held)
        self._held, self._held_bytes = [], 0

    def _merge_first(self) -> None:
        first = list(islice(self._runs, self._fan_in))
        with ExitStack() as open_files, self._new_run().open("w", encoding="ascii") as file:
            file.writelines(self._merge(first, open_files))
        self._runs = self._runs[self._fan_in :]
        for path in first:
            path.unlink()

    def _merge(self, runs: list[Path], open_files: ExitStack) -> Iterator[str]:
        return heapq.merge(
            *(open_files.enter_context(path.open(encoding="ascii")) for path in runs)
        )

    def _new_run(self) -> Path:
        self._n_runs += 1
        path = self._folder / f"run-{self._n_runs:06d}"
        self._runs.append(path)
        return path

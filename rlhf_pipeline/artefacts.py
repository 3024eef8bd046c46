"""The files behind every stage: frames as Parquet by day, records as JSON. Knows paths and schemas;
knows nothing of Dagster.

Every write is whole or not at all, in a folder as in an object store: a killed writer leaves the
last good file. With `hashes` every write is recorded and every read is compared: a flipped bit in
the footer of a Parquet file changes a value in 6 of 1,000 cases.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd
from upath import UPath

from rlhf_pipeline.errors import ArtefactError, FrameError, MissingPartition
from rlhf_pipeline.frames import SCHEMAS, FrameSchema
from rlhf_pipeline.object_stores import get_many, list_names, open_path, put
from rlhf_pipeline.parquet import decode_frames, encode_frame
from rlhf_pipeline.protocols import FileHashes
from rlhf_pipeline.records import (
    CalibrationReport,
    CalibrationWindow,
    Evaluation,
    GateDecision,
    ModelVersion,
    Record,
    content_hash,
)

R = TypeVar("R", bound=Record)

# What each stage without a frame leaves behind.
RECORDS: dict[str, type[Record]] = {
    "reward_model": ModelVersion,
    "calibration": CalibrationReport,
    "candidate_model": ModelVersion,
    "evaluation": Evaluation,
    "gate": GateDecision,
}


FOLDER = "frames"  # begins the recorded name of every file, whichever folder or URL holds them
# a file that another process replaces between the reading and the look-up of its hash is read again
ATTEMPTS = 3


class Artefacts:
    """Frames and records below one folder or fsspec URL: `<stage>/<day>.parquet`,
    `<stage>.parquet`, `<stage>.json`, `reports/`.
    """

    def __init__(self, base: str | Path, hashes: FileHashes | None = None) -> None:
        self.base = open_path(base)
        self._hashes = hashes

    def path(self, stage: str, day: str | None = None) -> UPath:
        suffix = "json" if stage in RECORDS else "parquet"
        return self.base / stage / f"{day}.{suffix}" if day else self.base / f"{stage}.{suffix}"

    def name(self, path: UPath) -> str:
        """As the store records it: the same wherever the frames lie."""
        return f"{FOLDER}/{path.path.removeprefix(self.base.path).strip('/')}"

    def days(self, stage: str) -> list[str]:
        """Days that have a file, sorted."""
        return [
            name.removesuffix(".parquet")
            for name in list_names(self.base / stage)
            if name.endswith(".parquet")
        ]

    def report_path(self, day: str) -> UPath:
        """Where the day's drift report lies as a page for people, beside the frames it was made
        from.
        """
        return self.base / "reports" / f"drift_{day}.html"

    def read_report(self, day: str) -> bytes | None:
        """None for a day that has none. Raises ArtefactError for a page that was changed since it
        was written.
        """
        return self._read_content(self.report_path(day), "drift_report")

    def report_days(self) -> list[str]:
        """Days that have such a page, sorted."""
        found = list_names(self.base / "reports")
        return [
            name[6:-5] for name in found if name.startswith("drift_") and name.endswith(".html")
        ]

    def report_paths(self) -> list[UPath]:
        """All such pages and the windows of calibration beside them."""
        return [
            self.base / "reports" / name
            for name in list_names(self.base / "reports")
            if name.startswith(("drift_", "calibration_"))
        ]

    def window_path(self, day: str) -> UPath:
        """Where the window of calibration over time that ends on `day` is kept, with the hash of
        what it rests on.
        """
        return self.base / "reports" / f"calibration_{day}.json"

    def read_windows(self, days: Sequence[str]) -> dict[str, CalibrationWindow]:
        """The kept windows of `days` that parse and are as written; a window of another version, or
        a damaged one, is made again.
        """
        contents = self._read_present([self.window_path(day) for day in days])
        changed, found = set(self._find_changed(contents)), {}
        for day in days:
            path = self.window_path(day)
            with contextlib.suppress(ValueError):
                if path in contents and path not in changed:
                    found[day] = CalibrationWindow.from_json(contents[path].decode())
        return found

    def hash_days(self, days: Sequence[str], stages: Sequence[str]) -> dict[str, str]:
        """What the files of `stages` hold of each day, as one hash; days without any file have one
        too.
        """
        contents = get_many([self.path(stage, day) for day in days for stage in stages])
        each = [
            "" if content is None else hashlib.sha256(content).hexdigest() for content in contents
        ]
        return {
            day: content_hash(each[i * len(stages) : (i + 1) * len(stages)])
            for i, day in enumerate(days)
        }

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> UPath:
        """Check and write; the previous file stays in place unless the new one is complete.

        Raises FrameError for a frame that breaks its schema, ArtefactError where the disk or the
        store refuses.
        """
        path = self.path(stage, day)
        self.write({path: encode_frame(frame, self._schema(stage))})
        return path

    def write_days(self, stage: str, frames: Mapping[str, pd.DataFrame]) -> None:
        """`write_frame` of each day, recorded together."""
        self.write(
            {
                self.path(stage, day): encode_frame(frame, self._schema(stage))
                for day, frame in frames.items()
            }
        )

    def write(self, contents: Mapping[UPath, bytes]) -> None:
        """Every file below this folder is written here, so that its hash is recorded."""
        recorded = {self.name(path): content for path, content in contents.items()}
        with (
            contextlib.nullcontext()
            if self._hashes is None
            else self._hashes.record_replacement(recorded)
        ):
            for path, content in contents.items():
                put(path, content)

    def read_frame(self, stage: str, day: str | None = None) -> pd.DataFrame:
        """One file. Raises MissingPartition if it is not there, ArtefactError if it cannot be
        read.
        """
        path = self.path(stage, day)
        content = self._read_content(path, stage)
        if content is None:
            raise MissingPartition(
                f"{stage}{f' of {day}' if day else ''} has no file at {path}. Materialise {stage} "
                "for it again."
            )
        return self._decode({path: content}, stage)

    def read_days(
        self, stage: str, days: Sequence[str], expected: frozenset[str] = frozenset()
    ) -> pd.DataFrame:
        """Rows of all `days` in order; a day without a file is empty, unless it is among
        `expected`: then MissingPartition.
        """
        paths = [self.path(stage, day) for day in sorted(set(self.days(stage)) & set(days))]
        contents = self._read_contents(paths, stage)
        lost = sorted((set(days) & expected) - {path.stem for path in contents})
        if lost:
            raise MissingPartition(
                f"{stage} was materialised for "
                f"{', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}, but the files are gone "
                f"from {self.base / stage}. Materialise {stage} for those days again."
            )
        return self._decode(contents, stage) if contents else self._schema(stage).empty_frame()

    def write_record(self, stage: str, record: Record) -> UPath:
        self.write({self.path(stage): record.model_dump_json(indent=1).encode()})
        return self.path(stage)

    def read_record(self, stage: str, kind: type[R]) -> R:
        """Raises MissingPartition if there is none, ArtefactError if it does not parse."""
        path = self.path(stage)
        content = self._read_content(path, stage)
        if content is None:
            raise MissingPartition(f"{stage} has no record at {path}. Materialise {stage} first.")
        try:
            return kind.from_json(content.decode())
        except ValueError as cause:
            raise ArtefactError(
                f"{path} is no {kind.__name__}: {cause}. Materialise {stage} again."
            ) from cause

    def _schema(self, stage: str) -> FrameSchema:
        if stage not in SCHEMAS:
            raise ArtefactError(f"No frame schema for {stage!r}. Known: {', '.join(SCHEMAS)}.")
        return SCHEMAS[stage]

    def _decode(self, contents: Mapping[UPath, bytes], stage: str) -> pd.DataFrame:
        """The rows of all files as one dataset."""
        schema = self._schema(stage)
        try:
            return decode_frames(list(contents.values()), schema)
        except FrameError:
            for path, content in contents.items():
                _check_file(path, content, schema)
            raise  # each file is sound by itself: the days contradict each other

    def _read_content(self, path: UPath, stage: str) -> bytes | None:
        return self._read_contents([path], stage).get(path)

    def _read_contents(self, paths: Sequence[UPath], stage: str) -> dict[UPath, bytes]:
        """The files that are there. Raises ArtefactError for one that was changed since it was
        written.
        """
        for _ in range(ATTEMPTS):
            contents = self._read_present(paths)
            changed = self._find_changed(contents)
            if not changed:
                return contents
        raise ArtefactError(
            f"{changed[0]} was changed since it was written: its SHA-256 is not the recorded one. "
            f"Materialise {stage} again, or restore the file from a backup; `rlhf storage check` "
            "names every such file."
        )

    def _read_present(self, paths: Sequence[UPath]) -> dict[UPath, bytes]:
        return {
            path: content
            for path, content in zip(paths, get_many(paths), strict=True)
            if content is not None
        }

    def _find_changed(self, contents: Mapping[UPath, bytes]) -> list[UPath]:
        if self._hashes is None:
            return []
        names = {self.name(path): path for path in contents}
        return [
            names[name]
            for name in self._hashes.find_changed(
                {name: contents[path] for name, path in names.items()}
            )
        ]


def _check_file(path: UPath, content: bytes, schema: FrameSchema) -> None:
    """Raises ArtefactError naming the file where it cannot be read."""
    try:
        decode_frames([content], schema)
    except FrameError as cause:
        raise ArtefactError(
            f"Cannot read {path}: {cause} Materialise {schema.name} again, or restore the file "
            "from a backup."
        ) from cause

"""The files behind every stage: frames as Parquet by day, records as JSON. Knows paths and schemas; knows nothing of Dagster.

Every write is whole or not at all, in a folder as in an object store: a killed writer leaves the last good file.
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
from rlhf_pipeline.object_stores import get, get_many, names, place, put
from rlhf_pipeline.parquet import decode_frames, encode_frame
from rlhf_pipeline.records import CalibrationReport, CalibrationWindow, Evaluation, GateDecision, ModelVersion, Record, content_hash

R = TypeVar("R", bound=Record)

# What each stage without a frame leaves behind.
RECORDS: dict[str, type[Record]] = {
    "reward_model": ModelVersion,
    "calibration": CalibrationReport,
    "candidate_model": ModelVersion,
    "evaluation": Evaluation,
    "gate": GateDecision,
}


class Artefacts:
    """Frames and records below one folder or fsspec URL: `<stage>/<day>.parquet`, `<stage>.parquet`, `<stage>.json`, `reports/`."""

    def __init__(self, base: str | Path) -> None:
        self.base = place(base)

    def path(self, stage: str, day: str | None = None) -> UPath:
        suffix = "json" if stage in RECORDS else "parquet"
        return self.base / stage / f"{day}.{suffix}" if day else self.base / f"{stage}.{suffix}"

    def days(self, stage: str) -> list[str]:
        """Days that have a file, sorted."""
        return [name.removesuffix(".parquet") for name in names(self.base / stage) if name.endswith(".parquet")]

    def report(self, day: str) -> UPath:
        """Where the day's drift report lies as a page for people, beside the frames it was made from."""
        return self.base / "reports" / f"drift_{day}.html"

    def read_report(self, day: str) -> bytes | None:
        """None for a day that has none."""
        return get(self.report(day))

    def report_days(self) -> list[str]:
        """Days that have such a page, sorted."""
        found = names(self.base / "reports")
        return [name[6:-5] for name in found if name.startswith("drift_") and name.endswith(".html")]

    def window(self, day: str) -> UPath:
        """Where the window of calibration over time that ends on `day` is kept, with the hash of what it rests on."""
        return self.base / "reports" / f"calibration_{day}.json"

    def windows(self, days: Sequence[str]) -> dict[str, CalibrationWindow]:
        """The kept windows of `days` that parse: one of another version of this program is as good as none, and is made again."""
        found = {}
        for day, content in zip(days, get_many([self.window(day) for day in days]), strict=True):
            with contextlib.suppress(ValueError):
                if content is not None:
                    found[day] = CalibrationWindow.from_json(content.decode())
        return found

    def hashes(self, days: Sequence[str], stages: Sequence[str]) -> dict[str, str]:
        """What the files of `stages` hold of each day, as one hash; days without any file have one too."""
        contents = get_many([self.path(stage, day) for day in days for stage in stages])
        each = ["" if content is None else hashlib.sha256(content).hexdigest() for content in contents]
        return {day: content_hash(each[i * len(stages) : (i + 1) * len(stages)]) for i, day in enumerate(days)}

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> UPath:
        """Check and write; the previous file stays in place unless the new one is complete.

        Raises FrameError for a frame that breaks its schema, ArtefactError where the disk or the store refuses.
        """
        return self._write(self.path(stage, day), encode_frame(frame, self._schema(stage)))

    def read_frame(self, stage: str, day: str | None = None) -> pd.DataFrame:
        """One file. Raises MissingPartition if it is not there, ArtefactError if it cannot be read."""
        path = self.path(stage, day)
        content = get(path)
        if content is None:
            raise MissingPartition(f"{stage}{f' of {day}' if day else ''} has no file at {path}. Materialise {stage} for it again.")
        return self._frame({path: content}, stage)

    def read_days(self, stage: str, days: Sequence[str], expected: frozenset[str] = frozenset()) -> pd.DataFrame:
        """Rows of all `days` in order; a day without a file is empty, unless it is among `expected`: then MissingPartition."""
        paths = [self.path(stage, day) for day in sorted(set(self.days(stage)) & set(days))]
        contents = {path: content for path, content in zip(paths, get_many(paths), strict=True) if content is not None}
        lost = sorted((set(days) & expected) - {path.stem for path in contents})
        if lost:
            raise MissingPartition(
                f"{stage} was materialised for {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}, but the files are gone from "
                f"{self.base / stage}. Materialise {stage} for those days again."
            )
        return self._frame(contents, stage) if contents else self._schema(stage).empty()

    def write_record(self, stage: str, record: Record) -> UPath:
        return self._write(self.path(stage), record.model_dump_json(indent=1).encode())

    def read_record(self, stage: str, kind: type[R]) -> R:
        """Raises MissingPartition if there is none, ArtefactError if it does not parse."""
        path = self.path(stage)
        content = get(path)
        if content is None:
            raise MissingPartition(f"{stage} has no record at {path}. Materialise {stage} first.")
        try:
            return kind.from_json(content.decode())
        except ValueError as cause:
            raise ArtefactError(f"{path} is no {kind.__name__}: {cause}. Materialise {stage} again.") from cause

    def _schema(self, stage: str) -> FrameSchema:
        if stage not in SCHEMAS:
            raise ArtefactError(f"No frame schema for {stage!r}. Known: {', '.join(SCHEMAS)}.")
        return SCHEMAS[stage]

    def _frame(self, contents: Mapping[UPath, bytes], stage: str) -> pd.DataFrame:
        """The rows of all files as one dataset."""
        schema = self._schema(stage)
        try:
            return decode_frames(list(contents.values()), schema)
        except FrameError:
            for path, content in contents.items():
                _read_alone(path, content, schema)
            raise  # each file is sound by itself: the days contradict each other

    def _write(self, path: UPath, content: bytes) -> UPath:
        put(path, content)
        return path


def _read_alone(path: UPath, content: bytes, schema: FrameSchema) -> None:
    """Raises ArtefactError naming the file where it cannot be read."""
    try:
        decode_frames([content], schema)
    except FrameError as cause:
        raise ArtefactError(f"Cannot read {path}: {cause} Materialise {schema.name} again, or restore the file from a backup.") from cause

"""Reads and writes the files of every stage: frames as Parquet by day, records as JSON.

Writes are atomic, in a folder as in an object store: a killed writer leaves the last good file.
Every frame is read whole, with its page checksums and its schema, so that no reader sees another
value than the next one.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd
from upath import UPath

from rlhf_pipeline.core.errors import ArtefactError, FrameError, MissingPartition
from rlhf_pipeline.core.frames import SCHEMAS, FrameSchema, frame_hash
from rlhf_pipeline.core.object_stores import get, get_many, list_names, open_path, put
from rlhf_pipeline.core.parquet import decode_frames, encode_frame
from rlhf_pipeline.core.records import (
    CalibrationReport,
    Evaluation,
    GateDecision,
    ModelVersion,
    Record,
    content_hash,
)

R = TypeVar("R", bound=Record)

# The record that each stage without a frame writes.
RECORDS: dict[str, type[Record]] = {
    "reward_model": ModelVersion,
    "calibration": CalibrationReport,
    "candidate_model": ModelVersion,
    "evaluation": Evaluation,
    "gate": GateDecision,
}
# reports that are pages, not records
PAGES = {"drift": "html", "evaluation": "html", "model_card": "md"}
# what has files, in the order of the loop
STAGES = (
    "prompts",
    "completions",
    "comparisons",
    "votes",
    "reflection_log",
    "drift_report",
    "preference_pairs",
    "annotator_model",
    "reward_model",
    "calibration",
    "retraining_set",
    "candidate_model",
    "evaluation",
    "gate",
)
assert set(STAGES) <= SCHEMAS.keys() | RECORDS.keys()


class Artefacts:
    """Frames and records below one folder or fsspec URL: `<stage>/<day>.parquet`,
    `<stage>.parquet`, `<stage>.json`, `reports/`.
    """

    def __init__(self, base: str | Path) -> None:
        self.base = open_path(base)

    def path(self, stage: str, day: str | None = None) -> UPath:
        suffix = "json" if stage in RECORDS else "parquet"
        return self.base / stage / f"{day}.{suffix}" if day else self.base / f"{stage}.{suffix}"

    def days(self, stage: str) -> list[str]:
        """Days with a file, or the hashes of kept versions, sorted."""
        return [
            name.removesuffix(".parquet")
            for name in list_names(self.base / stage)
            if name.endswith(".parquet")
        ]

    def keep_version(self, stage: str, frame: pd.DataFrame) -> str:
        """Keep the frame under its content hash beside the stage's own file, which the next one
        replaces; return the hash. A version that is there is not written again.
        """
        version = frame_hash(frame)
        if version not in self.days(stage):
            self.write_frame(stage, frame, version)
        return version

    def report_path(self, kind: str, name: str) -> UPath:
        """Path of what one stage reports beside its frames: the page `drift` of a day, the page
        `evaluation` of a candidate, a `model_card`, the `samples` of a candidate and an opponent,
        what is frozen of a version to check what is `served`, and the records `calibration`,
        `clusters` and `policy` of a day.
        """
        suffix = PAGES.get(kind, "json")
        return self.base / "reports" / f"{kind}_{name.replace('@', '_')}.{suffix}"

    def report_files(self) -> frozenset[str]:
        """Names of the files of all reports."""
        return frozenset(list_names(self.base / "reports"))

    def report_days(self, kind: str) -> list[str]:
        """Days with such a report, sorted."""
        return sorted(
            name.partition("_")[2].rpartition(".")[0]
            for name in self.report_files()
            if name.startswith(f"{kind}_")
        )

    def read_page(self, kind: str, name: str) -> bytes | None:
        """The content of one report, or None."""
        return get(self.report_path(kind, name))

    def read_reports(self, kind: str, names: Sequence[str], record: type[R]) -> dict[str, R]:
        """Stored records by name. Those that do not parse are absent, so that the caller makes them
        again.
        """
        reports = {}
        for name in names:
            content = self.read_page(kind, name)
            with contextlib.suppress(ValueError):
                if content is not None:
                    reports[name] = record.from_json(content.decode())
        return reports

    def hash_days(self, days: Sequence[str], stages: Sequence[str]) -> dict[str, str]:
        """One hash per day over that day's files of `stages`, also for days without a file."""
        contents = get_many([self.path(stage, day) for day in days for stage in stages])
        hashes = [
            "" if content is None else hashlib.sha256(content).hexdigest() for content in contents
        ]
        return {
            day: content_hash(hashes[i * len(stages) : (i + 1) * len(stages)])
            for i, day in enumerate(days)
        }

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> UPath:
        """Check and write the frame; the previous file stays until the new one is complete.

        Raises FrameError if the frame breaks its schema, ArtefactError if the write fails.
        """
        path = self.path(stage, day)
        put(path, encode_frame(frame, self._schema(stage)))
        return path

    def write(self, contents: Mapping[UPath, bytes]) -> None:
        """Write files below this folder."""
        for path, content in contents.items():
            put(path, content)

    def read_frame(self, stage: str, day: str | None = None) -> pd.DataFrame:
        """The rows of one file. Raises MissingPartition if it is missing, ArtefactError if it
        cannot be read.
        """
        path = self.path(stage, day)
        content = get(path)
        if content is None:
            raise MissingPartition(
                f"{stage}{f' of {day}' if day else ''} has no file at {path}. Materialise {stage} "
                "for it again."
            )
        return self._decode({path: content}, stage)

    def read_days(
        self, stage: str, days: Sequence[str], expected: frozenset[str] = frozenset()
    ) -> pd.DataFrame:
        """Rows of all `days` in order. A day without a file has no rows; raises MissingPartition if
        it is in `expected`.
        """
        paths = [self.path(stage, day) for day in sorted(set(self.days(stage)) & set(days))]
        contents = {
            path: content
            for path, content in zip(paths, get_many(paths), strict=True)
            if content is not None
        }
        lost = sorted((set(days) & expected) - {path.stem for path in contents})
        if lost:
            raise MissingPartition(
                f"{stage} was materialised for "
                f"{', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}, but the files are gone "
                f"from {self.base / stage}. Materialise {stage} for those days again."
            )
        return self._decode(contents, stage) if contents else self._schema(stage).empty_frame()

    def write_record(self, stage: str, record: Record) -> UPath:
        put(self.path(stage), record.model_dump_json(indent=1).encode())
        return self.path(stage)

    def count_values(self, stage: str, day: str, column: str) -> dict[str | None, int]:
        """Rows of one file by the value of one text column, which may be missing. Raises as
        `read_frame`.
        """
        values = self.read_frame(stage, day)[column]
        return dict(Counter(values.astype(object).where(values.notna(), None)))

    def read_record(self, stage: str, kind: type[R]) -> R:
        """The stage's record. Raises MissingPartition if there is none, ArtefactError if it does
        not parse.
        """
        path = self.path(stage)
        content = get(path)
        if content is None:
            raise MissingPartition(f"{stage} has no record at {path}. Materialise {stage} first.")
        try:
            return kind.from_json(content.decode())
        except ValueError as cause:
            raise ArtefactError(
                f"{path} does not hold a valid {kind.__name__}: {cause}. Materialise {stage} again."
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
                _check_file(path, content, schema, stage)
            raise  # each file is valid by itself, so the days contradict each other


def _check_file(path: UPath, content: bytes, schema: FrameSchema, stage: str) -> None:
    """Raise ArtefactError, which names the file, if it cannot be read."""
    try:
        decode_frames([content], schema)
    except FrameError as cause:
        raise ArtefactError(
            f"Cannot read {path}: {cause} Materialise {stage} again, or restore the file "
            "from a backup."
        ) from cause

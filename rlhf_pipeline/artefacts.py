"""The files behind every stage: frames as Parquet by day, records as JSON. Knows paths and schemas; knows nothing of Dagster.

Every write goes to a temporary name and is moved into place, so that a killed writer leaves the last good file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from upath import UPath

from rlhf_pipeline.errors import ArtefactError, MissingPartition
from rlhf_pipeline.files import refusals_named, write_whole
from rlhf_pipeline.frames import SCHEMAS, FrameSchema, check_frame
from rlhf_pipeline.records import CalibrationReport, Evaluation, GateDecision, ModelVersion, Record

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
    """Frames and records below one folder or fsspec URL: `<stage>/<day>.parquet`, `<stage>.parquet`, `<stage>.json`."""

    def __init__(self, base: str | Path) -> None:
        self.base = UPath(base)

    def path(self, stage: str, day: str | None = None) -> UPath:
        suffix = "json" if stage in RECORDS else "parquet"
        return self.base / stage / f"{day}.{suffix}" if day else self.base / f"{stage}.{suffix}"

    def days(self, stage: str) -> list[str]:
        """Days that have a file, sorted."""
        folder = self.base / stage
        return sorted(p.stem for p in folder.iterdir() if p.suffix == ".parquet") if folder.exists() else []

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> UPath:
        """Check and write; the previous file stays in place unless the new one is complete.

        Raises FrameError for a frame that breaks its schema, ArtefactError where the disk refuses.
        """
        schema = self._schema(stage)
        table = pa.Table.from_pandas(check_frame(frame, schema), schema=schema.arrow(), preserve_index=False)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return self._write(self.path(stage, day), sink.getvalue().to_pybytes())

    def read_frame(self, stage: str, day: str | None = None) -> pd.DataFrame:
        """One file. Raises MissingPartition if it is not there, ArtefactError if it cannot be read."""
        path = self.path(stage, day)
        if not path.exists():
            raise MissingPartition(f"{stage}{f' of {day}' if day else ''} has no file at {path}. Materialise {stage} for it again.")
        return self._read([path], stage)

    def read_days(self, stage: str, days: Sequence[str], expected: frozenset[str] = frozenset()) -> pd.DataFrame:
        """Rows of all `days` in order; a day without a file is empty, unless it is among `expected`: then MissingPartition."""
        present = set(self.days(stage))
        lost = sorted((set(days) & expected) - present)
        if lost:
            raise MissingPartition(
                f"{stage} was materialised for {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}, but the files are gone from "
                f"{self.base / stage}. Materialise {stage} for those days again."
            )
        paths = [self.path(stage, day) for day in sorted(present & set(days))]
        return self._read(paths, stage) if paths else self._schema(stage).empty()

    def write_record(self, stage: str, record: Record) -> UPath:
        return self._write(self.path(stage), record.model_dump_json(indent=1).encode())

    def read_record(self, stage: str, kind: type[R]) -> R:
        """Raises MissingPartition if there is none, ArtefactError if it does not parse."""
        path = self.path(stage)
        if not path.exists():
            raise MissingPartition(f"{stage} has no record at {path}. Materialise {stage} first.")
        try:
            return kind.from_json(path.read_text(encoding="utf-8"))
        except ValueError as cause:
            raise ArtefactError(f"{path} is no {kind.__name__}: {cause}. Materialise {stage} again.") from cause

    def _schema(self, stage: str) -> FrameSchema:
        if stage not in SCHEMAS:
            raise ArtefactError(f"No frame schema for {stage!r}. Known: {', '.join(SCHEMAS)}.")
        return SCHEMAS[stage]

    def _read(self, paths: Sequence[UPath], stage: str) -> pd.DataFrame:
        schema = self._schema(stage)
        try:
            table = ds.dataset([p.path for p in paths], schema=schema.arrow(), format="parquet", filesystem=paths[0].fs).to_table()
        except (pa.ArrowInvalid, OSError) as cause:
            raise ArtefactError(f"{stage}: cannot read {_unreadable(paths)} ({cause}). Materialise that day of {stage} again.") from cause
        return check_frame(table.to_pandas(), schema)

    def _write(self, path: UPath, content: bytes) -> UPath:
        if path.protocol in ("", "file"):
            write_whole(Path(path.path), content)
            return path
        with refusals_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)  # an object store shows a put only once it is complete
        return path


def _unreadable(paths: Sequence[UPath]) -> str:
    """The first file that is no Parquet, so that the message names it."""
    for path in paths:
        try:
            with path.open("rb") as file:
                pq.ParquetFile(file)
        except (pa.ArrowInvalid, OSError):
            return str(path)
    return str(paths[0])

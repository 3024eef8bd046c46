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

from rlhf_pipeline.core.errors import ArtefactError, FrameError, MissingPartition, NotFound
from rlhf_pipeline.core.frames import SCHEMAS, FrameSchema, frame_hash
from rlhf_pipeline.core.object_stores import get, get_many, list_names, open_path, put
from rlhf_pipeline.core.parquet import decode_frames, encode_frame
from rlhf_pipeline.core.records import (
    CalibrationReport,
    CalibrationWindow,
    DayClusters,
    Evaluation,
    EvaluationSamples,
    GateDecision,
    ModelVersion,
    PolicyDay,
    PromptCluster,
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
        """Days with a file, sorted."""
        return [
            name.removesuffix(".parquet")
            for name in list_names(self.base / stage)
            if name.endswith(".parquet")
        ]

    def versions(self, stage: str) -> list[str]:
        """The kept versions of a stage over all days, by their hash, sorted."""
        return self.days(stage)

    def keep_version(self, stage: str, frame: pd.DataFrame) -> str:
        """Keep the frame under its content hash beside the stage's own file, which the next one
        replaces; return the hash. A version that is there is not written again.
        """
        version = frame_hash(frame)
        if version not in self.versions(stage):
            self.write_frame(stage, frame, version)
        return version

    def report_path(self, day: str) -> UPath:
        """Path of the day's drift report as an HTML page."""
        return self.base / "reports" / f"drift_{day}.html"

    def read_report(self, day: str) -> bytes | None:
        """The page of that day, or None."""
        return get(self.report_path(day))

    def report_days(self) -> list[str]:
        """Days with a drift page, sorted."""
        found = list_names(self.base / "reports")
        return [
            name[6:-5] for name in found if name.startswith("drift_") and name.endswith(".html")
        ]

    def evaluation_path(self, candidate: str) -> UPath:
        """Path of the evaluation of a candidate (`name@version`) as an HTML page."""
        return self.base / "reports" / f"evaluation_{candidate.replace('@', '_')}.html"

    def read_evaluation_page(self, candidate: str) -> bytes | None:
        """The page of that candidate, or None."""
        return get(self.evaluation_path(candidate))

    def samples_path(self, candidate: str, opponent: str) -> UPath:
        """Path of the completions that the evaluation of a candidate judged, beside those of
        `opponent` (both `name@version`).
        """
        name = f"samples_{candidate}_{opponent}".replace("@", "_")
        return self.base / "reports" / f"{name}.json"

    def read_samples(self, candidate: str, opponent: str) -> EvaluationSamples | None:
        """Those completions, or None. Raises ArtefactError for a file that does not parse."""
        path = self.samples_path(candidate, opponent)
        content = get(path)
        try:
            return None if content is None else EvaluationSamples.from_json(content.decode())
        except ValueError as cause:
            raise ArtefactError(
                f"{path} does not hold valid samples: {cause}. Materialise evaluation again."
            ) from cause

    def evaluation_files(self) -> frozenset[str]:
        """Names of all pages and samples of evaluations."""
        names = list_names(self.base / "reports")
        return frozenset(name for name in names if name.startswith(("evaluation_", "samples_")))

    def window_path(self, day: str) -> UPath:
        """Path of the calibration window that ends on `day`, stored with the hash of its inputs."""
        return self.base / "reports" / f"calibration_{day}.json"

    def read_windows(self, days: Sequence[str]) -> dict[str, CalibrationWindow]:
        """Stored calibration windows of `days`. Those that do not parse are absent, so that the
        caller computes them again.
        """
        return self._read_valid({day: self.window_path(day) for day in days}, CalibrationWindow)

    def clusters_path(self, day: str) -> UPath:
        """Path of the clusters of prompts that the drift report of `day` found."""
        return self.base / "reports" / f"clusters_{day}.json"

    def cluster_days(self) -> list[str]:
        """Days with clusters, sorted."""
        found = list_names(self.base / "reports")
        return [
            name[9:-5] for name in found if name.startswith("clusters_") and name.endswith(".json")
        ]

    def read_clusters(self, days: Sequence[str]) -> dict[str, DayClusters]:
        """Stored clusters of `days`; absent as in `read_windows`."""
        return self._read_valid({day: self.clusters_path(day) for day in days}, DayClusters)

    def policy_path(self, day: str) -> UPath:
        """Path of the summary of the deployed policy's completions of `day`."""
        return self.base / "reports" / f"policy_{day}.json"

    def read_policy_days(self, days: Sequence[str]) -> dict[str, PolicyDay]:
        """Stored summaries of `days`; absent as in `read_windows`."""
        return self._read_valid({day: self.policy_path(day) for day in days}, PolicyDay)

    def hash_days(self, days: Sequence[str], stages: Sequence[str]) -> dict[str, str]:
        """One hash per day over that day's files of `stages`, also for days without a file."""
        contents = get_many([self.path(stage, day) for day in days for stage in stages])
        each = [
            "" if content is None else hashlib.sha256(content).hexdigest() for content in contents
        ]
        return {
            day: content_hash(each[i * len(stages) : (i + 1) * len(stages)])
            for i, day in enumerate(days)
        }

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> UPath:
        """Check and write the frame; the previous file stays until the new one is complete.

        Raises FrameError if the frame breaks its schema, ArtefactError if the write fails.
        """
        path = self.path(stage, day)
        put(path, encode_frame(frame, self._schema(stage)))
        return path

    def write_days(self, stage: str, frames: Mapping[str, pd.DataFrame]) -> None:
        """`write_frame` for each day."""
        for day, frame in frames.items():
            self.write_frame(stage, frame, day)

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

    def find_cluster(
        self, cluster_id: str, day: str | None = None
    ) -> tuple[DayClusters, PromptCluster]:
        """The cluster as it was on `day`, by default on the last day on which it was found, after
        all clusters of that day. Raises NotFound.
        """
        # an id begins with the day on which the cluster was first found
        days = [d for d in self.cluster_days() if d >= cluster_id[:10] and day in (None, d)]
        for each in reversed(days):
            for found in self.read_clusters([each]).values():
                for cluster in found.clusters:
                    if cluster.cluster_id == cluster_id:
                        return found, cluster
        where = f" on {day}" if day else ""
        raise NotFound(
            f"No drift report found a cluster {cluster_id!r}{where}. The drift "
            "report of a day lists its clusters."
        )

    def _read_valid(self, paths: Mapping[str, UPath], kind: type[R]) -> dict[str, R]:
        found = {}
        for day, path in paths.items():
            content = get(path)
            with contextlib.suppress(ValueError):
                if content is not None:
                    found[day] = kind.from_json(content.decode())
        return found

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

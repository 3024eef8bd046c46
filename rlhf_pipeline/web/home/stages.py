"""The stages of the loop as the home page shows them, from files, heartbeats and failed runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import PurePosixPath

from rlhf_pipeline.api_types.home import StageState
from rlhf_pipeline.artefacts import FOLDER, Artefacts
from rlhf_pipeline.errors import ArtefactError
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.store import Store

# The stages that people ask for, in the order of the loop, and the jobs that make them.
STAGE_JOBS: dict[str, tuple[str, ...]] = {
    "prompts": ("collection",),
    "completions": ("collection",),
    "votes": ("feedback",),
    "reward_model": ("learning", "retraining"),
    "calibration": ("learning", "retraining", "recalibration"),
    "drift_report": ("feedback", "recomputation"),
    "retraining_set": ("retraining", "policy_training"),
    "candidate_model": ("retraining", "policy_training"),
}
COUNTED = ("prompts", "completions", "votes", "retraining_set")  # stages whose rows mean something


@dataclass(frozen=True)
class StageFile:
    """The newest file of a stage."""

    made_at: datetime
    day: date | None
    n_rows: int | None


def find_stage_files(store: Store, files: Artefacts) -> dict[str, StageFile]:
    """The newest file of each stage that has one: of the newest day, or of the stage itself."""
    made: dict[str, dict[date | None, datetime]] = {}
    for path, written_at in store.file_hashes.list_written(f"{FOLDER}/"):
        stage, day = _parse_path(path)
        if stage in STAGE_JOBS:
            made.setdefault(stage, {})[day] = written_at
    found = {}
    for stage, by_day in made.items():
        newest = max((day for day in by_day if day is not None), default=None)
        n_rows = _count_rows(files, stage, newest) if stage in COUNTED else None
        found[stage] = StageFile(max(by_day.values()), newest, n_rows)
    return found


def count_failed_runs(points: Sequence[MetricPoint], today: date) -> dict[str, int]:
    """Failed runs of today, by job."""
    return {
        point.labels.get("job", ""): round(point.value)
        for point in points
        if point.name == "runs.failed" and point.day == today and point.value
    }


def describe_stages(
    files: Mapping[str, StageFile],
    running: Sequence[str],
    points: Sequence[MetricPoint],
    today: date,
) -> tuple[StageState, ...]:
    """`running` are the jobs of living runs; of `points`, the failed runs of today count."""
    failed = count_failed_runs(points, today)
    return tuple(
        _describe_stage(stage, files.get(stage), set(jobs) & set(running), n_failed, today)
        for stage, jobs in STAGE_JOBS.items()
        for n_failed in [sum(failed.get(job, 0) for job in jobs)]
    )


def _describe_stage(
    stage: str, file: StageFile | None, running: set[str], n_failed: int, today: date
) -> StageState:
    is_of_today = file is not None and file.made_at.date() == today
    return StageState(
        stage=stage,
        state="running"
        if running
        else "today"
        if is_of_today
        else "failed"
        if n_failed
        else "earlier"
        if file
        else "never",
        made_at=file.made_at if file else None,
        day=file.day if file else None,
        n_rows=file.n_rows if file else None,
        n_failed_runs=n_failed,
    )


def _parse_path(path: str) -> tuple[str, date | None]:
    """Stage and day of `frames/votes/2026-01-02.parquet`; no day for `frames/gate.json`, and no
    stage for other files.
    """
    _, *parts = PurePosixPath(path).parts
    if len(parts) == 1:
        return PurePosixPath(parts[0]).stem, None
    if len(parts) == 2:
        try:
            return parts[0], date.fromisoformat(PurePosixPath(parts[1]).stem)
        except ValueError:  # a kept version, named by its hash
            pass
    return "", None


def _count_rows(files: Artefacts, stage: str, day: date | None) -> int | None:
    try:
        return files.count_rows(stage, day.isoformat() if day else None)
    except ArtefactError:  # the stage itself reports a damaged file; here the count is unknown
        return None

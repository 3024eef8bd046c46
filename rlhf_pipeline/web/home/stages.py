"""The stages of the loop as the home page shows them, from files, heartbeats and failed runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import PurePosixPath

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.errors import ArtefactError
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.object_stores import list_written
from rlhf_pipeline.records import GateDecision
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.web.home.answers import StageState

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


def find_stage_files(files: Artefacts) -> dict[str, StageFile]:
    """The newest file of each stage that has one: of the newest day, or of the stage itself."""
    whole = {PurePosixPath(name).stem: at for name, at in list_written(files.base).items()}
    found = {}
    for stage in STAGE_JOBS:
        by_day = {
            day: written_at
            for name, written_at in list_written(files.base / stage).items()
            if (day := _parse_day(name))
        }
        times = [*by_day.values(), *([whole[stage]] if stage in whole else [])]
        if times:
            newest = max(by_day, default=None)
            n_rows = _count_rows(files, stage, newest) if stage in COUNTED else None
            found[stage] = StageFile(max(times), newest, n_rows)
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
        note="" if file is None or file.n_rows is None else format_count(file.n_rows, "row"),
        n_failed_runs=n_failed,
    )


def describe_gate_stages(gate: GateDecision | None, today: date) -> tuple[StageState, StageState]:
    """The last evaluation and what the gate decided on it, which no file of a stage tells."""
    evaluation = gate.evaluation if gate else None
    rate = evaluation.win_rate if evaluation else None
    found = {
        "evaluation": (
            evaluation.evaluated_at if evaluation else None,
            f"wins {rate.value:.0%} [{rate.low:.0%}, {rate.high:.0%}]" if rate else "",
        ),
        "gate": (gate.decided_at if gate else None, gate.verdict if gate else ""),
    }
    first, second = (
        StageState(
            stage=stage,
            state="never" if at is None else "today" if at.date() == today else "earlier",
            made_at=at,
            day=None,
            note=note,
            n_failed_runs=0,
        )
        for stage, (at, note) in found.items()
    )
    return first, second


def _parse_day(name: str) -> date | None:
    """Day of `2026-01-02.parquet`; None for a kept version, which is named by its hash."""
    try:
        return date.fromisoformat(PurePosixPath(name).stem)
    except ValueError:
        return None


def _count_rows(files: Artefacts, stage: str, day: date | None) -> int | None:
    try:
        return len(files.read_frame(stage, day.isoformat() if day else None))
    except ArtefactError:  # the stage itself reports a damaged file; here the count is unknown
        return None

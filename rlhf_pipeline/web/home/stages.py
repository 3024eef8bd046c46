"""The stages of the loop as the home page shows them, from files, heartbeats and failed runs."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import PurePosixPath

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import ArtefactError
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.object_stores import list_written
from rlhf_pipeline.core.records import GateDecision
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


def find_stages(files: Artefacts) -> list[StageState]:
    """The newest file of each stage: of the newest day, or of the stage itself."""
    whole = {PurePosixPath(name).stem: at for name, at in list_written(files.base).items()}
    found = []
    for stage in STAGE_JOBS:
        by_day = {
            day: written_at
            for name, written_at in list_written(files.base / stage).items()
            if (day := _parse_day(name))
        }
        times = [*by_day.values(), *([whole[stage]] if stage in whole else [])]
        newest = max(by_day, default=None)
        note = _count_rows(files, stage, newest) if times and stage in COUNTED else ""
        found.append(
            _describe(stage, max(times, default=None), note).model_copy(update={"day": newest})
        )
    return found


def count_failed_runs(points: Sequence[MetricPoint], today: date) -> dict[str, int]:
    """Failed runs of today, by job."""
    return {
        point.labels.get("job", ""): round(point.value)
        for point in points
        if point.name == "runs.failed" and point.day == today and point.value
    }


def describe_stages(
    stages: Sequence[StageState],
    gate: GateDecision | None,
    running: Sequence[str],
    failed: Mapping[str, int],
    today: date,
) -> Iterator[StageState]:
    """The stages with their state of today, then the last evaluation and what the gate decided on
    it, which no file of a stage tells. `running`: jobs of living runs; `failed`: runs by job.
    """
    evaluation = gate.evaluation if gate else None
    rate = evaluation.win_rate if evaluation else None
    won = f"wins {rate.value:.0%} [{rate.low:.0%}, {rate.high:.0%}]" if rate else ""
    judged = (
        _describe("evaluation", evaluation.evaluated_at if evaluation else None, won),
        _describe("gate", gate.decided_at if gate else None, gate.verdict if gate else ""),
    )
    for stage in (*stages, *judged):
        jobs = STAGE_JOBS.get(stage.stage, ())
        n_failed = sum(failed.get(job, 0) for job in jobs)
        state = stage.state
        if set(jobs) & set(running):
            state = "running"
        elif stage.made_at and stage.made_at.date() == today:
            state = "today"
        elif n_failed:
            state = "failed"
        yield stage.model_copy(update={"state": state, "n_failed_runs": n_failed})


def _describe(stage: str, made_at: datetime | None, note: str) -> StageState:
    return StageState(
        stage=stage,
        state="earlier" if made_at else "never",
        made_at=made_at,
        day=None,
        note=note,
        n_failed_runs=0,
    )


def _parse_day(name: str) -> date | None:
    """Day of `2026-01-02.parquet`; None for a kept version, which is named by its hash."""
    try:
        return date.fromisoformat(PurePosixPath(name).stem)
    except ValueError:
        return None


def _count_rows(files: Artefacts, stage: str, day: date | None) -> str:
    try:
        frame = files.read_frame(stage, day.isoformat() if day else None)
        return format_count(len(frame), "row")
    except ArtefactError:  # the stage itself reports a damaged file; here the count is unknown
        return ""

"""Reads training jobs: decisions from the store, runs from Dagster, figures from MLflow."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.training_orders import CANDIDATE
from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import TriggerDecision
from rlhf_pipeline.registry.runs import TrackedRun
from rlhf_pipeline.retraining.jobs import (
    JobFigures,
    JobRun,
    TrainingJob,
    build_job,
    list_orders,
    read_figures,
)


def read_jobs(workspace: Workspace, only: int | None = None) -> list[TrainingJob]:
    """All jobs, or one of them, oldest first."""
    settings, store = workspace.settings, workspace.store
    decisions = store.decisions.all()
    orders = [d for d in list_orders(decisions) if only in (None, d.decision_id)]
    answers: dict[int | None, TriggerDecision] = {each.answers: each for each in decisions}
    runs = _read_runs(workspace, orders)
    found = []
    for decision in orders:
        run = runs.get(decision.stored_id)
        beat = store.heartbeats.get(run.run_id) if run else None
        found.append(
            build_job(
                decision,
                run,
                cancellation=answers.get(decision.decision_id),
                beat_at=beat.at if beat else None,
                now=datetime.now(UTC),
                dead_after=timedelta(seconds=settings.dead_after_seconds),
            )
        )
    return found


def _read_runs(workspace: Workspace, orders: Sequence[TriggerDecision]) -> dict[int, JobRun]:
    if not orders:
        return {}
    ids = [each.stored_id for each in orders]
    found: dict[int, JobRun] = load_driver(workspace.settings).read_job_runs(ids)
    return found


def find_job(workspace: Workspace, job_id: int) -> TrainingJob:
    found = read_jobs(workspace, job_id)
    if not found:
        raise NotFound(f"There is no training job {job_id}. `rlhf policy jobs` lists them.")
    return found[0]


def read_stages(workspace: Workspace, job: TrainingJob) -> list[TrackedRun]:
    """The tracked runs of the job's stages, in the order in which they started."""
    if job.run is None:
        return []
    return workspace.registry.latest_runs(20, pipeline_run=job.run.run_id)[::-1]


def read_job_figures(job: TrainingJob, stages: Sequence[TrackedRun]) -> JobFigures | None:
    trained = [each for each in stages if each.tags.get("dagster.asset") == CANDIDATE]
    if not trained:
        return None
    ended = trained[-1].ended_at or (job.run and job.run.ended_at) or datetime.now(UTC)
    return read_figures(
        trained[-1].metrics,
        (ended - trained[-1].started_at).total_seconds(),
        job.order.stages[CANDIDATE].get("usd_per_hour"),
    )

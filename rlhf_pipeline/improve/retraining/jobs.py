"""Derives the state of a training job from its decision, its run and the run's last heartbeat."""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.records import Record, TrainingOrder, TriggerDecision

JobState = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled", "lost"]
ENDED: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})
# Dagster's statuses of a run that has a process
ALIVE = frozenset({"STARTING", "STARTED", "CANCELING"})


# least time to a run's first beat, as in `run_monitoring` of dagster.yaml: imports take seconds on
# two idle cores and minutes on crowded ones
LONGEST_START = timedelta(seconds=180)


def longest_start(dead_after: timedelta) -> timedelta:
    """How long a run may import and open the store before its first heartbeat."""
    return max(2 * dead_after, LONGEST_START)


class JobRun(Record):
    """The last run of a job, as Dagster knows it."""

    run_id: str
    status: str
    updated_at: datetime = Field(description="when its status changed last")
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = Field(default=None, description="failed stages and their causes")


class TrainingJob(Record):
    """An ordered training: its decision, and what became of it."""

    job_id: int = Field(description="the decision that ordered it")
    order: TrainingOrder
    state: JobState
    ordered_at: datetime
    actor: str
    reason: str
    cancelled_by: str | None = None
    run: JobRun | None = None


def list_orders(decisions: list[TriggerDecision]) -> list[TriggerDecision]:
    """The decisions that ordered a training job, oldest first."""
    return [decision for decision in decisions if decision.order is not None]


def build_job(
    decision: TriggerDecision,
    run: JobRun | None,
    *,
    cancellation: TriggerDecision | None,
    beat_at: datetime | None,
    now: datetime,
    dead_after: timedelta,
) -> TrainingJob:
    """The job of a decision that ordered one. `beat_at` is the last heartbeat of the run's process,
    which counts as lost after `dead_after` without one, and after `longest_start` without a first.
    """
    assert decision.order is not None  # the caller chose such decisions
    limit = dead_after if beat_at else longest_start(dead_after)
    last_seen = beat_at or (run.updated_at if run else now)
    return TrainingJob(
        job_id=decision.stored_id,
        order=decision.order,
        state=derive_state(
            decision,
            run.status if run else None,
            is_cancelled=cancellation is not None,
            is_silent=now - last_seen > limit,
        ),
        ordered_at=decision.decided_at,
        actor=decision.actor or "",
        reason="; ".join(decision.reasons),
        cancelled_by=cancellation.actor if cancellation else None,
        run=run,
    )


def derive_state(
    decision: TriggerDecision, status: str | None, *, is_cancelled: bool, is_silent: bool
) -> JobState:
    """The state by the decision and the status of its run, if there is one. What the run ended with
    counts, not what was asked of it: a job that was cancelled too late has succeeded.
    """
    if status == "SUCCESS" or (status is None and decision.state == "succeeded"):
        return "succeeded"
    if status in ALIVE and not is_silent:
        return "cancelling" if is_cancelled or status == "CANCELING" else "running"
    if is_cancelled or status == "CANCELED":
        return "cancelled"
    if status == "FAILURE" or decision.state == "failed":
        return "failed"
    return "lost" if status in ALIVE else "queued"


class JobFigures(Record):
    """What a job's training has logged so far."""

    step: int
    n_steps: int
    loss: float
    learning_rate: float | None = None
    n_tokens: int | None = None
    seconds: float = Field(description="since the training began")
    cost_usd: float | None = Field(default=None, description="None without a price of the machine")

    @property
    def seconds_left(self) -> float:
        """At the current pace."""
        return self.seconds / self.step * (self.n_steps - self.step)


def read_figures(
    metrics: dict[str, float], seconds: float, usd_per_hour: float | None
) -> JobFigures | None:
    """The figures in the metrics of a training's tracked run; None before the first step."""
    if not metrics.get("training_step"):
        return None
    n_tokens = metrics.get("training_tokens")
    return JobFigures(
        step=int(metrics["training_step"]),
        n_steps=int(metrics["training_steps"]),
        loss=metrics["training_loss"],
        learning_rate=metrics.get("training_learning_rate"),
        n_tokens=None if n_tokens is None else int(n_tokens),
        seconds=seconds,
        cost_usd=None if usd_per_hour is None else seconds / 3600 * usd_per_hour,
    )

"""The state of a training job by its decision, its run and the run's heartbeat."""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.core.records import TrainingOrder, TriggerDecision
from rlhf_pipeline.improve.retraining.figures import format_figures, parse_figures
from rlhf_pipeline.improve.retraining.jobs import (
    JobRun,
    TrainingJob,
    build_job,
    derive_state,
    read_figures,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def decision(state: str = "submitted", **values: object) -> TriggerDecision:
    order = TrainingOrder(stages={"candidate_model": {"strategy": "dpo"}})
    return TriggerDecision.model_validate(
        {
            "decision_id": 7,
            "action": "fire",
            "reasons": ("by hand: try",),
            "event_ids": (),
            "evidence": {"order": order.model_dump()},
            "state": state,
            "actor": "ada",
            "decided_at": NOON,
        }
        | values
    )


@pytest.mark.parametrize(
    ("stored", "status", "is_cancelled", "is_silent", "state"),
    [
        ("pending", None, False, False, "queued"),
        ("pending", "QUEUED", False, False, "queued"),
        ("submitted", "NOT_STARTED", False, True, "queued"),
        ("pending", "STARTED", False, False, "running"),
        ("submitted", "STARTING", False, False, "running"),
        ("submitted", "STARTED", False, True, "lost"),
        ("failed", "STARTED", True, False, "cancelling"),
        ("submitted", "CANCELING", False, False, "cancelling"),
        ("failed", "STARTED", True, True, "cancelled"),
        ("failed", None, True, False, "cancelled"),
        ("failed", "QUEUED", True, False, "cancelled"),
        ("failed", "CANCELED", True, False, "cancelled"),
        ("submitted", "CANCELED", False, False, "cancelled"),
        ("failed", "FAILURE", True, False, "cancelled"),
        ("failed", "SUCCESS", True, False, "succeeded"),
        ("submitted", "SUCCESS", False, False, "succeeded"),
        ("succeeded", None, False, False, "succeeded"),
        ("submitted", "FAILURE", False, False, "failed"),
        ("failed", None, False, False, "failed"),
    ],
)
def test_state_follows_from_decision_and_run(
    stored: str, status: str | None, is_cancelled: bool, is_silent: bool, state: str
) -> None:
    job_state = derive_state(
        decision(stored), status, is_cancelled=is_cancelled, is_silent=is_silent
    )
    assert job_state == state


def job_at(seconds: float, beat_after: float | None) -> TrainingJob:
    run = JobRun(run_id="r", status="STARTED", updated_at=NOON)
    return build_job(
        decision(),
        run,
        cancellation=None,
        beat_at=None if beat_after is None else NOON + timedelta(seconds=beat_after),
        now=NOON + timedelta(seconds=seconds),
        dead_after=timedelta(seconds=60),
    )


@pytest.mark.parametrize(
    ("seconds", "beat_after", "state"),
    [
        (179, None, "running"),  # it may still start
        (181, None, "lost"),
        (90, 40, "running"),
        (101, 40, "lost"),
    ],
)
def test_run_without_a_recent_heartbeat_is_lost(
    seconds: float, beat_after: float | None, state: str
) -> None:
    assert job_at(seconds, beat_after).state == state


def test_figures_of_a_training_give_pace_and_cost() -> None:
    note = format_figures({"loss": 0.61, "learning_rate": 2e-4, "num_tokens": 5e4, "epoch": 0.5})
    metrics = {f"training_{name}": value for name, value in parse_figures(note).items()}
    assert read_figures(metrics, 60, None) is None, "no step yet"
    metrics |= {"training_step": 10, "training_steps": 40}
    figures = read_figures(metrics, 60, 3.0)
    assert figures is not None
    assert (figures.step, figures.loss, figures.learning_rate) == (10, 0.61, 2e-4)
    assert (figures.n_tokens, figures.seconds_left, figures.cost_usd) == (50_000, 180, 0.05)

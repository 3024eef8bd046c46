"""Runs of training jobs: interrupted and recorded. Nothing is trained."""

import signal
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.driver.loop import Loop
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.jobs import cancellation
from rlhf_pipeline.application.jobs.cancellation import stop_when_cancelled
from rlhf_pipeline.application.jobs.retraining import policy_training
from rlhf_pipeline.application.sensors.retraining import _record_outcomes, run_key
from rlhf_pipeline.application.sensors.runs import RUN_KEY_TAG
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import TrainingOrder, utc_now
from rlhf_pipeline.store import Store

Status = dg.DagsterRunStatus


@dg.op
def train(context: dg.OpExecutionContext) -> None:
    assert context.run_tags[DECISION_TAG]
    raise dg.Failure("diverged")


FAILING = dg.GraphDefinition(name=policy_training.name, node_defs=[train]).to_job()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    path = f"sqlite:///{tmp_path / 'store.db'}"
    with Store.open(path) as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "POLL_S", 0.02)


def place(store: Store) -> int:
    order = TrainingOrder(stages={"candidate_model": {"strategy": "dpo"}})
    decision, _ = store.training_jobs.order(order, reason="try", actor="ada", now=utc_now())
    return decision.stored_id


def cancel(store: Store, job: int) -> None:
    store.training_jobs.cancel(job, reason="enough", actor="bob", now=utc_now())


def add_run(instance: dg.DagsterInstance, status: Status, **tags: str) -> dg.DagsterRun:
    run = dg.DagsterRun(
        job_name=policy_training.name,
        run_id=str(uuid.uuid4()),
        status=status,
        tags={DECISION_TAG: "1"} | {name.replace("__", "/"): text for name, text in tags.items()},
    )
    instance.run_storage.add_historical_run(run, datetime.now(UTC))
    return run


def test_late_cancellation_leaves_the_job_succeeded(
    instance: dg.DagsterInstance, store: Store
) -> None:
    job = place(store)
    key = {RUN_KEY_TAG: run_key("demo", store.decisions.get(job))}
    cancel(store, job)
    _record_outcomes("demo", instance, store)
    assert store.decisions.get(job).state == "failed"
    add_run(instance, Status.SUCCESS, **key)
    _record_outcomes("demo", instance, store)
    assert store.decisions.get(job).state == "succeeded"
    assert store.decisions.get(job).error is None


def test_background_job_is_interrupted(instance: dg.DagsterInstance, store: Store) -> None:
    """A shell starts it with interrupts ignored."""
    run = add_run(instance, Status.STARTED)
    watching = stop_when_cancelled(store, instance, run.run_id, {DECISION_TAG: str(place(store))})
    cancel(store, 1)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), watching:
            time.sleep(5)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def runner_of(instance: dg.DagsterInstance, store: Store, *definitions: Any) -> Runner:
    return Runner(Settings(), dg.Definitions(jobs=definitions), instance, store)


def test_interrupt_before_the_run_begins_ends_the_command(
    instance: dg.DagsterInstance, store: Store
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    runner = runner_of(instance, store, FAILING)
    store.heartbeats.keep_beating = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        runner.run(FAILING.name, "2026-01-01")


def test_failed_job_is_reported_and_the_sensor_goes_on(
    instance: dg.DagsterInstance, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(instance, store, FAILING)
    request = dg.RunRequest("k", job_name=policy_training.name, tags={DECISION_TAG: "1"})
    place(store)
    tick = SimpleNamespace(run_requests=[request, request], cursor=None, skip_message=None)
    monkeypatch.setattr(Runner, "tick", lambda *_: tick)
    failures: list[str] = []
    runner.write = failures.append
    loop = Loop(runner)
    assert loop._try("retraining", lambda: loop._tick("retraining")) == 2
    assert loop.retry_at == {}
    assert len(failures) == 2
    assert "diverged" in failures[0]
    assert "order it again" in failures[0]
    assert "Next try" not in failures[0]

"""Which runs count as killed, and what becomes of them and of the decisions they belong to; in
process, sensor by sensor.
"""

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.utils import make_new_run_id
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.monitoring.run_monitoring import monitor_started_run
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from sqlalchemy import text

from rlhf_pipeline.application.driver import run_launcher
from rlhf_pipeline.application.driver.run_launcher import is_dead
from rlhf_pipeline.application.jobs.loop import RETRIED, RETRIES_TAG
from rlhf_pipeline.application.sensors.paused_runs import paused_runs_sensor
from rlhf_pipeline.application.sensors.retraining import retraining_sensor
from rlhf_pipeline.core.api_types.filters import AlertFilter
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.protocols import Clock
from rlhf_pipeline.core.records import DriftEvent, TriggerDecision, utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.heartbeats import is_beating_here
from tests.processes.daemon_home import ROOT, eventually

Status = dg.DagsterRunStatus
RUNNING = dg.DefaultSensorStatus.RUNNING
NO_PID = 2**22 + 1  # above the kernel's largest
DAY = "2026-01-05"


class ClockBehind:
    """A clock that can be set back, so that beats are old when they are written."""

    behind = timedelta(0)

    def now(self) -> datetime:
        return utc_now() - self.behind


@dataclass
class World:
    settings: Settings
    store: Store
    instance: dg.DagsterInstance
    clock: ClockBehind

    def run(
        self, job: str, status: Status, *, minutes_ago: float = 30, **tags: str
    ) -> dg.DagsterRun:
        run = dg.DagsterRun(
            job_name=job,
            run_id=str(uuid.uuid4()),
            status=status,
            tags={k.replace("__", "/"): v for k, v in tags.items()},
        )
        self.instance.run_storage.add_historical_run(
            run, datetime.now(UTC) - timedelta(minutes=minutes_ago)
        )
        return run

    def beat(
        self, run: dg.DagsterRun, *, seconds_ago: float, pid: int = NO_PID, host: str | None = None
    ) -> None:
        self.clock.behind = timedelta(seconds=seconds_ago)
        self.store.heartbeats.beat(
            run.run_id, pid=pid, host=host or os.uname().nodename, job=run.job_name
        )
        self.clock.behind = timedelta(0)

    def tick(self, sensor: dg.SensorDefinition) -> list[dg.RunRequest]:
        from rlhf_pipeline.application.definitions import defs

        with dg.build_sensor_context(
            instance=self.instance,
            resources={"store": self.store, "now": utc_now},
            repository_def=defs.get_repository_def(),
        ) as context:
            return list(sensor.evaluate_tick(context).run_requests or [])

    def monitor(self) -> list[dg.RunRequest]:
        """One round of Dagster's run monitoring, and what is requested after it."""
        for record in self.instance.get_run_records(dg.RunsFilter(statuses=[Status.STARTED])):
            monitor_started_run(self.instance, None, record, logging.getLogger(__name__))  # type: ignore[arg-type]
        return self.tick(paused_runs_sensor(self.settings, RUNNING))

    def status(self, run: dg.DagsterRun) -> Status:
        record = self.instance.get_run_by_id(run.run_id)
        assert record is not None
        return record.status


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = ClockBehind()
    _: Clock = clock
    monkeypatch.setenv("RLHF_HOME", str(tmp_path))  # the launcher finds its home as a daemon does
    run_launcher._open_home.cache_clear()
    settings = Settings(home=tmp_path)
    (tmp_path / "dagster").mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path / "dagster")
    with (
        Store.open(settings.store_url, clock=clock) as store,
        dg.DagsterInstance.from_config(str(tmp_path / "dagster")) as instance,
    ):
        store.migrate()
        yield World(settings, store, instance, clock)
    run_launcher._open_home.cache_clear()


@pytest.mark.parametrize(
    ("job", "tags", "again"),
    [
        ("feedback", RETRIED, "true"),
        ("retraining", {}, "false"),
        ("feedback", RETRIED | {RETRIES_TAG: "0"}, "false"),
    ],
    ids=["daily", "of a decision", "of a replay"],
)
def test_silent_run_is_failed_and_daily_ones_are_retried(
    world: World, job: str, tags: dict[str, str], again: str
) -> None:
    run = world.run(job, Status.STARTED, **tags)
    world.beat(run, seconds_ago=16)
    world.monitor()
    assert world.status(run) == Status.FAILURE
    assert world.instance.get_run_by_id(run.run_id).tags["dagster/will_retry"] == again


def test_a_daily_run_of_a_killed_command_is_requested_again(world: World) -> None:
    days = {
        "dagster__asset_partition_range_start": DAY,
        "dagster__asset_partition_range_end": "2026-01-09",
    }
    run = world.run("feedback", Status.STARTED, **RETRIED, **days)
    world.beat(run, seconds_ago=61)
    world.beat(world.run("retraining", Status.STARTED), seconds_ago=61)
    world.run("feedback", Status.FAILURE, **RETRIED, dagster__failure_reason="STEP_FAILURE")
    [again] = world.monitor()
    assert (again.job_name, again.run_key) == ("feedback", f"killed:{run.run_id}")
    assert {k.replace("/", "__"): v for k, v in again.tags.items()}.items() >= days.items()
    assert world.monitor() == [again], "the daemon may be killed before it submits the request"
    world.run("feedback", Status.STARTED, minutes_ago=0, dagster__run_key=str(again.run_key))
    assert world.monitor() == []


def test_silent_run_of_another_machine_is_failed(world: World) -> None:
    run = world.run("retraining", Status.STARTED, minutes_ago=6000)
    world.beat(run, seconds_ago=50, host="elsewhere")
    world.monitor()
    assert world.status(run) == Status.STARTED
    world.beat(run, seconds_ago=61, host="elsewhere")
    world.monitor()
    assert world.status(run) == Status.FAILURE


def test_silent_but_living_process_is_left_alone(world: World) -> None:
    run = world.run("feedback", Status.STARTED, dagster__partition=DAY)
    world.beat(run, seconds_ago=61, pid=1)  # as after a suspended machine wakes
    world.monitor()
    assert world.status(run) == Status.STARTED


def test_run_without_a_heartbeat_is_failed(world: World) -> None:
    run = world.run("feedback", Status.STARTED, dagster__partition=DAY)
    record = world.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    limit, made_at = timedelta(seconds=100), record.update_timestamp
    assert not is_dead(made_at, None, made_at + 2 * limit, limit)
    assert is_dead(made_at, None, made_at + 2.1 * limit, limit)


def test_queued_run_waits_while_the_code_cannot_be_loaded(world: World) -> None:
    # a mistake in rlhf.yaml, or a machine too busy to start the code server in time
    code = ManagedGrpcPythonEnvCodeLocationOrigin(
        LoadableTargetOrigin(module_name="no_such_module"), "rlhf_pipeline"
    )
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(code, "__repository__"), "feedback")
    run = dg.DagsterRun(
        job_name="feedback",
        status=Status.QUEUED,
        remote_job_origin=origin,
        run_id=make_new_run_id(),
    )
    world.instance.add_run(run)
    world.instance.report_dagster_event(DagsterEvent.job_enqueue(run), run.run_id)
    target = ModuleTarget("no_such_module", None, None, "rlhf_pipeline")
    with (
        pytest.warns(UserWarning, match="no_such_module"),
        WorkspaceProcessContext(world.instance, target) as workspace,
    ):
        list(QueuedRunCoordinatorDaemon(interval_seconds=5).run_iteration(workspace))
    assert world.status(run) == Status.QUEUED
    assert "failed to reach the user code server" in str(world.instance.all_logs(run.run_id))


def test_daemon_of_another_home_fails_no_run(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = world.run("feedback", Status.STARTED)
    world.beat(run, seconds_ago=16)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "another"))
    with pytest.raises(ConfigurationError, match="RLHF_HOME is"):
        world.monitor()
    assert world.status(run) == Status.STARTED


def test_ended_run_is_left_alone(world: World) -> None:
    silent, ending = (world.run("feedback", Status.STARTED) for _ in range(2))
    with world.instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        connection.execute(text("UPDATE runs SET update_timestamp = '2026-01-05 12:00:00'"))
    world.instance.report_engine_event("its last step has ended", ending)
    world.monitor()
    assert [world.status(run) for run in (silent, ending)] == [Status.FAILURE, Status.STARTED]


def test_container_with_the_same_host_name_is_left_alone(
    world: World,
) -> None:
    run = world.run("feedback", Status.STARTED, dagster__partition=DAY)
    world.beat(run, seconds_ago=1)
    world.monitor()
    assert world.status(run) == Status.STARTED


def test_heartbeat_ends_with_its_block(world: World) -> None:
    with world.store.heartbeats.keep_beating("run", job="feedback", seconds=0.01):
        with world.store.heartbeats.keep_beating("run", job="feedback", seconds=0.01):
            assert is_beating_here("run")
        assert is_beating_here("run"), "the inner block ends nothing"
    assert not is_beating_here("run")
    assert world.store.heartbeats.get("run") is None


def test_interrupted_run_leaves_its_heartbeat_but_a_failed_one_does_not(
    world: World,
) -> None:
    def work(run_id: str, error: BaseException) -> None:
        with world.store.heartbeats.keep_beating(run_id, job="feedback", seconds=5):
            eventually(lambda: world.store.heartbeats.get(run_id), what="a beat")
            raise error

    with pytest.raises(KeyboardInterrupt):
        work("stopped", KeyboardInterrupt())
    with pytest.raises(ValueError, match="its own"):
        work("failed", ValueError("its own"))
    assert world.store.heartbeats.get("stopped") is not None
    assert world.store.heartbeats.get("failed") is None


@pytest.mark.parametrize("lost", [Status.FAILURE, Status.CANCELED])
def test_failed_retraining_is_tried_three_times(world: World, lost: Status) -> None:
    decision = fired(world)
    attempts = []
    for _ in range(5):
        requests = world.tick(retraining_sensor(world.settings, RUNNING))
        for request in requests:
            attempts.append(request.tags["rlhf/attempt"])
            world.run("retraining", lost, dagster__run_key=str(request.run_key))
    assert attempts == ["1", "2", "3"]
    assert world.store.decisions.get(decision.decision_id or 0).state == "failed"
    (alert,) = world.store.alerts.page(
        AlertFilter(rule="drift", state=["open", "acknowledged", "resolved"])
    )
    assert alert.progress == "its run failed", "the sensor that retrains moves the alert on"


def fired(world: World) -> TriggerDecision:
    """A decision to retrain that is waiting for its run."""
    event = DriftEvent(
        kind="drift",
        model_version="m@1",
        detector="ddm",
        params_hash="p",
        stream="errors",
        seq=1,
        day=DAY,
        evidence={},  # type: ignore[arg-type]
    )
    world.store.events.add([event])

    def always(evidence: Any) -> TriggerDecision:
        return TriggerDecision(
            action="fire",
            reasons=("test",),
            event_ids=(event.event_id,),
            decided_at=evidence.now,
            remedy="retrain",
        )

    decision = world.store.decisions.apply_rule(always, now=utc_now(), champion="m@1")
    assert decision is not None
    return decision

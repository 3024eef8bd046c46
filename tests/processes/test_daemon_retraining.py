"""One change of taste, one retraining: on a real daemon, with everything that can go wrong between
the event and the gate.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.records import DriftEvent, NewVote, utc_now
from rlhf_pipeline.retraining.triggers import decide
from tests.processes.daemon_home import (
    Server,
    daemons,
    eventually,
    forget,
    held_slots,
    kill,
    lives,
    runs_of,
    step_pids,
    ticked_again,
    ticks,
)
from tests.processes.network_watch import attempts, watch_network

pytestmark = pytest.mark.timeout(600)

SENSORS = ("votes", "learning", "retraining", "run_health")
DECISION = "rlhf/decision_id"


@dataclass
class Household:
    """A project with a champion reward model, and the daemons that run on it now."""

    project: Any
    folder: Path
    running: list[Server] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.project.instance

    def start(self, n: int = 1, **settings: Any) -> None:
        changed = type(self.project)(
            self.project.settings.model_copy(update=settings), self.instance
        )
        self.running = self.stack.enter_context(
            daemons(watch_network(changed.environ, self.folder), self.folder, n)
        )

    def end(self) -> None:
        self.stack.close()
        self.running = []

    def launch(self, n: int) -> None:
        """How many runs the daemons that start next launch at once; more wait in the queue."""
        file = self.project.settings.home / "dagster" / "dagster.yaml"
        text, found = re.subn(
            r"max_concurrent_runs: \d+",
            f"max_concurrent_runs: {n}",
            file.read_text(encoding="utf-8"),
        )
        assert found == 1
        file.write_text(text, encoding="utf-8")

    def retrainings(self) -> list[dg.DagsterRun]:
        return runs_of(self.instance, "retraining")


@pytest.fixture(scope="module")
def household(
    grown: Any, branch: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Household]:
    project = branch(
        grown,
        persistent=True,
        sensor_seconds=2,
        slow_sensor_seconds=2,
        heartbeat_seconds=1,
        dead_after_seconds=10,
        quiet_minutes=0.02,
    )
    household = Household(project, tmp_path_factory.mktemp("daemons"))
    yield household
    household.end()


@pytest.fixture(scope="module")
def submitted(household: Household) -> dg.DagsterRun:
    """The run of a decision whose daemon was killed before submitting it, requested by two daemons
    that were started at once.
    """
    store = household.project.store
    store.events.add(drift_of(household.project.judge, household.project.day(1)))
    decision = store.decisions.decide(decide, now=utc_now(), champion=household.project.judge)
    assert decision.action == "fire", decision.reasons
    # what the killed one leaves
    assert store.decisions.lease(decision.decision_id, 1, now=utc_now(), lease=timedelta(seconds=5))
    # Dagster's own queue has no lock: two daemons that look at once launch a run twice, and the
    # second process fails it.
    household.launch(0)
    household.start(n=2)
    return eventually(household.retrainings, seconds=90, what="a retraining run")[0]


@pytest.fixture(scope="module")
def cut(household: Household, submitted: dg.DagsterRun) -> float:
    """The moment at which the power failed while the candidate was trained."""
    household.end()
    household.launch(4)
    household.start()
    run_id, instance = submitted.run_id, household.instance
    eventually(
        lambda: run_id in held_slots(instance, "training"),
        seconds=240,
        what="the run in the training pool",
        every=0.1,
    )
    steps = eventually(
        lambda: [pid for pid in step_pids(instance, run_id) if lives(pid)],
        seconds=30,
        what="a training process",
    )
    beat = household.project.store.heartbeats.get(run_id)
    assert beat.pid not in steps, "the run's own process beats, not the one that trains"
    assert utc_now() - beat.at < timedelta(seconds=8), (
        "it beats during steps that do not hold the store"
    )
    servers = [
        p
        for daemon in household.running
        for p in daemon.family()
        if "multiprocessing" not in " ".join(p.cmdline())
    ]
    for process in servers:  # daemons and code servers first: none of them sees the run die
        kill(process.pid)
    kill(beat.pid)
    at = time.monotonic()
    eventually(
        lambda: not any(lives(pid) for pid in steps),
        seconds=10,
        what="the end of the training process whose run was killed",
    )
    household.end()
    return at


@pytest.fixture(scope="module")
def retried(household: Household, cut: float) -> dg.DagsterRun:
    """The second attempt, running."""
    assert (
        household.instance.get_run_by_id(household.retrainings()[0].run_id).status
        == dg.DagsterRunStatus.STARTED
    )
    household.start()
    return eventually(
        second_attempt(household), seconds=120, what="a second attempt that has started"
    )


def test_one_change_gives_one_run_despite_re_ticks_and_two_daemons(
    household: Household, submitted: dg.DagsterRun
) -> None:
    eventually(
        ticked_again(household.instance, "retraining", 3), seconds=120, what="three more ticks"
    )
    for sensor in ("retraining", "votes"):
        forget(household.instance, sensor)
    eventually(
        ticked_again(household.instance, "retraining", 4),
        seconds=120,
        what="four ticks after everything was forgotten",
    )
    ticked = "Checking for new runs for sensor: retraining"
    eventually(
        lambda: all(ticked in daemon.text for daemon in household.running),
        seconds=180,
        what="a tick of each daemon",
    )
    assert [run.run_id for run in household.retrainings()] == [submitted.run_id]
    assert [(d.action, d.state, d.run_id) for d in household.project.store.decisions.all()] == [
        ("fire", "submitted", submitted.run_id)
    ]
    caught_up = [
        run.tags["dagster/run_key"]
        for run in runs_of(household.instance, "feedback")
        if "dagster/run_key" in run.tags
    ]
    assert len(caught_up) == 1, (
        "the votes from before the first daemon are caught up with once, whatever the cursor"
    )


def test_killed_training_is_retried_within_two_minutes(
    household: Household, submitted: dg.DagsterRun, cut: float, retried: dg.DagsterRun
) -> None:
    assert time.monotonic() - cut < 120
    assert household.instance.get_run_by_id(submitted.run_id).status == dg.DagsterRunStatus.FAILURE
    assert submitted.run_id not in held_slots(household.instance, "training")
    assert household.project.store.heartbeats.get(submitted.run_id) is None
    assert retried.tags[DECISION] == submitted.tags[DECISION]


def test_second_attempt_ends_with_a_gated_candidate(
    household: Household, retried: dg.DagsterRun
) -> None:
    eventually(
        lambda: household.instance.get_run_by_id(retried.run_id).is_finished,
        seconds=300,
        what="the end of the second attempt",
        every=1,
    )
    assert household.instance.get_run_by_id(retried.run_id).status == dg.DagsterRunStatus.SUCCESS
    store = household.project.store
    eventually(
        lambda: store.decisions.all()[0].state == "succeeded",
        seconds=30,
        what="a decision that has succeeded",
    )
    eventually(ticked_again(household.instance, "retraining", 2), seconds=30, what="two more ticks")
    assert len(store.decisions.all()) == 1
    assert len(household.retrainings()) == 2
    assert len(store.gates.all()) == 1


def test_late_votes_for_an_old_day_re_make_only_that_day(
    household: Household, retried: dg.DagsterRun
) -> None:
    project, (old, new) = household.project, (household.project.day(0), household.project.day(1))
    before = {run.run_id for run in runs_of(household.instance, "feedback")}
    made = {day: read_write_times(project, day) for day in (old, new)}
    n_votes = len(project.files.read_frame("votes", old))
    project.store.votes.cast_many(late_votes(project, old, n=20))
    eventually(
        lambda: read_write_times(project, old)["drift_report"] > made[old]["drift_report"],
        seconds=90,
        what="a new drift report",
    )
    eventually(ticked_again(household.instance, "votes", 2), seconds=30, what="two more ticks")
    again = [run for run in runs_of(household.instance, "feedback") if run.run_id not in before]
    assert [run.tags.get("dagster/partition") for run in again] == [old]
    assert len(project.files.read_frame("votes", old)) == n_votes + 20
    assert read_write_times(project, new) == made[new]


def test_no_process_of_all_this_tried_to_reach_outside(
    household: Household, retried: dg.DagsterRun
) -> None:
    assert attempts(household.folder) == []


def test_no_tick_of_all_this_has_failed(household: Household, retried: dg.DagsterRun) -> None:
    # Two daemons on one SQLite file may take a tick from each other; what counts is that a lone one
    # never fails.
    alone = household.running[0]
    errors = [
        line
        for line in alone.text.splitlines()
        # alerts are logged by their severity
        if ("ERROR" in line and "ERROR rlhf_pipeline.alerts: " not in line) or "Traceback" in line
    ]
    assert errors == []
    for sensor in SENSORS:
        failed = [
            tick.error.message
            for tick in ticks(household.instance, sensor)
            if tick.status.value == "FAILURE"
        ]
        assert failed == [], sensor


def test_with_sensors_off_nothing_runs(household: Household, retried: dg.DagsterRun) -> None:
    household.end()
    before = {run.run_id for run in household.instance.get_runs()}
    ticked = {sensor: len(ticks(household.instance, sensor)) for sensor in SENSORS}
    project = household.project
    project.store.votes.cast_many(late_votes(project, project.day(1), n=5))
    household.start(sensors_running=False)
    looked = "Checking for new runs"
    eventually(
        lambda: "SensorDaemon" in household.running[0].text,
        seconds=60,
        what="a daemon that is awake",
    )
    time.sleep(10)  # three ticks' time with the code loaded
    assert looked not in household.running[0].text
    assert {sensor: len(ticks(household.instance, sensor)) for sensor in SENSORS} == ticked
    assert {run.run_id for run in household.instance.get_runs()} == before


def drift_of(champion: str, day: str) -> list[DriftEvent]:
    """What two detectors say of one change."""
    return [
        DriftEvent(
            kind="drift",
            model_version=champion,
            detector=detector,
            params_hash="p",
            stream="errors",
            seq=900 + i,
            day=datetime.fromisoformat(day).date(),
            change_seq=700,
            evidence={},
        )
        for i, detector in enumerate(("ddm", "hddm_a"))
    ]


def second_attempt(household: Household) -> Callable[[], dg.DagsterRun | None]:
    def find_started_retraining() -> dg.DagsterRun | None:
        runs = household.retrainings()[1:]
        return runs[0] if runs and runs[0].status == dg.DagsterRunStatus.STARTED else None

    return find_started_retraining


def late_votes(project: Any, day: str, n: int) -> list[NewVote]:
    """Votes of an annotator who comes late, cast within the day they are for."""
    at = datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(hours=20)
    return [
        NewVote(
            comparison_id=comparison,
            annotator_id="late",
            annotator_kind="simulated",
            choice="a",
            voted_at=at,
            origin="simulation",
            idempotency_key=f"late:{comparison}",
        )
        for comparison in project.store.comparisons.for_days([day])["comparison_id"].head(n)
    ]


def read_write_times(project: Any, day: str) -> dict[str, int]:
    """When each stage last wrote the day."""
    stages = ("votes", "reflection_log", "drift_report")
    return {stage: Path(project.files.path(stage, day).path).stat().st_mtime_ns for stage in stages}

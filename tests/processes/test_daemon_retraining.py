"""One change of taste, one retraining, one signed webhook: on a real daemon, with everything that
can go wrong between the event and the gate.
"""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.improve.retraining.triggers import decide
from tests.flipped_votes import flip_votes
from tests.pipeline.test_retraining_in_process import QUICK
from tests.processes.daemon_home import (
    distant_schedules,
    forget,
    held_slots,
    kill,
    lives,
    runs_of,
    step_pids,
    ticked_again,
    ticks,
)
from tests.processes.household import Household
from tests.processes.network_watch import attempts
from tests.unit.watch.alerts.receivers import Hook, serve_hook

pytestmark = pytest.mark.timeout(3600)

SENSORS = ("votes", "learning", "retraining", "alerts")
DECISION = "rlhf/decision_id"


@pytest.fixture(scope="module")
def household(
    grown: Any,
    branch: Callable[..., Any],
    few_prompts: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Household]:
    folder = tmp_path_factory.mktemp("daemons")
    config = folder / "rlhf.yaml"
    config.write_text(json.dumps({"loop": QUICK | distant_schedules()}), encoding="utf-8")
    project = branch(
        grown,
        persistent=True,
        config=config,
        evaluation_file=few_prompts,
        sensor_seconds=2,
        dead_after_seconds=10,
        quiet_minutes=0.02,
    )
    project.collect(project.day(3))
    with serve_hook(Hook()) as hook:
        household = Household(project, folder, hook)
        yield household
        household.end()


@pytest.fixture(scope="module")
def submitted(household: Household) -> dg.DagsterRun:
    """The run of a decision whose daemon was killed before submitting it, requested by two daemons
    that were started at once.
    """
    project, store = household.project, household.project.store
    day = project.day(3)
    store.votes.cast_many(flip_votes(store, day, n=150))
    project.run("feedback", day)
    decision = store.decisions.apply_rule(decide, now=utc_now(), champion=project.judge)
    assert decision.action == "fire", decision.reasons
    # what the killed one leaves
    assert store.training_jobs.lease(
        decision.decision_id, 1, now=utc_now(), lease=timedelta(seconds=5)
    )
    # Dagster's own queue has no lock: two daemons that look at once launch a run twice, and the
    # second process fails it.
    household.launch(0)
    household.start(n=2)
    return household.eventually(household.retrainings, what="a retraining run")[0]


@pytest.fixture(scope="module")
def cut(household: Household, submitted: dg.DagsterRun) -> None:
    """The power failed while the candidate was trained."""
    household.end()
    household.launch(4)
    household.start()
    run_id, instance = submitted.run_id, household.instance

    def trains() -> bool:
        assert not instance.get_run_by_id(run_id).is_finished, "it ended before it trained"
        return run_id in held_slots(instance, "training")

    household.eventually(
        trains,
        what="the run in the training pool",
        every=0.1,
    )
    began, heartbeats = utc_now(), household.project.store.heartbeats
    beat = household.eventually(
        lambda: (last := heartbeats.get(run_id)).at > began and last,
        what="a heartbeat during a step that does not hold the store",
        every=0.1,
    )
    steps = household.eventually(
        lambda: [pid for pid in step_pids(instance, run_id) if lives(pid)],
        what="a training process",
        every=0.1,
    )
    assert beat.pid not in steps, "the run's own process beats, not the one that trains"
    servers = [
        p
        for daemon in household.running
        for p in daemon.family()
        if "multiprocessing" not in " ".join(p.cmdline())
    ]
    for process in servers:  # daemons and code servers first: none of them sees the run die
        kill(process.pid)
    kill(beat.pid)
    household.eventually(
        lambda: not any(lives(pid) for pid in steps),
        what="the end of the training process whose run was killed",
    )
    household.end()


@pytest.fixture(scope="module")
def retried(household: Household, cut: None) -> dg.DagsterRun:
    """The second attempt, running."""
    assert (
        household.instance.get_run_by_id(household.retrainings()[0].run_id).status
        == dg.DagsterRunStatus.STARTED
    )
    household.start()
    return household.eventually(household.second_attempt, what="a second attempt that has started")


def test_one_change_gives_one_run_despite_re_ticks_and_two_daemons(
    household: Household, submitted: dg.DagsterRun
) -> None:
    household.eventually(ticked_again(household.instance, "retraining", 1), what="another tick")
    for sensor in ("retraining", "votes"):
        forget(household.instance, sensor)
    household.eventually(
        ticked_again(household.instance, "retraining", 2),
        what="two ticks after everything was forgotten",
    )
    ticked = "Checking for new runs for sensor: retraining"
    household.eventually(
        lambda: all(ticked in daemon.text for daemon in household.running),
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


def test_the_receiver_gets_one_signed_message_with_cause_and_link(
    household: Household, submitted: dg.DagsterRun
) -> None:
    household.eventually(household.messages_of_drift, what="a message to the webhook")
    household.eventually(ticked_again(household.instance, "alerts", 1), what="another tick")
    (message,) = household.messages_of_drift()
    assert message["type"] == "alert.opened"
    data = message["data"]
    assert data["title"].startswith("Preferences drifted: ")
    assert data["evidence"]["cause"] == "taste"
    assert data["evidence"]["probabilities"]["taste"] > 0.5
    assert data["evidence"]["detectors"]
    number = submitted.tags[DECISION]
    assert data["evidence"]["decision_id"] == int(number)
    assert data["link"] == f"{household.project.settings.web_url}/decisions/{number}"


def test_killed_training_is_retried(
    household: Household, submitted: dg.DagsterRun, retried: dg.DagsterRun
) -> None:
    assert household.instance.get_run_by_id(submitted.run_id).status == dg.DagsterRunStatus.FAILURE
    assert retried.tags[DECISION] == submitted.tags[DECISION]


def test_second_attempt_ends_with_a_gated_candidate(
    household: Household, retried: dg.DagsterRun
) -> None:
    household.eventually(
        lambda: household.instance.get_run_by_id(retried.run_id).is_finished,
        what="the end of the second attempt",
        every=1,
    )
    assert household.instance.get_run_by_id(retried.run_id).status == dg.DagsterRunStatus.SUCCESS
    store = household.project.store
    household.eventually(
        lambda: store.decisions.all()[0].state == "succeeded",
        what="a decision that has succeeded",
    )
    household.eventually(ticked_again(household.instance, "retraining", 1), what="another tick")
    assert len(store.decisions.all()) == 1
    assert len(household.retrainings()) == 2
    assert len(store.gates.all()) == 1


def test_no_process_connects_outside(household: Household, retried: dg.DagsterRun) -> None:
    assert attempts(household.folder) == []


def test_no_tick_failed(household: Household, retried: dg.DagsterRun) -> None:
    # Two daemons on one SQLite file may take a tick from each other, and a daemon that is told to
    # end fails a tick it has just begun; what counts is that one which runs alone never fails.
    alone = household.running[0]
    errors = [
        line
        for line in alone.text.splitlines()
        # alerts are logged by their severity
        if ("ERROR" in line and "ERROR rlhf_pipeline.watch.alerts: " not in line)
        or "Traceback" in line
    ]
    assert errors == []
    for sensor in SENSORS:
        failed = [
            tick.error.message
            for tick in ticks(household.instance, sensor)
            if tick.timestamp > household.started_at and tick.status.value == "FAILURE"
        ]
        assert failed == [], sensor
    measured = household.project.store.metric_points.latest(["sensors.lag_seconds"])
    assert set(SENSORS) <= {point.labels["sensor"] for point in measured}

"""Imported days replayed by a real daemon in a home that only `rlhf import` has touched,
with everybody killed on the way.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.core.config import Settings
from tests.processes.daemon_home import (
    daemons,
    distant_schedules,
    eventually,
    kill,
    lives,
    ticked_again,
    ticks,
)
from tests.processes.imported_home import ImportFiles, assert_replayed_once, done, started, steps
from tests.project import Project

# Nobody waits longer than needed; the limits below are those of a slow machine.
pytestmark = pytest.mark.timeout(1800)

N = 80  # comparisons of a day
DAYS = ("2026-02-03", "2026-02-04", "2026-02-05")
SENSORS = ("votes", "replay", "learning", "retraining")


@dataclass
class Replayed:
    """A home whose replay is over, and what happened to it on the way."""

    project: Project
    files: ImportFiles
    killed: str
    at_the_kill: dict[str, Any]
    said: list[str]  # by the second daemon


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replayed]:
    home, folder = tmp_path_factory.mktemp("replayed"), tmp_path_factory.mktemp("daemons")
    quick = {
        "sensor_seconds": 1,
        "dead_after_seconds": 5,
        "quiet_minutes": 0,
    }
    config = folder / "rlhf.yaml"
    config.write_text(json.dumps({"loop": distant_schedules()}), encoding="utf-8")
    settings = Settings(
        home=home,
        project="real",
        config=config,
        min_new_pairs=N,
        refit_after_pairs=1_000_000,
        **quick,
    )
    files = ImportFiles.write(folder, DAYS, n=N)
    bare = Project(settings, dg.DagsterInstance.ephemeral())
    done(bare, folder, "import", "comparisons", str(files.pairs))
    importing = started(bare, folder, "import", "votes", str(files.votes))
    store = bare.store
    eventually(
        lambda: [i.state for i in store.imports.all()] == ["finished"] * 2,
        seconds=60,
        what="the votes",
        every=0.02,
    )
    importing.kill()  # the terminal is closed before the first day was replayed
    store.close()
    project = Project(settings, dg.DagsterInstance.from_config(str(home / "dagster")))
    assert project.instance.get_runs() == []
    assert project.store.replays.pending_days() == list(DAYS)
    with daemons(project.environ, folder) as (first,):
        eventually(
            project.store.predictions.count,
            seconds=600,
            what="predictions of the second day",
            every=0.02,
        )
        (killed,) = project.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        pid = project.store.heartbeats.get(killed.run_id).pid
        first.kill()
        kill(pid)
    eventually(lambda: not lives(pid), seconds=10, what="the end of the run's process")
    at_the_kill = {
        "status": project.instance.get_run_by_id(killed.run_id).status,
        "steps": steps(project),
        "pending": project.store.replays.pending_days(),
        "reported": project.files.days("drift_report"),
    }
    with daemons(project.environ, folder) as (second,):
        eventually(
            lambda: not project.store.replays.pending_days(),
            seconds=900,
            what="the end of the replay",
        )
        again = [ticked_again(project.instance, sensor, 2) for sensor in SENSORS]
        eventually(
            lambda: all(ticked() for ticked in again),
            seconds=180,
            what="two more ticks of each sensor",
        )
        lines = second.text.splitlines()
        second.kill()
    yield Replayed(project, files, killed.run_id, at_the_kill, lines)
    project.store.close()
    project.instance.dispose()


def test_daemon_is_killed_during_the_second_day(replayed: Replayed) -> None:
    killed = replayed.at_the_kill
    assert killed["status"] == dg.DagsterRunStatus.STARTED
    assert list(zip(killed["steps"]["day"], killed["steps"]["name"], strict=True)) == [
        (DAYS[0], "feedback"), (DAYS[0], "learning"), (DAYS[1], "feedback"),
    ]  # fmt: skip
    assert killed["pending"] == list(DAYS[1:])
    assert killed["reported"] == list(DAYS[:1])


def test_days_are_replayed_once_in_order_by_unfitted_models(
    replayed: Replayed,
) -> None:
    assert_replayed_once(replayed.project, replayed.files, killed=[replayed.killed])


def test_daemon_ticks_and_log_have_no_errors(replayed: Replayed) -> None:
    assert [line for line in replayed.said if "ERROR" in line or "Traceback" in line] == []
    for sensor in SENSORS:
        assert [
            tick.error.message
            for tick in ticks(replayed.project.instance, sensor)
            if tick.status.value == "FAILURE"
        ] == [], sensor

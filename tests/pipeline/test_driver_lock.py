"""One process drives a home at a time, and none while Dagster's daemon runs on it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from driver.lock import HEARTBEAT_SECONDS, SLACK_SECONDS, HomeInUse, lock_home, refuse_daemon
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import Settings

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from pathlib import Path
from driver.lock import lock_home
with lock_home(Path(sys.argv[1])):
    print("at work", flush=True)
    sys.stdin.readline()
"""
# a daemon by its command line; it never writes a heartbeat
DAEMON = [sys.executable, "-c", "input()", "dagster-daemon", "run"]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that drives the home."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    yield process
    process.kill()
    process.wait()


def drive(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {"RLHF_HOME": str(home)}
    return subprocess.run(
        [str(Path(sys.executable).parent / "rlhf"), *words],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_second_demo_is_refused(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    second = drive(tmp_path, "demo", "--days", "1")
    assert second.returncode == 1
    output = " ".join(second.stderr.split())
    assert f"(demo, loop, replay or run) already runs on {tmp_path}" in output
    assert "make demo RLHF_HOME=" in output


def test_killed_holder_releases_the_lock(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    with pytest.raises(HomeInUse, match="already runs on"), lock_home(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with lock_home(tmp_path):
        pass


def test_import_leaves_its_days_to_the_process_that_drives_the_home(
    holder: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    workspace = Workspace(Settings.read({"RLHF_HOME": str(tmp_path)}, tmp_path, initialising=True))
    prepare(workspace)
    with workspace.store as store:
        store.replays.request(["2026-01-02"])
    file = tmp_path / "votes.csv"
    file.write_text("comparison_id,annotator_id,choice,voted_at\n")
    after_import = drive(tmp_path, "import", "votes", str(file))
    assert after_import.returncode == 0, after_import.stderr
    assert "1 imported days wait for their replay. The process that uses" in after_import.stdout
    by_hand = drive(tmp_path, "replay")
    assert by_hand.returncode == 1
    assert "HomeInUse: " in by_hand.stderr


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


def beat(instance: dg.DagsterInstance, seconds_ago: float) -> None:
    heartbeat = DaemonHeartbeat(time.time() - seconds_ago, "SENSOR", "a daemon", [])
    instance.add_daemon_heartbeat(heartbeat)


def refuse(
    instance: dg.DagsterInstance, home: Path, *, beats: bool = False
) -> tuple[list[str], float]:
    """What is reported, and how long it waits; with `beats` the daemon goes on meanwhile."""
    reports: list[str] = []
    waited = 0.0

    def pause(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        if beats and waited > 3:
            beat(instance, 0)

    refuse_daemon(instance, home, reports.append, pause=pause)
    return reports, waited


def test_home_without_a_daemon_is_driven_at_once(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    assert refuse(instance, tmp_path) == ([], 0)


def test_daemon_of_this_machine_is_refused_at_once(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    for home, is_refused in ((tmp_path / "other", False), (tmp_path, True)):
        environ = os.environ | {"DAGSTER_HOME": str(home / "dagster")}
        daemon = subprocess.Popen(DAEMON, env=environ, stdin=subprocess.PIPE)
        try:
            if is_refused:
                with pytest.raises(HomeInUse, match=r"daemon runs on .* Stop `rlhf dev`"):
                    refuse(instance, tmp_path)
            else:
                assert refuse(instance, tmp_path) == ([], 0)
        finally:
            daemon.kill()
            daemon.wait()


def test_daemon_elsewhere_is_refused_once_it_beats_again(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    beat(instance, 20)
    with pytest.raises(HomeInUse, match="daemon runs on"):
        refuse(instance, tmp_path, beats=True)


@pytest.mark.parametrize(("seconds_ago", "wait"), [(20, 15), (-3600, 35), (40, 0)])
def test_heartbeat_of_a_dead_daemon_delays_by_one_interval_at_most(
    instance: dg.DagsterInstance, tmp_path: Path, seconds_ago: float, wait: float
) -> None:
    beat(instance, seconds_ago)
    reports, waited = refuse(instance, tmp_path)
    assert waited == pytest.approx(wait, abs=1)
    assert waited <= HEARTBEAT_SECONDS + SLACK_SECONDS
    assert len(reports) == (wait > 0)

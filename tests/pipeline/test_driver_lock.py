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

from rlhf_pipeline.application.driver.lock import HomeInUse, lock_home, refuse_daemon

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from pathlib import Path
from rlhf_pipeline.application.driver.lock import lock_home
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

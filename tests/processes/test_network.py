"""With the network cut, the demo runs through: no process tries to reach outside, and no file is
written outside the home. A daemon's retraining is watched in test_daemon_retraining.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_pipeline.application.driver.demo import DemoState
from rlhf_pipeline.application.driver.session import INTERRUPTED
from tests.processes.network_watch import attempts, cut, watch_network
from tests.project import open_project, settings_of

ROOT = Path(__file__).resolve().parents[2]
RLHF = str(Path(sys.executable).with_name("rlhf"))
ATTEMPTS = """
import socket
for attempt in (
    lambda: socket.socket().connect(("192.0.2.1", 80)),
    lambda: socket.getaddrinfo("example.org", 443),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.2", 53)),
):
    try:
        attempt()
    except PermissionError:
        continue
    raise SystemExit("not refused")
socket.getaddrinfo("127.0.0.1", 80)
"""


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """The folder of the watch."""
    (tmp_path / "watch").mkdir()
    return tmp_path / "watch"


def test_the_network_guard_refuses_connections_of_a_grandchild(watched: Path) -> None:
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ATTEMPTS!r}], check=True)"
    )
    environ = watch_network(dict(os.environ), watched)
    subprocess.run([*cut(), sys.executable, "-c", child], env=environ, check=True, timeout=100)
    assert [line.split()[:2] for line in attempts(watched)] == [
        ["socket.connect", "192.0.2.1"],
        ["socket.getaddrinfo", "example.org"],
        ["socket.sendto", "192.0.2.2"],
    ]


def files_below(folder: Path) -> list[str]:
    """Without matplotlib's list of fonts, which all programs of a user share."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and path.parent.name != "matplotlib"
    )
    return sorted(str(path.relative_to(folder)) for path in files)


def test_interrupted_demo_resumes_within_host_and_home(
    watched: Path, small_policy: Path, tmp_path: Path
) -> None:
    """Ctrl-C in the middle, once and again: it ends at once without a traceback."""
    outside = {name: tmp_path / name for name in ("HOME", "TMPDIR", "cwd")}
    for folder in outside.values():
        folder.mkdir()
    home = tmp_path / "home"
    environ = watch_network(dict(os.environ), watched) | {
        "RLHF_HOME": str(home),
        "RLHF_POLICY": str(small_policy),
        "RLHF_COMPLETION_BACKEND": "template",  # a daemon trains and loads the policy
        "RLHF_ANNOTATORS": "simulated",
        "HOME": str(outside["HOME"]),
        "TMPDIR": str(outside["TMPDIR"]),
    }
    in_checkout = {path.name for path in ROOT.iterdir()}

    def start(*command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*cut(), RLHF, *command],
            cwd=outside["cwd"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    demo = start("demo", "--days", "1")
    assert demo.stdout is not None
    for line in demo.stdout:
        if " comparisons " in line:
            break
    for _ in range(2):
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to all processes in the foreground
        time.sleep(0.2)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == INTERRUPTED, output
    assert output.rstrip().endswith("The same command goes on with the day that is unfinished."), (
        output
    )
    settings = settings_of(home, small_policy)
    assert DemoState.read(settings.demo_state).finished is None

    for command in (["demo", "--days", "1"], ["export", "completions"]):
        again = start(*command)
        output, _ = again.communicate(timeout=400)
        assert again.returncode == 0, output

    day = DemoState.read(settings.demo_state).finished
    assert day is not None
    project = open_project(settings)
    published = project.store.comparisons.for_days([day])
    assert set(project.files.read_frame("votes", day)["comparison_id"]) <= set(
        published["comparison_id"]
    )
    assert not published["comparison_id"].duplicated().any()
    assert project.store.audit.verify() > 0
    project.close()

    assert attempts(watched) == []
    assert {name: files_below(folder) for name, folder in outside.items()} == {
        "HOME": [],
        "TMPDIR": [],
        "cwd": [],
    }
    left = {"mlruns", "mlartifacts", "gx", "outputs"}
    assert {path.name for path in ROOT.iterdir()} & left == in_checkout & left

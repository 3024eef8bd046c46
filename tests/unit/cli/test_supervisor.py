"""The supervisor of `rlhf dev` starts servers and ends all of them together."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlhf_pipeline.registry import web_server_command

ROOT = Path(__file__).parents[3]
SLEEPER = [sys.executable, "-c", "import os, time; open(f'{os.getpid()}.pid', 'w'); time.sleep(60)"]
# sigwait, since a handler runs only after a sleep that began between the signal and its handler.
SLOW_TO_END = [
    sys.executable,
    "-c",
    "import signal, time\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    "open('ready', 'w')\n"
    "signal.sigwait([signal.SIGTERM])\n"
    "open('told', 'w')\n"
    "time.sleep(1)",
]
SUPERVISOR = """
import json, os, sys
from rlhf_pipeline.cli.supervisor import supervise
commands, folder = json.loads(sys.argv[1])
supervise(commands, folder=folder, environ=os.environ, ready="all are ready")
"""
Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    processes = []

    def start(*servers: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SUPERVISOR, json.dumps([servers, str(tmp_path)])]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


def test_ctrl_c_ends_every_server(start: Started, tmp_path: Path) -> None:
    process = start(SLEEPER, SLEEPER)
    assert process.stdout is not None
    assert process.stdout.readline() == "all are ready\n"
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert len(children) == 2
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_leaves_no_server_behind(
    start: Started, tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    process = start(SLOW_TO_END)
    assert process.stdout is not None
    assert process.stdout.readline() == "all are ready\n"
    wait_for(tmp_path / "ready")
    (child,) = psutil.Process(process.pid).children()
    process.send_signal(first)
    wait_for(tmp_path / "told")
    process.send_signal(second)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert not child.is_running()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_one_ended_server_ends_the_others(start: Started, tmp_path: Path) -> None:
    ends_after_the_other_started = (
        "import glob, time\nwhile not glob.glob('*.pid'): time.sleep(0.01)"
    )
    process = start(SLEEPER, [sys.executable, "-c", ends_after_the_other_started])
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "A server ended" in errors
    [sleeper] = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert not psutil.pid_exists(sleeper)


def test_mlflow_address_with_a_password_stays_out_of_the_command_line(tmp_path: Path) -> None:
    url = "postgresql+psycopg2://ann:hush@db/mlflow"
    command, environ = web_server_command(url, tmp_path, host="127.0.0.1", port=5000)
    assert url in environ.values()
    assert "hush" not in " ".join(command)

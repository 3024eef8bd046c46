"""Starts servers as child processes, waits until they answer, and ends all of them together.

`rlhf dev` becomes this program (`exec`) once the home is ready. It imports very little, so that the
waiting process takes 11 MB instead of the 200 MB of a command line that has used MLflow.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import NoReturn

import psutil

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.processes import bind_to_this_process

SECONDS_TO_START = 120
SECONDS_TO_STOP = 15
STOPS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class ServerCommand:
    """One child process. With `after` it starts once something accepts connections on that Unix
    socket.
    """

    command: list[str]
    after: str | None = None


@dataclass(frozen=True)
class SupervisorPlan:
    """The servers in the order of their start, the addresses that must answer, and what to print
    then.
    """

    servers: list[ServerCommand]
    folder: str  # their working directory
    urls: list[str]
    ready: str
    scratch: str  # a folder that is deleted at the end

    @classmethod
    def from_json(cls, text: str) -> "SupervisorPlan":
        fields = json.loads(text)
        return cls(
            **{**fields, "servers": [ServerCommand(**server) for server in fields["servers"]]}
        )


def exec_supervisor(plan: SupervisorPlan, environ: dict[str, str]) -> NoReturn:
    """Replace this process by the supervisor of `plan`; the process id stays the same."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", __name__, json.dumps(asdict(plan))], environ)


def main(plan: SupervisorPlan) -> int:
    """Run the servers until Ctrl-C (exit code 0) or until one of them ends or does not start
    (1).
    """
    try:
        supervise(plan)
    except ConfigurationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        shutil.rmtree(plan.scratch, ignore_errors=True)
    return 0


def supervise(plan: SupervisorPlan) -> None:
    # SIGTERM from a service manager counts as Ctrl-C, which a shell's background job ignores.
    for stop in STOPS:
        signal.signal(stop, _interrupt_once)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for server in plan.servers:
            if server.after is not None:
                _wait_for_socket(server.after, servers)
            servers.append(_start(server.command, plan.folder))
        _wait_for_urls(plan.urls, servers)
        print(plan.ready, flush=True)
        while all(server.poll() is None for server in servers):
            time.sleep(1)
        raise ConfigurationError(
            "A server ended by itself; its last lines above say why. The others are stopped."
        )
    except KeyboardInterrupt:
        print("stopping", flush=True)
    finally:
        _ignore_stops()
        _stop(servers)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """An impatient second signal must leave no server behind."""
    _ignore_stops()
    raise KeyboardInterrupt


def _ignore_stops() -> None:
    for stop in STOPS:
        signal.signal(stop, signal.SIG_IGN)


def _start(command: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
    # Not in the checkout: Dagster prefers a .env of the working directory to its environment.
    end = bind_to_this_process()
    return subprocess.Popen(
        command,
        cwd=folder,
        start_new_session=True,
        preexec_fn=end,  # noqa: PLW1509  no threads here
    )


def _stop(servers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End whole process groups: the servers start children, some of which outlive them."""
    for server in servers:
        _signal(server, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_STOP
    while any(_is_alive(server) for server in servers) and time.monotonic() < deadline:
        time.sleep(0.2)
    for server in servers:
        _signal(server, signal.SIGKILL)
        server.wait()


def _signal(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)


def _is_alive(server: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the server's group runs; zombies do not count."""
    server.poll()
    found = psutil.process_iter(["status"])
    return any(
        _process_group(p.pid) == server.pid and p.info["status"] != psutil.STATUS_ZOMBIE
        for p in found
    )


def _process_group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _wait_for_urls(urls: Sequence[str], servers: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    for url in urls:
        while not _is_answering(url):
            _refuse_if_ended(servers)
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{url} did not answer within {SECONDS_TO_START} s.")
            time.sleep(0.5)


def _wait_for_socket(path: str, servers: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not _is_listening(path):
        _refuse_if_ended(servers)
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"Nothing listened on {path} within {SECONDS_TO_START} s; the lines above may say "
                "why."
            )
        time.sleep(0.2)


def _refuse_if_ended(servers: Sequence[subprocess.Popen[bytes]]) -> None:
    if any(server.poll() is not None for server in servers):
        raise ConfigurationError("A server ended while starting; its last lines above say why.")


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def _is_answering(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main(SupervisorPlan.from_json(sys.argv[1])))

"""Starts servers as child processes, waits until they answer, and ends all of them together."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.processes import bind_to_this_process

SECONDS_TO_START = 120
SECONDS_TO_STOP = 15
STOPS = (signal.SIGTERM, signal.SIGINT)


def supervise(
    commands: Sequence[Sequence[str]],
    *,
    folder: Path,
    environ: Mapping[str, str],
    urls: Sequence[str] = (),
    ready: str,
) -> None:
    """Run the servers in `folder` until Ctrl-C; print `ready` once all `urls` answer.
    ConfigurationError, after ending the others, if one of them ends or does not start.
    """
    # SIGTERM from a service manager counts as Ctrl-C, which a shell's background job ignores.
    for stop in STOPS:
        signal.signal(stop, _interrupt_once)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            servers.append(
                subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environ,
                    start_new_session=True,
                    preexec_fn=bind_to_this_process(),  # noqa: PLW1509  no threads here
                )
            )
        _wait_for_urls(urls, servers)
        echo(ready)
        while all(server.poll() is None for server in servers):
            time.sleep(1)
        raise ConfigurationError(
            "A server ended by itself; its last lines above say why. The others are stopped."
        )
    except KeyboardInterrupt:
        echo("stopping")
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
    processes = psutil.process_iter(["status"])
    return any(
        _process_group(p.pid) == server.pid and p.info["status"] != psutil.STATUS_ZOMBIE
        for p in processes
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
            if any(server.poll() is not None for server in servers):
                raise ConfigurationError(
                    "A server ended while starting; its last lines above say why."
                )
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{url} did not answer within {SECONDS_TO_START} s.")
            time.sleep(0.5)


def _is_answering(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False

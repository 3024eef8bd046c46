"""How tests start `rlhf serve`: its command, environment and port, and when it answers."""

import contextlib
import http.client
import itertools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RLHF = str(Path(sys.executable).with_name("rlhf"))
PROJECT = "bench"
SECONDS_TO_START = 180
_PORTS = itertools.count(os.getpid())  # another run of the tests starts elsewhere


def server_environment(url: str, home: Path) -> dict[str, str]:
    ours = {
        "RLHF_HOME": str(home),
        "RLHF_PROJECT": PROJECT,
        "RLHF_START_DAY": "2024-01-01",
        "PYTHONPATH": str(ROOT),
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("RLHF_")}
    return (
        others
        | ours
        | {"RLHF_DATABASE_URL": url, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    )


def wait_for_server(child: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/api/v1/healthz")
            if connection.getresponse().status == 200:
                return
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"`rlhf serve` did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def find_free_port() -> int:
    """A port that no other worker of these tests is given, and no client's connection: servers bind
    it seconds later, and the kernel may give a port it chose to another process until then.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 12_000 + worker * 1_000 + next(_PORTS) % 1_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

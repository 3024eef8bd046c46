"""`rlhf dev`: the web app, Dagster's web server and daemon and MLflow's UI on loopback, until Ctrl-C."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import psutil
import typer

from rlhf_pipeline.cli.children import bind_to_this_process
from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.cli.serve import free_port
from rlhf_pipeline.cli.showing import echo
from rlhf_pipeline.errors import ConfigurationError

HOST = "127.0.0.1"
SECONDS_TO_START = 120
SECONDS_TO_STOP = 15


def dev(
    dagster_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Dagster's web server.")] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of MLflow's UI.")] = 5000,
    web_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the web app, where people vote.")] = 8080,
) -> None:
    """Start the web app, Dagster (web server and daemon) and MLflow's UI on loopback and print their addresses."""
    workspace = Workspace.here(initialising=True)
    for port, option in ((web_port, "--web-port"), (dagster_port, "--dagster-port"), (mlflow_port, "--mlflow-port")):
        if free_port(HOST, port) is None:
            raise ConfigurationError(f"Port {port} on {HOST} is taken. Choose another with {option}.")
    initialise(workspace)
    environ = _environ(workspace, mlflow_port)
    binaries = Path(sys.executable).parent
    # A service manager's stop is a Ctrl-C; and a shell that starts this in the background has told it to ignore Ctrl-C.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, signal.default_int_handler)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        dagster = [str(binaries / "dagster"), "dev", "-w", str(checkout() / "workspace.yaml"), "-h", HOST, "-p", str(dagster_port)]
        servers.append(_start([str(binaries / "rlhf"), "serve", "--host", HOST, "--port", str(web_port)], environ))
        servers.append(_start(dagster, environ))
        servers.append(_start(_mlflow(workspace, binaries, mlflow_port), environ))
        answering = (f"{web_port}/api/v1/healthz", f"{dagster_port}/server_info", f"{mlflow_port}/health")
        _wait([f"http://{HOST}:{where}" for where in answering], servers)
        shown = (("People   ", web_port), ("Dagster  ", dagster_port), ("MLflow   ", mlflow_port))
        echo("\n" + "".join(f"  {name}http://{HOST}:{port}\n" for name, port in shown) + "\n  Ctrl-C ends all of them.\n")
        while all(server.poll() is None for server in servers):
            time.sleep(1)
        raise ConfigurationError("A server ended by itself; its last lines above say why. The others are stopped.")
    except KeyboardInterrupt:
        echo("stopping")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must leave nobody behind
        _stop(servers)


def _environ(workspace: Workspace, mlflow_port: int) -> dict[str, str]:
    settings = workspace.settings
    is_demo = settings.demo_state.exists() and "annotators" not in settings.model_fields_set
    annotators = {"RLHF_ANNOTATORS": "simulated"} if is_demo else {}
    ours = {
        **settings.environ,
        "RLHF_MLFLOW_UI": f"http://{HOST}:{mlflow_port}",
        # Here and not on the command line, which everybody on the machine can read: it may hold a password.
        "MLFLOW_BACKEND_STORE_URI": settings.tracking_uri,
        # Without it MLflow starts eight more processes and 1.2 GB for a job queue that nothing here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return os.environ | annotators | ours


def _mlflow(workspace: Workspace, binaries: Path, port: int) -> list[str]:
    command = [str(binaries / "mlflow"), "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    artifacts = workspace.settings.home / "mlflow" / "artifacts"
    return [*command, "--artifacts-destination", str(artifacts), "--serve-artifacts"]


def _start(command: Sequence[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    # Not in the checkout: Dagster lets a .env of the working directory win over the environment it is given.
    end = bind_to_this_process()
    return subprocess.Popen(command, cwd=environ["RLHF_HOME"], env=environ, start_new_session=True, preexec_fn=end)  # noqa: PLW1509  no threads here


def _stop(servers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends whole process groups: the servers start children of their own, and some outlive the server that started them."""
    for server in servers:
        _signal(server, signal.SIGTERM)
    deadline = time.monotonic() + SECONDS_TO_STOP
    while any(_lives(server) for server in servers) and time.monotonic() < deadline:
        time.sleep(0.2)
    for server in servers:
        _signal(server, signal.SIGKILL)
        server.wait()


def _signal(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, number)


def _lives(server: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the server's group still works; one that ended and was not collected does not."""
    server.poll()
    found = psutil.process_iter(["status"])
    return any(_group(p.pid) == server.pid and p.info["status"] != psutil.STATUS_ZOMBIE for p in found)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _wait(urls: Sequence[str], servers: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    for url in urls:
        while not _answers(url):
            if any(server.poll() is not None for server in servers):
                raise ConfigurationError("A server ended while starting; its last lines above say why.")
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{url} did not answer within {SECONDS_TO_START} s.")
            time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False

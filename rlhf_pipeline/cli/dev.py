"""`rlhf dev`: runs the web app, Dagster's web server and daemon and MLflow's UI until Ctrl-C."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.cli.serve import find_free_port
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.registry import web_server_command
from rlhf_pipeline.supervisor import ServerCommand, SupervisorPlan, exec_supervisor

HOST = "127.0.0.1"
LOCATION = "rlhf_pipeline"  # as in workspace.yaml


def dev(
    dagster_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of Dagster's web server.")
    ] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of MLflow's UI.")] = 5000,
    web_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the web app, where people vote.")
    ] = 8080,
) -> None:
    """Start the web app, Dagster (web server and daemon) and MLflow's UI on loopback and print
    their addresses.
    """
    from rlhf_pipeline.loop_settings import LoopSettings  # imports every stage

    workspace = Workspace.from_environment(initialising=True)
    LoopSettings.read(workspace.settings)  # refuse an invalid file before anything starts
    for port, option in (
        (web_port, "--web-port"),
        (dagster_port, "--dagster-port"),
        (mlflow_port, "--mlflow-port"),
    ):
        if find_free_port(HOST, port) is None:
            raise ConfigurationError(
                f"Port {port} on {HOST} is taken. Choose another with {option}."
            )
    initialise(workspace)
    artifacts = workspace.settings.home / "mlflow" / "artifacts"
    mlflow, mlflow_environ = web_server_command(
        workspace.settings.tracking_uri, artifacts, host=HOST, port=mlflow_port
    )
    web = [
        str(Path(sys.executable).parent / "rlhf"),
        "serve",
        "--host",
        HOST,
        "--port",
        str(web_port),
    ]
    # a socket below the home could have too long a path
    scratch = tempfile.mkdtemp(prefix="rlhf-dev-")
    answering = (
        f"{web_port}/api/v1/healthz",
        f"{dagster_port}/server_info",
        f"{mlflow_port}/health",
    )
    runs = workspace.registry.tracking.runs_url.partition("#")[2]
    shown = (
        ("Web app  ", web_port, (("/", "the state of the loop"), ("/annotate", "vote"))),
        (
            "Dagster  ",
            dagster_port,
            (
                ("/asset-groups", "the graph of all stages"),
                ("/overview/sensors", "what each sensor waits for"),
            ),
        ),
        (
            "MLflow   ",
            mlflow_port,
            ((f"/#{runs}", "runs by day"), ("/#/models", "model versions")),
        ),
    )
    plan = SupervisorPlan(
        servers=[
            ServerCommand(web),
            ServerCommand(mlflow),
            *_dagster_servers(Path(scratch), dagster_port, workspace.settings),
        ],
        folder=str(workspace.settings.home),
        urls=[f"http://{HOST}:{where}" for where in answering],
        ready="\n"
        + "".join(
            f"  {name}http://{HOST}:{port}\n"
            + "".join(f"           http://{HOST}:{port}{path}  {what}\n" for path, what in pages)
            for name, port, pages in shown
        )
        + "\n  Ctrl-C ends all of them.\n",
        scratch=scratch,
    )
    exec_supervisor(plan, _environ(workspace, mlflow_port, dagster_port) | mlflow_environ)


def _dagster_servers(scratch: Path, port: int, settings: Settings) -> list[ServerCommand]:
    """Dagster's code server, and the web server and daemon that share it: as `dagster dev`, without
    its launcher.

    `code-server start` puts a proxy in front, so that "Reload" in Dagster's UI loads changed code.
    Web server and daemon ask for its id once a second; with a fixed id the proxy answers by itself,
    which saves 0.4 s of CPU a minute. After a reload the daemon has the new code within a minute,
    when it next refreshes its workspace.
    """
    binaries = Path(sys.executable).parent
    socket, workspace = str(scratch / "code-server"), scratch / "workspace.yaml"
    location = {"grpc_server": {"location_name": LOCATION, "host": "localhost", "socket": socket}}
    workspace.write_text(json.dumps({"load_from": [location]}), encoding="utf-8")  # JSON is YAML
    code = [
        "code-server",
        "start",
        "--python-file",
        str(checkout() / "definitions.py"),
        "--location-name",
        LOCATION,
    ]
    webserver = ["-h", HOST, "-p", str(port), "--live-data-poll-rate", "2000", "-w", str(workspace)]
    log_format = ["--log-format", "json"] if settings.log_format == "json" else []
    log_level = settings.log_level or "warning"
    return [
        ServerCommand(
            [
                str(binaries / "dagster"),
                *code,
                "--fixed-server-id",
                LOCATION,
                "--socket",
                socket,
                "--log-level",
                log_level,
                *log_format,
            ]
        ),
        ServerCommand([str(binaries / "dagster-webserver"), *webserver, *log_format], after=socket),
        ServerCommand(
            [str(binaries / "dagster-daemon"), "run", "-w", str(workspace), *log_format],
            after=socket,
        ),
    ]


def _environ(workspace: Workspace, mlflow_port: int, dagster_port: int) -> dict[str, str]:
    settings = workspace.settings
    is_demo = settings.demo_state.exists() and "annotators" not in settings.model_fields_set
    annotators = {"RLHF_ANNOTATORS": "simulated"} if is_demo else {}
    ours = {
        **settings.environ,
        "RLHF_MLFLOW_UI": f"http://{HOST}:{mlflow_port}",
        "RLHF_DAGSTER_UI": f"http://{HOST}:{dagster_port}",
    }
    return os.environ | annotators | ours

"""`rlhf dev`: runs the web app, Dagster's web server and daemon and MLflow's UI until Ctrl-C."""

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rlhf_pipeline.cli.context import Workspace, application_file
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.cli.serve import find_free_port
from rlhf_pipeline.cli.supervisor import supervise
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.registry import web_server_command

HOST = "127.0.0.1"


def dev(
    web_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the web app, where people vote.")
    ] = 8080,
) -> None:
    """Start the web app, Dagster (web server and daemon) and MLflow's UI on loopback and print
    their addresses, the first admin's login link last.

    Dagster and MLflow listen where RLHF_DAGSTER_UI and RLHF_MLFLOW_UI say, so that the links in
    runs of any command lead to them.
    """
    from rlhf_pipeline.improve.loop_settings import LoopSettings  # imports every stage
    from rlhf_pipeline.web.auth import create_first_admin

    workspace = Workspace.from_environment(initialising=True)
    settings = workspace.settings
    LoopSettings.read(settings)  # refuse an invalid file before anything starts
    dagster_port = _find_port(settings.dagster_ui, 3000)
    mlflow_port = _find_port(settings.mlflow_ui, 5000)
    for port, cure in (
        (web_port, "--web-port"),
        (dagster_port, "RLHF_DAGSTER_UI"),
        (mlflow_port, "RLHF_MLFLOW_UI"),
    ):
        if find_free_port(HOST, port) is None:
            raise ConfigurationError(f"Port {port} on {HOST} is taken. Choose another with {cure}.")
    initialise(workspace)
    binaries = Path(sys.executable).parent
    web, dagster, mlflow = (
        f"http://{HOST}:{port}" for port in (web_port, dagster_port, mlflow_port)
    )
    if "web_url" not in settings.model_fields_set:
        settings = settings.model_copy(update={"web_url": web})
    admin = create_first_admin(workspace.store, settings)
    login = "log in as the first admin, {}, once, within 24 hours: {}\n" if admin else ""
    runs = workspace.registry.tracking.runs_url.partition("#")[2]
    mlflow_command, mlflow_environ = web_server_command(
        settings.tracking_uri, settings.home / "mlflow" / "artifacts", host=HOST, port=mlflow_port
    )
    workspace.store.close()
    own = Path.cwd() / "workspace.yaml"  # of a project with its own assets: `rlhf new`
    locations = own if own.is_file() else application_file("workspace.yaml")
    supervise(
        [
            [str(binaries / "rlhf"), "serve", "--host", HOST, "--port", str(web_port)],
            mlflow_command,
            [
                *(str(binaries / "dagster"), "dev", "-h", HOST, "-p", str(dagster_port)),
                *("-w", str(locations)),
                # ticks would scroll the addresses and the login link away
                *("--log-level", settings.log_level or "warning"),
            ],
        ],
        # not the checkout: Dagster prefers a .env of the working directory to its environment
        folder=settings.home,
        environ=os.environ
        | _annotators(settings)
        | settings.environ
        | mlflow_environ
        | _import_from(locations.parent),
        urls=[f"{web}/api/v1/healthz", f"{dagster}/server_info", f"{mlflow}/health"],
        ready=f"""
  Web app  {web}
           {web}/  the state of the loop
           {web}/annotate  vote
  Dagster  {dagster}
           {dagster}/asset-groups  the graph of all stages
           {dagster}/overview/sensors  what each sensor waits for
  MLflow   {mlflow}
           {mlflow}/#{runs}  runs by day
           {mlflow}/#/models  model versions

  Ctrl-C ends all of them.
{login.format(*admin or ())}""",
    )


def _find_port(url: str, usual: int) -> int:
    """The port of an address on this machine; `usual` for one of a proxy.

    >>> _find_port("http://127.0.0.1:5001", 5000), _find_port("https://mlflow.example.org", 5000)
    (5001, 5000)
    """
    address = urlsplit(url)
    return (address.hostname in (HOST, "localhost") and address.port) or usual


def _import_from(folder: Path) -> dict[str, str]:
    """Dagster's processes find the package of a project's own definitions in its folder."""
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    }


def _annotators(settings: Settings) -> dict[str, str]:
    """The demo's annotators go on, unless the settings name others."""
    is_demo = settings.demo_state.exists() and "annotators" not in settings.model_fields_set
    return {"RLHF_ANNOTATORS": "simulated"} if is_demo else {}

"""`rlhf replay`: imported days lived through again, each predicted by the model of that day, as if the loop had run then."""

import os
import subprocess
import sys

import typer

from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.cli.init import prepare


def replay() -> None:
    """Replay the imported days that wait, oldest first; after a kill or a failure a second call goes on from there."""
    workspace = Workspace.here()
    workspace.store.migrate()
    sys.exit(replay_pending(workspace))


def replay_pending(workspace: Workspace) -> int:
    """Replay all days that wait, in a process of the application beside this library; its exit code, 0 where no day waits.

    Each day is said in a line. What is left after a kill stays asked for: the sensor or the next call goes on.
    """
    if not workspace.store.replays.pending():
        typer.echo("No imported day waits for its replay.")
        return 0
    prepare(workspace)
    workspace.registry.initialise()
    settings = workspace.settings
    # Threads that wait actively cost minutes where other processes want the cores.
    environ = os.environ | {"RLHF_HOME": str(settings.home), "OMP_WAIT_POLICY": "PASSIVE"} | settings.dagster_environ
    return subprocess.run([sys.executable, "-m", "replay"], cwd=checkout(), env=environ, check=False).returncode

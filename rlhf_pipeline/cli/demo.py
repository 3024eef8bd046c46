"""`rlhf demo`: the whole loop for several simulated days, through the same jobs and sensors that a team runs."""

import os
import subprocess
import sys
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.cli.init import initialise, prepare
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.files import write_whole
from rlhf_pipeline.records import AnnotatorKind


def demo(
    days: Annotated[int, typer.Option(min=1, max=60, help="Simulated days to add to the history.")] = 8,
) -> None:
    """Run the loop for some days with simulated annotators whose taste changes; a second call continues the history."""
    # Threads that wait actively cost minutes where other processes want the cores.
    # The demo drives Dagster, which this library does not know: it runs in the application beside it.
    workspace = Workspace.here()
    claim(workspace)
    initialise(workspace)
    settings = workspace.settings
    ours = {"RLHF_HOME": str(settings.home), "RLHF_ANNOTATORS": "simulated", "OMP_WAIT_POLICY": "PASSIVE"}
    environ = os.environ | ours | settings.dagster_environ
    sys.exit(subprocess.run([sys.executable, "-m", "demo", "--days", str(days)], cwd=checkout(), env=environ, check=False).returncode)


def claim(workspace: Workspace) -> None:
    """Mark the home as the demo's. Raises ConfigurationError for one with votes of anybody but simulated annotators."""
    settings, store = workspace.settings, workspace.store
    prepare(workspace)
    others = sorted(store.votes.annotator_kinds() - {AnnotatorKind.SIMULATED})
    if others:
        raise ConfigurationError(
            f"Project {settings.project!r} in {settings.home} holds {' and '.join(others)} votes; the demo would mix simulated ones in. "
            "Name another folder, as in `make demo RLHF_HOME=var/demo`."
        )
    if not settings.demo_state.exists():
        write_whole(settings.demo_state, b"{}")

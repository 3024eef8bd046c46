"""`rlhf demo`: runs the loop for simulated days through the jobs and sensors that a team uses."""

from typing import Annotated

import typer

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise, prepare
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.records import AnnotatorKind
from rlhf_pipeline.store import Store


def demo(
    days: Annotated[
        int, typer.Option(min=1, max=60, help="Simulated days to add to the history.")
    ] = 6,
) -> None:
    """Run the loop for several days with simulated annotators whose taste changes; another call
    adds days.
    """
    workspace = Workspace.from_environment(initialising=True)
    claim(workspace)
    initialise(workspace)
    workspace.store.close()
    load_driver(workspace.settings, RLHF_ANNOTATORS="simulated").demo(days)


def claim(workspace: Workspace) -> None:
    """Mark the home as the demo's. Raises ConfigurationError for a home with votes that are not
    simulated.
    """
    prepare(workspace)
    settings, store = workspace.settings, workspace.store
    others = _other_annotator_kinds(store)
    if others:
        raise ConfigurationError(
            f"Project {settings.project!r} in {settings.home} holds {' and '.join(others)} votes; "
            "the demo would mix simulated ones in. Name another folder, as in "
            "`make demo RLHF_HOME=var/demo`."
        )
    if not settings.demo_state.exists():
        n = store.comparisons.count()
        if n:
            raise ConfigurationError(
                f"{settings.home} holds {n:,} comparisons, but {settings.demo_state.name}, which "
                f"records the progress of the demo, is missing: the demo would overwrite its "
                f"days. Put "
                f"{settings.demo_state.name} back from a backup. To start over, name another "
                "folder or move this one away."
            )
        write_atomically(settings.demo_state, b"{}")


def _other_annotator_kinds(store: Store) -> list[AnnotatorKind]:
    """Kinds of annotators with votes, except simulated ones."""
    return sorted(store.votes.annotator_kinds() - {AnnotatorKind.SIMULATED})

"""`rlhf init`: a project that can run. Databases, Dagster's home, and a first policy as champion version 1."""

import shutil

import typer
from rich.progress import Progress

from rlhf_pipeline.cli.context import Workspace, checkout


def init() -> None:
    """Make the databases and Dagster's home below RLHF_HOME and register the first policy. Safe to repeat."""
    initialise(Workspace.here())


def initialise(workspace: Workspace) -> None:
    settings = workspace.settings
    home = settings.home / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkout() / "dagster_home" / "dagster.yaml", home / "dagster.yaml")
    workspace.store.migrate()
    workspace.registry.initialise()
    with Progress(transient=True) as bar:
        task = bar.add_task("first policy: pretraining the embedded language model", total=None)
        champion = workspace.champions.initialise(
            settings.policy, progress=lambda done, total, note="": bar.update(task, completed=done, total=total)
        )
    typer.echo(f"{settings.home}: project {settings.project!r} is ready, champion policy {champion.label}")

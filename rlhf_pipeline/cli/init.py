"""`rlhf init`: a project that can run. Databases, Dagster's home, and a first policy as champion version 1."""

import shutil
from pathlib import Path

import typer
from rich.progress import Progress

from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.errors import ConfigurationError


def init() -> None:
    """Make the databases and Dagster's home below RLHF_HOME and register the first policy. Safe to repeat."""
    initialise(Workspace.here())


def initialise(workspace: Workspace) -> None:
    settings = workspace.settings
    _make_dagster_home(settings.home)
    workspace.store.migrate()
    workspace.registry.initialise()
    with Progress(transient=True) as bar:
        task = bar.add_task("first policy: pretraining the embedded language model", total=None)
        champion = workspace.champions.initialise(
            settings.policy, progress=lambda done, total, note="": bar.update(task, completed=done, total=total)
        )
    typer.echo(f"{settings.home}: project {settings.project!r} is ready, champion policy {champion.label}")


def _make_dagster_home(home: Path) -> None:
    template = checkout() / "dagster_home" / "dagster.yaml"
    try:
        (home / "dagster").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(template, home / "dagster" / "dagster.yaml")
    except OSError as cause:
        raise ConfigurationError(
            f"RLHF_HOME {home} cannot hold a project: {cause.strerror or cause}. Name a folder that can be made and written."
        ) from cause

"""`rlhf runs`: what ran, newest first, from MLflow, where every materialisation is tracked."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rlhf_pipeline.cli.context import Workspace


def runs(limit: Annotated[int, typer.Option(min=1, max=1000, help="How many to show.")] = 20) -> None:
    """The latest materialisations with their numbers and the Dagster run each belongs to."""
    workspace = Workspace.here()
    workspace.require_initialised()
    table = Table("started", "stage", "day", "status", "numbers", "Dagster run", title=f"runs of {workspace.settings.project}")
    found = workspace.registry.runs(limit)
    for run in found:
        numbers = ", ".join(f"{k} {v:.4g}" for k, v in list(run.metrics.items())[:3])
        table.add_row(
            f"{run.started_at:%Y-%m-%d %H:%M:%S}",
            run.tags.get("dagster.asset", run.name),
            run.tags.get("dagster.partition", "-"),
            run.status,
            numbers,
            run.tags.get("dagster.run_id", "-")[:8],
        )
    Console().print(table if found else f"Nothing ran yet in {workspace.settings.home}. `make demo` runs the loop.")

"""`rlhf runs`: lists materialisations, newest first, from MLflow, which tracks each of them."""

from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import show


def runs(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs to show.")] = 20,
) -> None:
    """List the latest materialisations with their numbers and Dagster runs."""
    workspace = Workspace.open()
    rows = [
        {
            "started": f"{run.started_at:%Y-%m-%d %H:%M:%S}",
            "stage": run.tags.get("dagster.asset", run.name),
            "day": run.tags.get("dagster.partition", "-"),
            "status": run.status,
            "numbers": ", ".join(f"{k} {v:.4g}" for k, v in list(run.metrics.items())[:3]),
            "Dagster run": run.tags.get("dagster.run_id", "-")[:8],
        }
        for run in workspace.registry.latest_runs(limit)
    ]
    empty = f"Nothing ran yet in {workspace.settings.home}. `make demo` runs the loop."
    show(rows, title=f"runs of {workspace.settings.project}", empty=empty)

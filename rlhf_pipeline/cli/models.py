"""`rlhf models`: what the registry holds."""

import typer
from rich.console import Console
from rich.table import Table

from rlhf_pipeline.cli.context import Workspace

app = typer.Typer(help="Models in the registry.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Models in the registry."""


@app.command("list")
def list_models() -> None:
    """Every version with its aliases, parent and the metrics frozen at registration."""
    workspace = Workspace.here()
    workspace.require_initialised()
    table = Table("model", "aliases", "parent", "registered", "metrics", title=f"models of {workspace.settings.project}")
    models = workspace.registry.list_models()
    for model in models:
        metrics = ", ".join(f"{k} {v:.3g}" for k, v in sorted(model.metrics.items())[:4])
        table.add_row(
            f"{model.name}@{model.version}", ", ".join(model.aliases), model.parent or "-", f"{model.created_at:%Y-%m-%d %H:%M}", metrics
        )
    Console().print(table if models else f"No models yet in {workspace.settings.home}. `rlhf init` registers the first policy.")

"""`rlhf cache`: shows what completions are cached and what they cost; never shows a text."""

from datetime import timedelta
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.errors import ConfigurationError

app = typer.Typer(help="Cached completions.", no_args_is_help=True)
MILLION = 1_000_000


@app.callback()
def group() -> None:
    """Cached completions."""


@app.command("stats")
def stats() -> None:
    """Show the size of the cache and the cost by asset, provider and model."""
    store = Workspace.open_current().store
    held = store.completions_cache.stats()
    since = (
        f", {held.oldest:%Y-%m-%d} to {held.newest:%Y-%m-%d}" if held.oldest and held.newest else ""
    )
    echo(
        f"{held.n_entries:,} completions kept, {held.n_characters / MILLION:,.1f} million "
        f"characters{since}; {held.n_used_again:,} were reused"
    )
    for run in store.generation.paused_runs():
        n_open = run.states.get("open", 0) + run.states.get("leased", 0)
        echo(
            f"paused until {run.parked_until:%Y-%m-%d %H:%M} UTC: {n_open:,} of {run.n_items:,} of "
            f"{run.asset}. {run.parked_why}"
        )
    rows = [
        {
            "asset": asset,
            "provider": provider,
            "model": model,
            "calls": f"{spent.n_calls:,}",
            "prompt tokens": f"{spent.n_prompt_tokens:,}",
            "completion tokens": f"{spent.n_tokens:,}",
            "spent": f"{spent.cost / 1e9:.6f}",
            "bill unknown": f"{spent.n_unknown:,} (at worst {spent.cost_unknown / 1e9:.6f})"
            if spent.n_unknown
            else "0",
        }
        for (asset, provider, model), spent in store.generation.sum_spending(
            "asset", "provider", "model"
        )
    ]
    show(
        rows,
        title="calls",
        empty="No completion has been requested yet. Run `rlhf generate`, or materialise "
        "completions.",
    )


@app.command("prune")
def prune(
    unused_days: Annotated[
        float | None,
        typer.Option(
            "--unused-days", min=0, help="Delete completions that were not used for this many days."
        ),
    ] = None,
    keep_mb: Annotated[
        float | None,
        typer.Option(
            "--keep-mb",
            min=0,
            help="Then delete the least recently used until this many megabytes are left.",
        ),
    ] = None,
) -> None:
    """Delete cached completions, except those of running runs. A deleted one is made and paid for
    again when it is needed.
    """
    if unused_days is None and keep_mb is None:
        raise ConfigurationError("Name what to delete: --unused-days 90, or --keep-mb 500.")
    workspace = Workspace.open_current()
    since = (
        None
        if unused_days is None
        else workspace.store.database.clock.now() - timedelta(days=unused_days)
    )
    n, size = workspace.store.completions_cache.prune(
        unused_since=since, keep_characters=None if keep_mb is None else int(keep_mb * MILLION)
    )
    echo(f"{n:,} completions deleted, {size / MILLION:,.1f} million characters")

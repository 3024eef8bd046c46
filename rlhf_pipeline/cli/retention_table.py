"""Shows what `rlhf storage retain` deleted, or would delete."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from rlhf_pipeline.cli.tables import console, echo, plain_text
from rlhf_pipeline.retention import DeletableItem

NAMES_PER_KIND = 20


def show_items(items: Sequence[DeletableItem], *, dry_run: bool) -> None:
    """One row per item, at most `NAMES_PER_KIND` of a kind, and a row of sums."""
    title = "would be deleted" if dry_run else "deleted"
    if not items:
        echo(f"Nothing {'would be' if dry_run else 'was'} deleted.")
        return
    table = Table("kind", "name", "number", "MB", title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for kind, of_kind in groupby(items, key=lambda item: item.kind):
        _add_rows(table, kind, list(of_kind))
    table.add_section()
    table.add_row(plain_text("all"), "", f"{sum(item.n for item in items):,}", _format_mb(items))
    console().print(table)


def _add_rows(table: Table, kind: str, items: Sequence[DeletableItem]) -> None:
    for item in items[:NAMES_PER_KIND]:
        table.add_row(plain_text(kind), plain_text(item.name), f"{item.n:,}", _format_mb([item]))
    rest = items[NAMES_PER_KIND:]
    if rest:
        table.add_row(
            plain_text(kind),
            plain_text(f"and {len(rest):,} more, to {rest[-1].name}"),
            f"{sum(item.n for item in rest):,}",
            _format_mb(rest),
        )


def _format_mb(items: Sequence[DeletableItem]) -> str:
    known = [item.n_bytes for item in items if item.n_bytes is not None]
    return f"{sum(known) / 1e6:,.3f}" if known else "-"

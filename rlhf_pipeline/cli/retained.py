"""Shows what `rlhf storage retain` deleted, or would delete."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from rlhf_pipeline.cli.showing import console, echo, plain
from rlhf_pipeline.retention import Item

NAMES_PER_KIND = 20


def show(items: Sequence[Item], *, dry_run: bool) -> None:
    """One row per item, at most `NAMES_PER_KIND` of a kind, and a row of sums."""
    title = "would be deleted" if dry_run else "deleted"
    if not items:
        echo(f"Nothing {'would be' if dry_run else 'was'} deleted.")
        return
    table = Table("kind", "name", "number", "MB", title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for kind, of_kind in groupby(items, key=lambda item: item.kind):
        _add(table, kind, list(of_kind))
    table.add_section()
    table.add_row(plain("all"), "", f"{sum(item.n for item in items):,}", _mb(items))
    console().print(table)


def _add(table: Table, kind: str, items: Sequence[Item]) -> None:
    for item in items[:NAMES_PER_KIND]:
        table.add_row(plain(kind), plain(item.name), f"{item.n:,}", _mb([item]))
    rest = items[NAMES_PER_KIND:]
    if rest:
        table.add_row(
            plain(kind),
            plain(f"and {len(rest):,} more, to {rest[-1].name}"),
            f"{sum(item.n for item in rest):,}",
            _mb(rest),
        )


def _mb(items: Sequence[Item]) -> str:
    known = [item.n_bytes for item in items if item.n_bytes is not None]
    return f"{sum(known) / 1e6:,.3f}" if known else "-"

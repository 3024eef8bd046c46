"""Prints for every command: lines, tables, JSON and progress bars.

Stored text may contain escape sequences and Rich markup: it is printed literally.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rlhf_pipeline.core import protocols
from rlhf_pipeline.core.terminal import escape_controls, escape_markup

if TYPE_CHECKING:
    import pandas as pd


def console() -> Console:
    """A console that does not squeeze tables into 80 columns where a pipe has no width."""
    return Console(width=None if sys.stdout.isatty() else 160)


def echo(
    message: object = "",
    *,
    err: bool = False,
    nl: bool = True,
    fg: str | None = None,
    file: IO[str] | None = None,
) -> None:
    """`typer.secho` of a text whose control characters are escaped; `file` instead of standard
    output, flushed.
    """
    typer.secho(escape_controls(str(message)), file=file, err=err, nl=nl, fg=fg)


def plain_text(text: str, style: str = "") -> Text:
    """A cell that is shown as it is: without markup, control characters escaped."""
    return Text(escape_controls(text), style)


def show(
    rows: Sequence[Mapping[str, str]], *, title: str, empty: str, caption: str | None = None
) -> None:
    """Print a table of texts, or, without rows, the sentence `empty`."""
    if not rows:
        echo(empty)
        return
    table = Table(*map(escape_markup, rows[0]), title=plain_text(title, "table.title"))
    if caption is not None:
        table.caption = plain_text(caption, "table.caption")
    for row in rows:
        table.add_row(*map(plain_text, row.values()))
    console().print(table)


def show_json(rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
    """One JSON array, or one object."""
    echo(json.dumps(rows, ensure_ascii=False, indent=1))


def build_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON objects: missing values as null, times as ISO 8601 UTC, fractions with 15
    digits.
    """
    shape = {"date_format": "iso", "date_unit": "us", "double_precision": 15, "force_ascii": False}
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", **shape))
    return rows


def format_interval(value: Any, low: Any, high: Any) -> str:
    """`0.912 [0.871, 0.947]`; a dash where nothing was measured."""
    import pandas as pd

    return "-" if pd.isna(value) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


@contextmanager
def progress_bar(what: str) -> Iterator[protocols.Progress]:
    """A Progress that draws a bar on standard error if that is a terminal."""
    watched = Console(stderr=True)
    columns = (
        TextColumn(escape_markup(what)),
        *Progress.get_default_columns()[1:],
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=watched, transient=True, disable=not watched.is_terminal
    ) as drawn:
        task = drawn.add_task("", total=None)

        def progress(done: int, total: int, note: str = "") -> None:
            drawn.update(task, completed=done, total=total or None, description=escape_markup(note))

        yield progress

"""Shows driven runs in a terminal: progress bars, quiet logs, and Ctrl-C taken once."""

import logging
import signal
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rlhf_pipeline import protocols

INTERRUPTED = 130  # exit code after Ctrl-C: 128 + SIGINT


def make_console(width: int) -> Console:
    """A console of this width where there is no terminal: a pipe has none, and Rich assumes 80."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def make_progress_bars(console: Console) -> Progress:
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}"),
    )
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
    )


def show_progress(bars: Progress) -> Callable[[str], protocols.Progress]:
    """A bar per stage while it works, in place of lines in the run's log."""

    def progress_for(stage: str) -> protocols.Progress:
        task = bars.add_task(stage, total=1, note="", visible=False)

        def report(done: int, total: int, note: str = "") -> None:
            bars.update(task, completed=done, total=total, note=note, visible=done < total)

        return report

    return progress_for


def interrupt_once(*_: object) -> NoReturn:
    """A signal handler: the first Ctrl-C ends the command, later ones do not disturb its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def silence_logs() -> None:
    """Keep warnings and logs out of the terminal; Dagster keeps its own event log."""
    warnings.filterwarnings("ignore")
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    # Frouros gives the root logger a handler of its own, and Great Expectations logs every folder
    # that it makes.
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler])
    for name in ("alembic", "great_expectations", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)

"""`rlhf replay`: predicts imported days with the model of each day, as if the loop had run then."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import homes


def replay(
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished",
            help="Also replay days of an import that was killed or failed, with the votes that "
            "were imported.",
        ),
    ] = False,
    never_asked: Annotated[
        bool,
        typer.Option(
            "--never-asked",
            help="Also replay days that were imported with `import preferences --no-replay`.",
        ),
    ] = False,
) -> None:
    """Replay the imported days that wait, oldest first; after a kill or a failure the next call
    continues.
    """
    workspace = Workspace.open()
    if unfinished:
        accept_unfinished(workspace)
    if never_asked:
        days = workspace.store.replays.unrequested_days()
        workspace.store.replays.request(days)
        echo(
            f"requested: {format_count(len(days), 'day')} from {days[0]} to {days[-1]}"
            if days
            else "no imported day was left out"
        )
    replay_pending(workspace)


def accept_unfinished(workspace: Workspace) -> None:
    """Let days of unfinished imports be replayed as they are. Raises DatasetError while an import
    runs.
    """
    with hold_import_lock(workspace, "Its days are incomplete: let it finish, then replay."):
        halves = workspace.store.imports.accept_unfinished()
    for half in halves:
        days = (
            f"{format_count(half.n_days, 'day')} from {half.first_day}"
            if half.first_day
            else "its days"
        )
        echo(f"accepted as they are: {days}, of the unfinished import of {half.file}")
    if not halves:
        echo("no import is unfinished")


@contextmanager
def hold_import_lock(workspace: Workspace, consequence: str) -> Iterator[None]:
    """Hold the lock of imports, which would count each other's rows; it ends with the process.
    Raises DatasetError, with the `consequence`, while an import holds it.
    """
    folder = workspace.settings.home / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as cause:
        raise DatasetError(
            f"An import into {workspace.settings.home} is running. {consequence}"
        ) from cause
    try:
        yield
    finally:
        homes.record_end(workspace.settings, workspace.store.database)
        lock.release()


def replay_pending(workspace: Workspace, *, after_import: bool = False) -> None:
    """Replay all days that wait, one line each.

    After a kill the remaining days still wait, and the sensor or the next call continues. With
    `after_import`, a home in use by the daemon or another command is not an error.
    """
    if not workspace.store.replays.pending_days():
        echo("No imported day waits for its replay.")
        return
    prepare(workspace)
    workspace.registry.tracking.open()
    workspace.store.close()
    load_driver(workspace.settings).replay(after_import=after_import)

"""`rlhf replay`: predicts imported days with the model of each day, as if the loop had run then."""

from typing import Annotated

import typer
from filelock import FileLock, Timeout

from rlhf_pipeline.cli.application import load_driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import DatasetError


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
            help="Also replay days that were imported with `import votes --no-replay`.",
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
            f"requested: {len(days)} days from {days[0]} to {days[-1]}"
            if days
            else "no imported day was left out"
        )
    replay_pending(workspace)


def accept_unfinished(workspace: Workspace) -> None:
    """Let days of unfinished imports be replayed as they are. Raises DatasetError while an import
    runs.
    """
    lock = import_lock(workspace.settings)
    try:
        with lock:
            taken = workspace.store.imports.accept_unfinished()
    except Timeout as cause:
        raise DatasetError(
            f"An import into {workspace.settings.home} is running, so its days are incomplete. "
            "Let it finish, then replay."
        ) from cause
    for half in taken:
        days = f"{half.n_days} days from {half.first_day}" if half.first_day else "its days"
        echo(f"accepted as they are: {days}, of the unfinished import of {half.file}")
    if not taken:
        echo("no import is unfinished")


def import_lock(settings: Settings) -> FileLock:
    """The lock that an import holds until it ends, however it ends."""
    folder = settings.home / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / ".lock", timeout=0)


def replay_pending(workspace: Workspace, *, after_import: bool = False) -> None:
    """Replay all days that wait, one line each.

    After a kill the remaining days still wait, and the sensor or the next call continues. With
    `after_import`, a home in use by the daemon or another command is not an error.
    """
    if not workspace.store.replays.pending_days():
        echo("No imported day waits for its replay.")
        return
    prepare(workspace)
    workspace.registry.initialise()
    workspace.store.close()
    load_driver(workspace.settings).replay(after_import=after_import)

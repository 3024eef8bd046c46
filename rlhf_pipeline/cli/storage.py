"""`rlhf check`, `backup` and `restore`: the databases and files of a home."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rlhf_pipeline import backups, homes
from rlhf_pipeline.cli import driver, storage_check
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.home_activity import refuse_while_active
from rlhf_pipeline.cli.init import make_missing_databases, prepare, server_databases
from rlhf_pipeline.cli.tables import console, echo, plain_text, progress_bar
from rlhf_pipeline.config import HOME_FACTS, HomeFacts, Settings
from rlhf_pipeline.errors import ConfigurationError, StoreError
from rlhf_pipeline.registry import make_tables

Backup = Annotated[Path, typer.Argument(help="Folder of the backup.", metavar="FOLDER")]


def check() -> None:
    """Read databases, models, frames and file hashes; name what is damaged, lost or contradictory,
    with exit code 1.
    """
    settings = Settings.read()
    with suppress(StoreError):  # a damaged database: the findings name it
        homes.refuse_broken(settings)
    Workspace(settings).require_initialised()
    with progress_bar("check") as progress:
        found = list(storage_check.find_faults(settings, progress))
    table = Table(
        "what", "found", "", title=plain_text(f"storage of {settings.home}", "table.title")
    )
    for finding in found:
        table.add_row(
            plain_text(finding.what),
            plain_text(finding.found),
            "[green]sound[/]" if finding.is_sound else "[red]trouble[/]",
        )
    console().print(table)
    if not all(finding.is_sound for finding in found):
        raise typer.Exit(1)


def backup(folder: Backup) -> None:
    """Copy everything that cannot be made again into a new FOLDER, even while the project is in
    use.
    """
    workspace = Workspace.open()
    settings = workspace.settings
    facts = HomeFacts.load(settings.home) or HomeFacts.of(settings)
    with progress_bar("backup") as progress:
        manifest = backups.back_up(
            settings.home, facts, _database_urls(settings), folder.absolute(), progress=progress
        )
    echo(f"{folder}: {backups.summary(manifest)}")
    if settings.frames_url is not None:
        echo("The frames are in an object store and not in it; they can be materialised again.")


def restore(
    folder: Backup,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Overwrite a home that holds data; its files are set aside."
        ),
    ] = False,
) -> None:
    """Verify a backup and put it into RLHF_HOME; refused where data is present."""
    folder, settings = folder.absolute(), Settings.read(restoring=True)
    manifest = backups.Manifest.load(folder)
    if (
        "project" in settings.model_fields_set
        and settings.project != manifest.project
        and not replace
    ):
        raise ConfigurationError(
            f"The backup holds project {manifest.project!r}, RLHF_PROJECT says "
            f"{settings.project!r}. Unset it."
        )
    if replace:
        # with the home's own settings, before those of the backup apply
        refuse_while_active(settings, replacing=True)
    settings = settings.model_copy(
        update={"organization": manifest.organization, "project": manifest.project}
    )
    workspace = Workspace(settings)
    home_id = _find_home_id(folder, settings)
    if settings.server_url is not None:
        make_missing_databases(server_databases(settings, settings.server_url, home_id))
    makers = {"mlflow": make_tables, "dagster": lambda url: _make_dagster_tables(settings)}
    with progress_bar("restore") as progress:
        backups.restore(
            folder,
            settings.home,
            _database_urls(settings),
            makers,
            replace=replace,
            progress=progress,
        )
    prefix = settings.database_prefix if settings.server_url else None
    backups.write_facts(
        folder,
        settings.home,
        home_id=home_id,
        server_url=settings.server_url,
        database_prefix=prefix,
        config=settings.config,
    )
    lost = backups.lost_config(folder)
    if settings.config is None and lost is not None:
        echo(
            f"{lost}, the settings of the backed up home, is not on this machine: defaults apply. "
            "To name another file: RLHF_CONFIG=FILE rlhf init."
        )
    prepare(workspace)
    backups.record_replaced(settings.home, manifest, workspace.store.file_hashes)
    workspace.store.close()
    echo(
        f"{settings.home}: {backups.summary(manifest)}, as of {manifest.made_at:%Y-%m-%d %H:%M} UTC"
    )


def _find_home_id(backup: Path, settings: Settings) -> str | None:
    """The id of a restored home; None where neither it nor its backup has one: then it gets one at
    the end.

    The databases that it replaces must be its own: those of the present home, of one that an
    earlier restore set aside before it was killed, or of the backed up home, which is lost or on
    another machine. Their id is kept.
    """
    own = sorted(settings.home.glob(f"replaced-*/{HOME_FACTS}"), reverse=True)
    homes = [settings.home, *(path.parent for path in own), backup]
    known = [
        facts.home_id
        for facts in map(HomeFacts.load, homes)
        if facts is not None and facts.home_id is not None
    ]
    if settings.server_url is not None:
        with server_databases(settings, settings.server_url, None).lock_owner() as theirs:
            if theirs in known:
                return theirs
    return next(iter(known), None)


def _make_dagster_tables(settings: Settings) -> None:
    driver.read_facts("make-tables", settings.dagster_environ)


def _database_urls(settings: Settings) -> dict[str, str | None]:
    mlflow = {} if settings.tracking_uri.startswith("http") else {"mlflow": settings.tracking_uri}
    return {"store": settings.store_url, **mlflow, "dagster": settings.dagster_storage}

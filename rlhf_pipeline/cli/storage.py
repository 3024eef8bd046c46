"""`rlhf check`, `backup` and `restore`: the databases and files of a home."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
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
from rlhf_pipeline.retention import DeletableItem

app = typer.Typer(help="What housekeeping deletes.", no_args_is_help=True)
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


@app.callback()
def storage() -> None:
    """Make Typer build a group of one command."""


@app.command("retain")
def retain(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be deleted.")
    ] = False,
) -> None:
    """Delete what the settings `keep_…` no longer keep: old runs, ticks, reports, caches, and files
    of model versions that never served.
    """
    settings = Workspace.open().settings
    with progress_bar("retain") as progress:
        facts = driver.read_facts(
            "list-retained" if dry_run else "retain",
            settings.variables | settings.dagster_environ,
            progress,
        )
    _show_deleted(
        [DeletableItem(**fact["item"]) for fact in facts if "item" in fact], dry_run=dry_run
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


NAMES_PER_KIND = 20


def _show_deleted(items: Sequence[DeletableItem], *, dry_run: bool) -> None:
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

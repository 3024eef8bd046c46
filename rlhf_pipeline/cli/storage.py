"""`rlhf storage`: is it sound, put it aside, put it back, move it to Postgres. Knows the layout of
a home and all three databases.
"""

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from rlhf_pipeline import backups, homes, protocols
from rlhf_pipeline.cli import retention_table, storage_check
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.driver import has_damaged_files, read_dagster_state, read_facts
from rlhf_pipeline.cli.init import (
    STORAGE_ON_POSTGRES,
    make_missing_databases,
    prepare,
    server_databases,
)
from rlhf_pipeline.cli.tables import echo, plain_text
from rlhf_pipeline.config import DAGSTER_URL, HOME_FACTS, HomeFacts, Settings, build_database_url
from rlhf_pipeline.errors import ConfigurationError, StoreError
from rlhf_pipeline.registry import make_tables
from rlhf_pipeline.retention import DeletableItem
from rlhf_pipeline.store import Heartbeat, Store, database_copy, database_dump

app = typer.Typer(
    help="Databases and files of the home: check, clean up, back up, restore, move to Postgres.",
    no_args_is_help=True,
)
DAEMON_BEATS_S = 30  # how often Dagster's daemon says that it lives
Backup = Annotated[Path, typer.Argument(help="Folder of the backup.", metavar="FOLDER")]


@app.command("check")
def check() -> None:
    """Read databases, models, frames and hashes of files, and name what is damaged, lost or
    contradicts the rest; then exit code 1.
    """
    settings = Settings.read()
    with suppress(StoreError):  # a damaged database: the findings name it
        homes.refuse_broken(settings)
    Workspace(settings).require_initialised()
    with _progress_bar("check") as progress:
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


@app.command("backup")
def backup(folder: Backup) -> None:
    """Copy all that cannot be made again into a new FOLDER, while the project is in use."""
    workspace = _open_workspace()
    settings = workspace.settings
    facts = HomeFacts.load(settings.home) or HomeFacts(
        organization=settings.organization, project=settings.project
    )
    with _progress_bar("backup") as progress:
        manifest = backups.back_up(
            settings.home, facts, _database_urls(settings), folder.absolute(), progress=progress
        )
    echo(f"{folder}: {backups.summary(manifest)}")
    if settings.frames_url is not None:
        echo("The frames lie in an object store and are not in it; they can be materialised again.")


@app.command("restore")
def restore(
    folder: Backup,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Overwrite a home that holds data; its files are set aside."
        ),
    ] = False,
) -> None:
    """Put a backup into RLHF_HOME: verified first, refused where there is data already."""
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
        # before they become the backup's: the runs are those of what is there
        refuse_while_active(settings, replacing=True)
    settings = settings.model_copy(
        update={"organization": manifest.organization, "project": manifest.project}
    )
    workspace = Workspace(settings)
    home_id = _find_home_id(folder, settings)
    if settings.server_url is not None:
        make_missing_databases(server_databases(settings, settings.server_url, home_id))
    makers = {"mlflow": make_tables, "dagster": lambda url: _make_dagster_tables(settings)}
    with _progress_bar("restore") as progress:
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
            f"{lost}, the settings of the backed up home, is not here: defaults apply. To name "
            "another file: RLHF_CONFIG=FILE rlhf init."
        )
    prepare(workspace)
    backups.record_replaced(settings.home, manifest, workspace.store.file_hashes)
    workspace.store.close()
    echo(
        f"{settings.home}: {backups.summary(manifest)}, as of {manifest.made_at:%Y-%m-%d %H:%M} UTC"
    )


@app.command("retain")
def retain(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; list what would be deleted.")
    ] = False,
) -> None:
    """Delete what the settings `keep_…` no longer keep: old runs, ticks, reports, caches, files of
    model versions that never served.
    """
    settings = _open_workspace().settings
    with _progress_bar("retain") as progress:
        facts = read_facts(
            "list-retained" if dry_run else "retain",
            settings.variables | settings.dagster_environ,
            progress,
        )
    retention_table.show_items(
        [DeletableItem(**fact["item"]) for fact in facts if "item" in fact], dry_run=dry_run
    )


@app.command("migrate")
def migrate(
    to: Annotated[
        str | None,
        typer.Option(
            help="URL of the Postgres server: postgresql://user:password@host:port; default "
            "RLHF_SERVER_URL."
        ),
    ] = None,
) -> None:
    """Move store, MLflow and Dagster's history from SQLite to a Postgres server, compare, and use
    the server from then on.
    """
    workspace = _open_workspace()
    settings = workspace.settings
    facts = HomeFacts.load(settings.home) or HomeFacts(
        organization=settings.organization, project=settings.project
    )
    server = SecretStr(to) if to is not None else settings.server_url
    if server is None:
        raise ConfigurationError(
            "Where to? Name the server: --to postgresql://user:password@host:port"
        )
    _refuse_non_server(server)
    if facts.server_url is not None:
        _finish_or_refuse(workspace, facts, server)
        return
    if settings.database_url or settings.mlflow_url or settings.dagster_url:
        raise ConfigurationError(
            "RLHF_DATABASE_URL, RLHF_MLFLOW_URL or RLHF_DAGSTER_URL is set: this moves a home's "
            "own SQLite files. Unset them."
        )
    source = Workspace(settings.model_copy(update={"server_url": None}))
    target = Workspace(settings.model_copy(update={"server_url": server}))
    refuse_while_active(source.settings)
    source.store.migrate()
    if (settings.home / "mlflow" / "mlflow.db").exists():
        # where the home was copied or moved, MLflow's paths follow before they are copied
        source.registry.initialise()
    facts = facts.with_id()
    # before the databases bear its id, so that a move that was killed finds them again
    facts.write(settings.home)
    databases = server_databases(settings, server, facts.home_id)
    databases.make(filling=True)
    with (
        database_copy.pause_writes(source.store.database) as seal,
        _progress_bar("moving") as progress,
    ):
        tables = _move_databases(source.settings, target.settings, progress)
        _refuse_differences(tables)
        databases.finish()
        facts.model_copy(
            update={"server_url": server, "database_prefix": settings.database_prefix}
        ).write(settings.home)
        seal(target.store.database.where)
    prepare(target)
    _show_tables(tables)
    echo(
        f"{settings.home} uses {target.store.database.where} from now on. Its SQLite files stay as "
        "they were and refuse new votes."
    )


def _find_home_id(backup: Path, settings: Settings) -> str | None:
    """What a restored home is called; None where neither it nor its backup has an id: then it gets
    one at the end.

    The databases that it replaces must be its own: those of the home that is there, of one that an
    earlier restore set aside (it may have been killed after that), or of the backed up one, which
    is lost or on another machine. What they are called stays.
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


def _move_databases(
    source: Settings, target: Settings, progress: protocols.Progress
) -> list[database_copy.CopiedTable]:
    with Workspace(target).store as store:
        store.migrate()
    moved = database_copy.copy_store(source.store_url, target.store_url, progress=progress)
    if (source.home / "mlflow" / "mlflow.db").exists():
        make_tables(target.tracking_uri)
        moved += database_copy.copy_database(
            "mlflow", source.tracking_uri, target.tracking_uri, progress=progress
        )
    environ = {**target.dagster_environ, "DAGSTER_HOME": str(source.home / "dagster")}
    moved += [
        database_copy.CopiedTable.model_validate(fact["table"])
        for fact in read_facts("move", environ, progress)
        if "table" in fact
    ]
    database_copy.analyze_tables(target.dagster_environ[DAGSTER_URL])
    return moved


def _finish_or_refuse(workspace: Workspace, facts: HomeFacts, server: SecretStr) -> None:
    """A move that was killed after its last step but one is finished; any other server is a move
    that this is not.
    """
    assert facts.server_url is not None  # asked by the caller
    if build_database_url(facts.server_url, "") != build_database_url(server, ""):
        raise ConfigurationError(
            f"{workspace.settings.home} is on {workspace.store.database.where} already. To change "
            "servers: `rlhf storage backup`, then `rlhf storage restore` with RLHF_SERVER_URL set "
            "to the new one."
        )
    prepare(workspace)
    old = workspace.settings.home / "store.db"
    if old.exists():
        settings = workspace.settings
        left = Store.open(
            f"sqlite:///{old}", organization=settings.organization, project=settings.project
        )
        with left, database_copy.pause_writes(left.database) as seal:
            seal(workspace.store.database.where)
    echo(
        f"{workspace.settings.home} is on {workspace.store.database.where} already: nothing to "
        "move."
    )


def _refuse_differences(tables: Iterable[database_copy.CopiedTable]) -> None:
    different = [table for table in tables if not table.is_equal]
    if different:
        _show_tables(different)
        named = ", ".join(f"{table.database}.{table.table}" for table in different)
        raise StoreError(
            f"After copying, {named} differ. The home stays on SQLite, nothing was lost; say so in "
            "an issue, with the table above."
        )


def _refuse_non_server(server: SecretStr) -> None:
    try:
        build_database_url(server, "")
    except ValueError as cause:
        raise ConfigurationError(f"--to {cause}.") from cause


def refuse_while_active(settings: Settings, *, replacing: bool = False) -> None:
    """Raises ConfigurationError while a run of this home beats, or Dagster's daemon does, on a
    server or in its files.

    With `replacing` damaged SQLite files count as those of a home where nothing runs: a restore is
    their cure.
    """
    _refuse_runs(settings, replacing=replacing)
    _refuse_daemon(settings, replacing=replacing)
    if settings.server_url is not None and (settings.home / "store.db").exists():
        refuse_while_active(settings.model_copy(update={"server_url": None}), replacing=replacing)


def _refuse_runs(settings: Settings, *, replacing: bool) -> None:
    try:
        beating = _beating(settings)
    except StoreError as error:
        is_local = database_dump.is_sqlite(settings.store_url)
        if not (
            replacing
            and is_local
            and database_dump.is_damaged(database_dump.sqlite_file(settings.store_url))
        ):
            raise
        echo(f"Cannot tell whether runs are under way; the restore goes on. {error}")
        return
    if beating:
        jobs = ", ".join(sorted({beat.job for beat in beating}))
        raise ConfigurationError(
            f"{len(beating)} runs are under way ({jobs}). Let them finish, or end them in Dagster, "
            "then try again."
        )


def _beating(settings: Settings) -> list[Heartbeat]:
    if not database_copy.has_tables(settings.store_url) or not database_copy.n_rows(
        settings.store_url, {"heartbeats"}
    ):
        return []
    with Store.open(
        settings.store_url, organization=settings.organization, project=settings.project
    ) as store:
        return store.heartbeats.find_recent(settings.dead_after_seconds)


def _refuse_daemon(settings: Settings, *, replacing: bool) -> None:
    try:
        silent_s = _daemon_silent_s(settings)
    except StoreError as error:
        if not (
            replacing and settings.dagster_storage is None and has_damaged_files(settings.home)
        ):
            raise
        echo(f"Cannot tell whether Dagster's daemon works here; the restore goes on. {error}")
        return
    if silent_s is not None and silent_s < 2 * DAEMON_BEATS_S:
        # the clocks of both may differ
        left = min(2 * DAEMON_BEATS_S - silent_s, 2 * DAEMON_BEATS_S)
        echo(
            f"Dagster's daemon was alive {silent_s:.0f} s ago; waiting {left:.0f} s to see whether "
            "it still is."
        )
        time.sleep(left)
        again = _daemon_silent_s(settings)
        if again is not None and again < 2 * DAEMON_BEATS_S:
            where = (
                settings.home
                if settings.dagster_storage is None
                else f"the databases of {settings.home}"
            )
            raise ConfigurationError(
                f"Dagster's daemon works in {where}. Stop `rlhf dev` or the daemon's service, then "
                "try again."
            )


def _daemon_silent_s(settings: Settings) -> float | None:
    environ = settings.dagster_environ
    if settings.dagster_storage is None:
        state = read_dagster_state(environ) if (settings.home / "dagster").exists() else {}
    elif database_copy.has_tables(settings.dagster_storage):
        # Not by way of the home, which may be new, or lost: the daemon may work on another machine.
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "dagster.yaml").write_text(
                f"telemetry:\n  enabled: false\n{STORAGE_ON_POSTGRES}", encoding="utf-8"
            )
            state = read_dagster_state({**environ, "DAGSTER_HOME": folder})
    else:
        state = {}
    silent: float | None = state.get("daemon_silent_s")
    return silent


def _make_dagster_tables(settings: Settings) -> None:
    read_facts("make-tables", settings.dagster_environ)


def _show_tables(tables: Iterable[database_copy.CopiedTable]) -> None:
    shown = Table("table", "rows here", "rows there", "SHA-256", title="moved")
    for column in shown.columns[1:3]:
        column.justify = "right"
    n_empty = 0
    for table in tables:
        n_empty += table.n_source == table.n_target == 0
        if table.n_source or table.n_target:
            equal = (
                "equal" if table.is_equal else f"{table.source_hash[:8]} / {table.target_hash[:8]}"
            )
            shown.add_row(
                f"{table.database}.{table.table}",
                f"{table.n_source:,}",
                f"{table.n_target:,}",
                equal,
            )
    shown.caption = f"and {n_empty} empty tables" if n_empty else None
    console().print(shown)


def console() -> Console:
    # A pipe has no width: tables would be squeezed into 80 columns.
    return Console(width=None if sys.stdout.isatty() else 132)


@contextmanager
def _progress_bar(what: str) -> Iterator[protocols.Progress]:
    with Progress(
        TextColumn(what),
        *Progress.get_default_columns()[1:],
        TextColumn("{task.description}"),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, note: str = "") -> None:
            bar.update(
                task,
                completed=done,
                total=total or None,
                description=f"{note} {done:,}" if note else "",
            )

        yield progress


def _database_urls(settings: Settings) -> dict[str, str | None]:
    mlflow = {} if settings.tracking_uri.startswith("http") else {"mlflow": settings.tracking_uri}
    return {"store": settings.store_url, **mlflow, "dagster": settings.dagster_storage}


def _open_workspace() -> Workspace:
    workspace = Workspace.from_environment()
    workspace.require_initialised()
    return workspace

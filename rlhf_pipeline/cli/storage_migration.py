"""`rlhf migrate`: moves a home's databases from SQLite to a Postgres server."""

from collections.abc import Iterable
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.table import Table

from rlhf_pipeline import protocols
from rlhf_pipeline.cli import driver
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.home_activity import refuse_while_active
from rlhf_pipeline.cli.init import prepare, server_databases
from rlhf_pipeline.cli.tables import console, echo, progress_bar
from rlhf_pipeline.config import DAGSTER_URL, HomeFacts, Settings, build_database_url
from rlhf_pipeline.errors import ConfigurationError, StoreError
from rlhf_pipeline.registry import make_tables
from rlhf_pipeline.store import Store, database_copy


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
    workspace = Workspace.open()
    settings = workspace.settings
    facts = HomeFacts.load(settings.home) or HomeFacts.of(settings)
    server = SecretStr(to) if to is not None else settings.server_url
    if server is None:
        raise ConfigurationError(
            "No server is named. Give it: --to postgresql://user:password@host:port"
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
        # corrects MLflow's paths where the home was copied or moved
        source.registry.initialise()
    facts = facts.with_id()
    # written before the databases carry the id, so that a killed move finds them again
    facts.write(settings.home)
    databases = server_databases(settings, server, facts.home_id)
    databases.make(filling=True)
    with (
        database_copy.pause_writes(source.store.database) as seal,
        progress_bar("moving") as progress,
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
        for fact in driver.read_facts("move", environ, progress)
        if "table" in fact
    ]
    database_copy.analyze_tables(target.dagster_environ[DAGSTER_URL])
    return moved


def _finish_or_refuse(workspace: Workspace, facts: HomeFacts, server: SecretStr) -> None:
    """Finish a move that was killed before its last step. Raises ConfigurationError for a home on
    another server.
    """
    assert facts.server_url is not None  # the caller checked
    if build_database_url(facts.server_url, "") != build_database_url(server, ""):
        raise ConfigurationError(
            f"{workspace.settings.home} is on {workspace.store.database.where} already. To change "
            "servers: `rlhf backup`, then `rlhf restore` with RLHF_SERVER_URL set "
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
            f"After copying, {named} differ. The home stays on SQLite and nothing was lost. Please "
            "report it with the table above."
        )


def _refuse_non_server(server: SecretStr) -> None:
    try:
        build_database_url(server, "")
    except ValueError as cause:
        raise ConfigurationError(f"--to {cause}.") from cause


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

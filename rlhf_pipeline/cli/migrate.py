"""`rlhf migrate`: moves the store and MLflow of a home from SQLite to a Postgres server."""

from typing import Annotated

import typer
from pydantic import SecretStr

from rlhf_pipeline.cli.backup import refuse_while_used
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise, server_databases
from rlhf_pipeline.cli.tables import echo, progress_bar
from rlhf_pipeline.core.config import HomeFacts, build_database_url
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.registry import make_tables
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.database_copy import copy_tables, forbid_writes, has_tables
from rlhf_pipeline.store.schema import metadata


def migrate(
    to: Annotated[
        str | None,
        typer.Option(
            help="URL of the Postgres server: postgresql://user:password@host:port; default "
            "RLHF_SERVER_URL."
        ),
    ] = None,
) -> None:
    """Copy store and MLflow from SQLite to a Postgres server and use it from then on; Dagster's
    history of runs stays behind.
    """
    workspace = Workspace.open()
    server = SecretStr(to) if to is not None else workspace.settings.server_url
    if server is None:
        raise ConfigurationError(
            "No server is named. Give it: --to postgresql://user:password@host:port"
        )
    try:
        build_database_url(server, "")
    except ValueError as cause:
        raise ConfigurationError(f"--to {cause}.") from cause
    settings = workspace.settings.model_copy(update={"server_url": None})
    facts = HomeFacts.load(settings.home)
    if facts is None or facts.server_url or settings.database_url or settings.mlflow_url:
        raise ConfigurationError(
            f"{settings.home} does not keep its rows in its own SQLite files, which this moves. "
            "From one server to another: `rlhf backup`, then `rlhf restore` with RLHF_SERVER_URL."
        )
    refuse_while_used(settings)
    target = settings.model_copy(update={"server_url": server})
    if has_tables(target.store_url):
        with Store.of_home(target) as store:
            if store.audit.head()[0]:
                raise ConfigurationError(
                    f"{store.database.where} holds rows already. Nothing was moved. Name another "
                    "RLHF_DATABASE_PREFIX, or drop its three databases if you need none of them."
                )
    server_databases(target, server).make()
    with (
        Store.of_home(settings) as here,
        Store.of_home(target) as there,
        here.database.write_transaction() as writing,
        progress_bar("moving") as progress,
    ):
        there.migrate()
        rows = copy_tables(settings.store_url, target.store_url, metadata, progress=progress)
        n_links = there.audit.verify()
        if has_tables(settings.tracking_uri):
            make_tables(target.tracking_uri)
            rows |= copy_tables(settings.tracking_uri, target.tracking_uri, progress=progress)
        facts.model_copy(
            update={"server_url": server, "database_prefix": settings.database_prefix}
        ).write(settings.home)
        forbid_writes(writing, there.database.where)
        where = there.database.where
    initialise(Workspace(target), join=True)
    echo(
        f"{settings.home} uses {where} from now on: "
        f"{format_count(sum(rows.values()), 'row')}, {format_count(n_links, 'link')} "
        "of the audit chain intact. Dagster's history of runs stays in "
        f"{settings.home / 'dagster'}, and its pages begin anew. The SQLite files stay as they "
        "were and refuse new votes."
    )

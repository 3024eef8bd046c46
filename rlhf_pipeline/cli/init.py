"""`rlhf init`: makes the databases and Dagster's home, and registers a policy that is named."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated

import typer
from pydantic import SecretStr

from rlhf_pipeline.cli.context import Workspace, application_file
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.config import DAGSTER_URL, HomeFacts, Settings, build_database_url
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.store import database_copy, homes
from rlhf_pipeline.store.server import ServerDatabases

STORAGE_ON_POSTGRES = f"""
# Written by `rlhf init`. The URL holds a password, and Dagster's UI shows this file, so it comes \
from the environment.
storage:
  postgres:
    postgres_url:
      env: {DAGSTER_URL}
"""


def init(
    join: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Take over the databases of a home that is lost or elsewhere instead of making "
            "new ones.",
        ),
    ] = False,
) -> None:
    """Make the databases and Dagster's home below RLHF_HOME, in seconds. Safe to repeat.

    The policy that RLHF_POLICY names is registered; without it the first collection trains the
    embedded one.
    """
    workspace = Workspace(Settings.read(initialising=True))
    if workspace.settings.config is not None:
        from rlhf_pipeline.improve.loop_settings import LoopSettings  # imports every stage

        LoopSettings.read(workspace.settings)  # refuse an invalid file before anything is made
    initialise(workspace, join=join)
    HomeFacts.change(workspace.settings.home, config=workspace.settings.config)
    from rlhf_pipeline.improve.loop_settings import warn_of_toy_policy

    if warning := warn_of_toy_policy(workspace.settings):
        echo(f"{warning[:1].upper()}{warning[1:]}.", fg=typer.colors.YELLOW)


def initialise(workspace: Workspace, *, join: bool = False) -> None:
    from rlhf_pipeline.learn.champions.champions import record_notices, register_first_policy

    settings = workspace.settings
    is_new = HomeFacts.load(settings.home) is None
    prepare(workspace, join=join)
    if is_new:
        _record_progress(workspace)
    if join:
        _relocate_artifacts(workspace)
    workspace.registry.tracking.open()
    champion = workspace.champions.champion("policy")
    if champion is None and settings.policy is not None:
        champion = register_first_policy(workspace.champions, settings)
    HomeFacts.change(
        settings.home,
        has_models=champion is not None,
        policy=None if champion else "none yet",
    )
    homes.keep_private(settings.home)
    if champion is not None:
        for notice in record_notices(settings.home, champion):
            echo(f"Notice on {champion.label}: {notice}.", fg=typer.colors.YELLOW)
    echo(
        f"{settings.home}: project {settings.project!r} is ready, "
        + (
            f"champion policy {champion.label}"
            if champion
            else "no policy yet: the first collection registers the embedded one"
        )
    )


def _record_progress(workspace: Workspace) -> None:
    """Record the start day, unless a setting gives it, and the last link of the audit chain: today
    and none for a new home, else those of the rows in its store.
    """
    settings, store = workspace.settings, workspace.store
    if "start_day" not in settings.model_fields_set:
        vote_days = [f"{touched.day}" for touched in store.votes.touched_days()[:1]]
        days = filter(None, (store.comparisons.first_day(), *vote_days))
        first = min((datetime.now(UTC).date(), *map(date.fromisoformat, days)))
        HomeFacts.change(settings.home, start_day=first)
    HomeFacts.raise_audit_seq(settings.home, store.audit.head()[0])


def prepare(workspace: Workspace, *, join: bool = False) -> None:
    """The cheap part of `initialise`: databases, tables, Dagster's home and the facts of the home,
    but no model. Safe to repeat.

    With `join` this home uses the databases of another home on the server. Raises
    ConfigurationError for a home of another project, for one whose rows are in SQLite when a server
    is named, and where there is nothing to join.
    """
    settings = workspace.settings
    homes.refuse_broken(settings, initialising=True)
    facts = HomeFacts.load(settings.home)
    if settings.server_url is not None:
        homes.refuse_other_server(settings)
        _make_databases(settings, settings.server_url, is_known=facts is not None, join=join)
    elif join:
        raise ConfigurationError(
            "There is nothing to join: no server is named. Set RLHF_SERVER_URL to the server of "
            "the other home's databases."
        )
    homes.make_private(settings.home)
    if facts is None and settings.server_url is not None:
        write_facts(settings, HomeFacts.of(settings))  # a kill leaves no databases without a home
    workspace.store.migrate()
    write_facts(settings, HomeFacts.load(settings.home) or HomeFacts.of(settings))
    _make_dagster_home(settings)  # last: a home with it and without facts has lost them


def _make_databases(
    settings: Settings, server_url: SecretStr, *, is_known: bool, join: bool
) -> None:
    """Make the databases that are missing. Raises ConfigurationError where another home has filled
    them, unless this one joins, and where there is nothing to join.
    """
    if (settings.home / "store.db").exists() and not is_known:
        raise ConfigurationError(
            f"{settings.home} holds a store in SQLite, which the server does not have. Unset "
            "RLHF_SERVER_URL, run `rlhf init`, then `rlhf migrate --to URL`; or name another "
            "RLHF_HOME."
        )
    prefix = settings.database_prefix
    is_filled = database_copy.has_tables(build_database_url(server_url, f"{prefix}_store"))
    if join and not is_filled:
        raise ConfigurationError(
            f"There is nothing to join: no home has databases {prefix}_… there. Check "
            "RLHF_SERVER_URL and RLHF_DATABASE_PREFIX, or leave --join out: then this home gets "
            "them."
        )
    if is_filled and not is_known and not join:
        raise ConfigurationError(
            f"The databases {prefix}_… there belong to another home. Set RLHF_DATABASE_PREFIX to "
            "another name; or, where that home is lost or both are meant to be one, "
            "`rlhf init --join`."
        )
    databases = server_databases(settings, server_url).make()
    if databases:
        echo(f"made the databases {', '.join(databases)}")


def server_databases(settings: Settings, server_url: SecretStr) -> ServerDatabases:
    return ServerDatabases(
        server_url.get_secret_value(),
        settings.database_prefix,
        settings.project,
    )


def write_facts(settings: Settings, facts: HomeFacts) -> None:
    on_server = {"server_url": settings.server_url, "database_prefix": settings.database_prefix}
    new_facts = facts.model_copy(
        update={"config": facts.config or settings.config}
        | (on_server if settings.server_url else {})
    )
    if new_facts != HomeFacts.load(settings.home):
        new_facts.write(settings.home)


def _relocate_artifacts(workspace: Workspace) -> None:
    """Point MLflow's paths to this home, which replaces the one they led to."""
    old, new = workspace.registry.tracking.find_moved_artifacts()
    if old != new:
        database_copy.relocate(workspace.settings.tracking_uri, old, new)


def _make_dagster_home(settings: Settings) -> None:
    home = settings.home
    template = application_file("dagster.yaml").read_text(encoding="utf-8")
    template = _replace_value(
        template, "max_concurrent_runs", settings.max_concurrent_runs, times=1
    )
    template = _replace_value(template, "skipped", settings.retention.skipped_tick_days, times=2)
    for status in ("failure", "success"):
        template = _replace_value(template, status, settings.retention.tick_days, times=2)
    storage = "" if settings.dagster_storage is None else STORAGE_ON_POSTGRES
    write_atomically(home / "dagster" / "dagster.yaml", (template + storage).encode())


def _replace_value(template: str, name: str, value: int, *, times: int) -> str:
    text, n = re.subn(rf"(?m)^( +{name}:) .*$", rf"\1 {value}", template)
    if n != times:
        raise ConfigurationError(
            f"dagster_home/dagster.yaml has {n} lines `{name}:`, not {times}. Restore the file of "
            "the application_file."
        )
    return text

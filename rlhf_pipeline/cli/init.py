"""`rlhf init`: a project that can run. Databases, Dagster's home, and a first policy as champion
version 1.
"""

import re
from dataclasses import replace
from datetime import date
from typing import Annotated, Any

import pandas as pd
import typer
from pydantic import SecretStr
from rich.progress import Progress

from rlhf_pipeline import homes
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.cli.context import Workspace, checkout
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.config import DAGSTER_URL, HomeFacts, Settings
from rlhf_pipeline.errors import ArtefactError, ConfigurationError, FrameError
from rlhf_pipeline.files import write_atomically
from rlhf_pipeline.store import Store, database_copy
from rlhf_pipeline.store.server import ServerDatabases
from rlhf_pipeline.votes.counting import counting

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
            help="Take on the databases of a home that is lost or elsewhere, instead of making new "
            "ones.",
        ),
    ] = False,
) -> None:
    """Make the databases and Dagster's home below RLHF_HOME and register the first policy. Safe to
    repeat.
    """
    workspace = Workspace(Settings.read(initialising=True))
    initialise(workspace, join=join)
    change_facts(workspace.settings, config=workspace.settings.config)


def initialise(workspace: Workspace, *, join: bool = False) -> None:
    settings = workspace.settings
    prepare(workspace, join=join)
    if join:
        _relocate_artifacts(workspace)
    rewrite_votes_frames(workspace.store, workspace.files)
    workspace.registry.initialise()
    with Progress(transient=True) as bar:
        task = bar.add_task("first policy: pretraining the embedded language model", total=None)
        champion = workspace.champions.initialise(
            settings.policy,
            progress=lambda done, total, note="": bar.update(task, completed=done, total=total),
        )
    change_facts(settings, has_models=True)
    homes.keep_private(settings.home)
    echo(
        f"{settings.home}: project {settings.project!r} is ready, champion policy {champion.label}"
    )


def rewrite_votes_frames(store: Store, files: Artefacts) -> int:
    """How many days' frames of votes were made anew from the store: earlier versions left out
    superseded votes and what was said beside the choice.

    Votes that wait for their day's feedback go on waiting. A file that cannot be read, or that
    holds votes which the store lacks, stays as it is: `rlhf storage check` names it.
    """
    counted: pd.DataFrame | None = None
    n = 0
    for day in files.days("votes"):
        try:
            frame = files.read_frame("votes", day)
        except (ArtefactError, FrameError):
            continue
        log = store.votes.log([day])
        if frame["pass_no"].notna().any() or not frame["vote_id"].isin(log["vote_id"]).all():
            continue
        counted = counting(store.votes.log()) if counted is None else counted
        missing = counted[(counted["day"] == day) & ~counted["vote_id"].isin(frame["vote_id"])]
        # What counts and is not in the frame was cast after it was made; what is in neither was
        # displaced.
        taken = log[log["seq"] < missing["seq"].min()] if len(missing) else log
        if len(taken) > 0 and frame["vote_id"].isin(taken["vote_id"]).all():
            files.write_frame("votes", taken, day)
            n += 1
    return n


def prepare(workspace: Workspace, *, join: bool = False) -> None:
    """What is cheap of `initialise`: databases, tables, Dagster's home and the facts of the home;
    no model. Safe to repeat.

    `join` makes this home another one of those whose the databases on the server are. Raises
    ConfigurationError for a home of another project, for one whose rows lie in SQLite when a server
    is named, and where there is nothing to join.
    """
    settings = workspace.settings
    homes.refuse_broken(settings, initialising=True, joining=join)
    facts = HomeFacts.load(settings.home)
    if settings.server_url is not None:
        _refuse_abandoned_rows(workspace, facts)
        make_databases(settings, settings.server_url, join=join)
    elif join:
        raise ConfigurationError(
            "There is nothing to join: no server is named. Set RLHF_SERVER_URL to that of the "
            "other home's databases."
        )
    homes.make_private(settings.home)
    workspace.store.migrate()
    if facts is None and settings.server_url is None and settings.database_url is None:
        facts = _derive_facts(workspace)
    write_new_facts(settings, HomeFacts.load(settings.home) or facts)
    _make_dagster_home(settings)  # last: a home with it and without facts has lost them


def make_databases(settings: Settings, server_url: SecretStr, *, join: bool = False) -> None:
    """The three databases on the server, where they are missing. The home knows its id before they
    bear it, whatever kills this.
    """
    facts = HomeFacts.load(settings.home)
    databases = server_databases(settings, server_url, facts.home_id if facts else None)
    with databases.lock_owner() as theirs:
        # Read again: whoever else makes this very home may have named it meanwhile.
        facts = HomeFacts.load(settings.home) or HomeFacts(
            organization=settings.organization, project=settings.project
        )
        if join and theirs is None:
            raise ConfigurationError(
                f"There is nothing to join: no home has databases {settings.database_prefix}_… "
                "there. Check RLHF_SERVER_URL and RLHF_DATABASE_PREFIX, or leave --join out: then "
                "this home gets them."
            )
        known = facts.model_copy(update={"home_id": theirs}) if join else facts.with_id()
        if theirs in (None, known.home_id) and known != facts:
            known.write(settings.home)
    make_missing_databases(replace(databases, home_id=known.home_id))


def server_databases(
    settings: Settings, server_url: SecretStr, home_id: str | None
) -> ServerDatabases:
    return ServerDatabases(
        server_url.get_secret_value(),
        settings.database_prefix,
        settings.organization,
        settings.project,
        home_id,
    )


def make_missing_databases(databases: ServerDatabases) -> None:
    """Make what is missing of them, and say so."""
    made = databases.make()
    if made:
        echo(f"made the databases {', '.join(made)}")


def write_new_facts(settings: Settings, facts: HomeFacts | None) -> None:
    """Write what the home knows of itself, where that is new."""
    known = (
        facts or HomeFacts(organization=settings.organization, project=settings.project)
    ).with_id()
    on_server = {
        "server_url": settings.server_url,
        "database_prefix": settings.database_prefix,
        "home": settings.home,
    }
    wanted = known.model_copy(
        update={"config": known.config or settings.config}
        | (on_server if settings.server_url else {})
    )
    if wanted != facts:
        wanted.write(settings.home)


def change_facts(settings: Settings, **changed: Any) -> None:
    """Change facts that the home has written down already."""
    facts = HomeFacts.load(settings.home)
    assert facts is not None  # `prepare` wrote them
    wanted = facts.model_copy(update=changed)
    if wanted != facts:
        wanted.write(settings.home)


def _relocate_artifacts(workspace: Workspace) -> None:
    """MLflow's paths follow to this home, which takes the place of the one that they led to."""
    old, new = workspace.registry.find_moved_artifacts()
    if old != new:
        database_copy.relocate(workspace.settings.tracking_uri, old, new)


def _make_dagster_home(settings: Settings) -> None:
    home = settings.home
    template = (checkout() / "dagster_home" / "dagster.yaml").read_text(encoding="utf-8")
    template = _replace_value(
        template, "max_concurrent_runs", settings.max_concurrent_runs, times=1
    )
    template = _replace_value(template, "skipped", settings.keep_skipped_tick_days, times=2)
    for status in ("failure", "success"):
        template = _replace_value(template, status, settings.keep_tick_days, times=2)
    storage = "" if settings.dagster_storage is None else STORAGE_ON_POSTGRES
    write_atomically(home / "dagster" / "dagster.yaml", (template + storage).encode())


def _replace_value(template: str, name: str, value: int, *, times: int) -> str:
    written, n = re.subn(rf"(?m)^( +{name}:) .*$", rf"\1 {value}", template)
    if n != times:
        raise ConfigurationError(
            f"dagster_home/dagster.yaml has {n} lines `{name}:`, not {times}. Restore the file of "
            "the checkout."
        )
    return written


def _refuse_abandoned_rows(workspace: Workspace, facts: HomeFacts | None) -> None:
    """A server named for a home that was on SQLite until now would show an empty project."""
    settings = workspace.settings
    left = settings.model_copy(update={"server_url": None})
    if (
        (facts is not None and facts.server_url is not None)
        or settings.database_url is not None
        or not (settings.home / "store.db").exists()
    ):
        return
    with Workspace(left).store as store:
        store.migrate()
        n = store.comparisons.count() + store.votes.count()
    if n:
        raise ConfigurationError(
            f"{settings.home} holds {n} comparisons and votes in SQLite, which the server does "
            "not. Unset RLHF_SERVER_URL and move them with `rlhf storage migrate --to URL`, or "
            "name another RLHF_HOME."
        )


def _derive_facts(workspace: Workspace) -> HomeFacts | None:
    """What the rows of a home without facts say of it: imported days may begin before the setting's
    default.
    """
    settings, first = workspace.settings, workspace.store.comparisons.first_day()
    if first is None or date.fromisoformat(first) >= settings.start_day:
        return None
    return HomeFacts(
        organization=settings.organization,
        project=settings.project,
        start_day=date.fromisoformat(first),
    )

"""Refuses homes that lost a part or belong to another user; records how far a home has come."""

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlhf_pipeline.core.config import DRIVER, HOME_FACTS, RESTORING, HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError, StoreError
from rlhf_pipeline.store.audit_chain import Audit
from rlhf_pipeline.store.database_copy import has_tables
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.registered_models import read_champions

DATABASES = ("store.db*", "mlflow/mlflow.db*", "dagster/**/*.db*")
RESTORE = "Restore the last backup with `rlhf restore FOLDER --replace`"


def refuse_broken(settings: Settings, *, initialising: bool = False) -> None:
    """Every process checks its home here: raises ConfigurationError, with the cure, for one that
    lost a part, and StoreError where MLflow's Postgres database does not answer.

    A folder in which nothing was made yet passes. With `initialising` a home may have lost
    `project.json`, because its store names the project.
    """
    home = settings.home
    refuse_foreign(home)
    if (home / RESTORING).exists():
        raise ConfigurationError(
            f"A restore into {home} was interrupted, so parts of it are missing. {RESTORE}."
        )
    facts = HomeFacts.load(home)
    _refuse_lost_store(settings, facts, initialising=initialising)
    _refuse_lost_registry(settings, has_models=facts is not None and facts.has_models)
    if facts is not None:
        refuse_older_store(settings, facts)


def refuse_older_store(settings: Settings, facts: HomeFacts) -> None:
    """Raises ConfigurationError for a store that ends before the last run or server ended: rows
    were lost.

    A store that cannot be read passes: who opens it next names the fault.
    """
    seq = facts.audit_seq
    with suppress(StoreError):
        database = Database(settings.store_url, read_only=True)
        try:
            seq, _ = Audit(database).head()
        finally:
            database.close()
    if seq < facts.audit_seq:
        cause = "An older copy of the database was put back"
        if database.is_sqlite:
            cause += (
                ", or its log store.db-wal was damaged or left out of a copy: put the log back "
                "beside it"
            )
        raise ConfigurationError(
            f"The store {database.where} lost rows: its audit chain ends at {seq:,}, and stood at "
            f"{facts.audit_seq:,} when the last run or server ended. {cause}. {RESTORE}."
        )


def record_end(settings: Settings, database: Database) -> None:
    """Called when a run or a server ends: records how far the audit chain reaches. A refusal ends
    nothing.
    """
    with suppress(PipelineError):
        HomeFacts.raise_audit_seq(settings.home, Audit(database).head()[0])


def refuse_foreign(home: Path, uid: int | None = None) -> None:
    """Raises ConfigurationError for a home of another user, whose owner could not use the files
    made here.
    """
    try:
        owner, me = home.stat().st_uid, os.geteuid() if uid is None else uid
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as cause:
        raise ConfigurationError(
            f"RLHF_HOME {home} cannot be opened: {cause.strerror}. Run this as its owner, or name "
            "another folder."
        ) from cause
    if owner != me:
        raise ConfigurationError(
            f"RLHF_HOME {home} belongs to user {_user_name(owner)}, and this process runs as "
            f"{_user_name(me)}. Run it as the owner (sudo -u {_user_name(owner)} …), or name "
            "another folder."
        )


def refuse_other_dagster_home(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raises ConfigurationError where DAGSTER_HOME belongs to another home: runs of one would
    change the store of the other.
    """
    dagster_home, ours = environ.get("DAGSTER_HOME"), settings.home / "dagster"
    if dagster_home and Path(dagster_home).expanduser().resolve() != ours.resolve():
        raise ConfigurationError(
            f"DAGSTER_HOME is {dagster_home}, but RLHF_HOME is {settings.home}. Dagster's home is "
            f"always <RLHF_HOME>/dagster: set DAGSTER_HOME={ours}, or set RLHF_HOME to the other "
            "home. Either may come from a `.env` file in the working directory, which Dagster "
            "reads first."
        )


def refuse_other_server(settings: Settings) -> None:
    """Raises ConfigurationError where a server is set for a home whose rows are in SQLite: it would
    mix them with those of the home that uses the server.
    """
    facts = HomeFacts.load(settings.home)
    is_on_sqlite = facts is not None and facts.server_url is None
    if is_on_sqlite and settings.server_url is not None and settings.database_url is None:
        raise ConfigurationError(
            f"{settings.home} has its rows in SQLite, but RLHF_SERVER_URL names a server. Unset "
            "it, move the home with `rlhf migrate --to URL`, or name another RLHF_HOME."
        )


def make_private(home: Path) -> None:
    """Make the home's folder, for its owner alone. Raises ConfigurationError where that fails."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as cause:
        raise ConfigurationError(
            f"RLHF_HOME {home} cannot hold a project: {cause.strerror or cause}. Name a folder "
            "that can be made and written."
        ) from cause


def keep_private(home: Path) -> None:
    """Make the databases of the home readable by their owner alone; SQLite's log follows the mode
    of its database.
    """
    for pattern in DATABASES:
        for path in home.glob(pattern):
            with suppress(FileNotFoundError):  # a log that SQLite removes meanwhile
                path.chmod(0o600)


def _refuse_lost_store(settings: Settings, facts: HomeFacts | None, *, initialising: bool) -> None:
    home, store = settings.home, settings.home / "store.db"
    if settings.server_url is not None or settings.database_url is not None:
        return  # databases elsewhere name their home
    is_lost = is_empty(store)
    if facts is not None and is_lost:
        raise ConfigurationError(
            f"The store of {home} is missing or empty: {store} held the votes and all other rows "
            f"of project {facts.project!r}. {RESTORE}; to start over, move the folder away. If the "
            "store is elsewhere, set RLHF_DATABASE_URL or RLHF_SERVER_URL."
        )
    was_made = (home / "dagster" / "dagster.yaml").exists()
    if facts is None and was_made and (is_lost or not initialising):
        raise ConfigurationError(
            f"{home} was initialised, but its {HOME_FACTS} "
            + (
                f"and store.db are gone. {RESTORE}. If its databases are on a server: "
                "RLHF_SERVER_URL=URL rlhf init --join. To start over, move the folder away."
                if is_lost
                else "is gone. Put it back from a backup, or let `rlhf init` write it from the "
                "store."
            )
        )


def _refuse_lost_registry(settings: Settings, *, has_models: bool) -> None:
    if settings.mlflow_url is not None and settings.tracking_uri.startswith(DRIVER):
        read_champions(settings.tracking_uri)  # MLflow would try for minutes, and log each attempt
    if settings.server_url is not None or settings.mlflow_url is not None:
        return
    database = settings.home / "mlflow" / "mlflow.db"
    was_there = has_models or any(database.parent.glob("artifacts/*"))
    if was_there and is_empty(database):
        raise ConfigurationError(
            f"MLflow's database of {settings.home} is missing or empty: {database} held its "
            f"models. {RESTORE}; docs/guides/home.md, 'A lost part', says how to save the votes "
            "without one. If the database is elsewhere, set RLHF_MLFLOW_URL or RLHF_SERVER_URL."
        )


def is_empty(database: Path) -> bool:
    """Whether an SQLite file is missing or has no tables. Does not create it."""
    return (
        not database.exists()
        or database.stat().st_size == 0
        or not has_tables(f"sqlite:///{database}")
    )


def _user_name(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)

"""Refuses homes that lost a part, were copied or belong to another user; makes homes private."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from rlhf_pipeline.config import HOME_FACTS, RESTORING, HomeFacts, Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.store import database_copy

DATABASES = ("store.db", "mlflow/mlflow.db", "dagster/**/*.db")
RESTORE = "Restore a backup with `rlhf restore FOLDER --replace`"


def refuse_broken(settings: Settings, *, initialising: bool = False, joining: bool = False) -> None:
    """Every process checks its home here: raises ConfigurationError, with the cure, for one that
    lost a part.

    A folder in which nothing was made yet passes. With `initialising` a home may have lost
    `project.json`, because its store names the project; with `joining` a home on a server may have
    moved.
    """
    home = settings.home
    refuse_foreign(home)
    if (home / RESTORING).exists():
        raise ConfigurationError(
            f"A restore into {home} was interrupted, so parts of it are missing. {RESTORE}."
        )
    facts = HomeFacts.load(home)
    if facts is None:
        _refuse_lost_facts(settings, initialising=initialising)
    else:
        _refuse_lost_store(settings, facts)
        if not joining:
            _refuse_other_place(home, facts)
    _refuse_lost_registry(settings, has_models=facts is not None and facts.has_models)


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
    if home.is_dir() and not os.access(
        home, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        raise ConfigurationError(
            f"RLHF_HOME {home} cannot be written. Give its owner write permission (chmod u+rwx), "
            "or name another folder."
        )


def refuse_other_dagster_home(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raises ConfigurationError where DAGSTER_HOME belongs to another home: runs of one would
    change the store of the other.
    """
    named, ours = environ.get("DAGSTER_HOME"), settings.home / "dagster"
    if named and Path(named).expanduser().resolve() != ours.resolve():
        raise ConfigurationError(
            f"DAGSTER_HOME is {named}, but RLHF_HOME is {settings.home}. Dagster's home is always "
            f"<RLHF_HOME>/dagster: set DAGSTER_HOME={ours}, or set RLHF_HOME to the other home. "
            "Either may come from a `.env` file in the working directory, which Dagster reads "
            "first."
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
        for database in home.glob(pattern):
            for path in (database, Path(f"{database}-wal"), Path(f"{database}-shm")):
                if path.exists():
                    path.chmod(0o600)


def _refuse_lost_facts(settings: Settings, *, initialising: bool) -> None:
    home = settings.home
    if (
        settings.server_url is not None
        or settings.database_url is not None
        or not (home / "dagster" / "dagster.yaml").exists()
    ):
        return  # nothing was made here yet, or databases elsewhere name their home
    if is_empty(home / "store.db"):
        raise ConfigurationError(
            f"{home} was initialised, but its {HOME_FACTS} and store.db are gone. {RESTORE}. If "
            "its databases are on a server: RLHF_SERVER_URL=URL rlhf init --join. To start over, "
            "move the folder away."
        )
    if not initialising:
        raise ConfigurationError(
            f"{home} was initialised, but its {HOME_FACTS} is gone. Put it back from a backup, or "
            "let `rlhf init` write it from the store."
        )


def _refuse_lost_store(settings: Settings, facts: HomeFacts) -> None:
    is_elsewhere = settings.server_url is not None or settings.database_url is not None
    store = settings.home / "store.db"
    if not is_elsewhere and is_empty(store):
        state = "is empty" if store.exists() else "is missing"
        raise ConfigurationError(
            f"The store of {settings.home} {state}: {store} held the votes and all other rows of "
            f"project {facts.project!r}. {RESTORE}; to start over, move the folder away. If the "
            "store is elsewhere, set RLHF_DATABASE_URL or RLHF_SERVER_URL."
        )


def _refuse_lost_registry(settings: Settings, *, has_models: bool) -> None:
    if settings.server_url is not None or settings.mlflow_url is not None:
        return
    folder = settings.home / "mlflow"
    database, files = folder / "mlflow.db", folder / "artifacts"
    was_there = has_models or (files.is_dir() and any(files.iterdir()))
    if was_there and is_empty(database):
        state = "is empty" if database.exists() else "is missing"
        raise ConfigurationError(
            f"MLflow's database of {settings.home} {state}: {database} held its models. {RESTORE}; "
            "docs/operations.md, 'A lost part', says how to save the votes without one. If the "
            "database is elsewhere, set RLHF_MLFLOW_URL or RLHF_SERVER_URL."
        )


def _refuse_other_place(home: Path, facts: HomeFacts) -> None:
    if facts.home is not None and facts.home.resolve() != home.resolve():
        raise ConfigurationError(
            f"{home} is a copy of {facts.home}, or was moved from there: both would write into the "
            "same databases on the server. Where the first is gone, `rlhf init --join` moves it "
            "here; for a project of its own, restore a backup with another RLHF_DATABASE_PREFIX."
        )


def is_empty(database: Path) -> bool:
    """Whether an SQLite file is missing or has no tables. Does not create it."""
    return (
        not database.exists()
        or database.stat().st_size == 0
        or not database_copy.has_tables(f"sqlite:///{database}")
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

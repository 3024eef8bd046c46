"""Alembic run from code: the way from any version of the tables to the newest and back. Knows
versions/, no query.

A new version is a file versions/v<NNNN>_<what>.py beside the others; `schema.py` changes in the
same commit, and a test holds that both say the same.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.faults import translate_errors

HEAD = "0012"
FOLDER = Path(__file__).parent
LOCK_KEY = 727_461  # of Postgres's advisory lock: any number, always the same


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the tables to `revision` (default: the newest), in one transaction under a lock;
    nothing to do costs one query.

    Raises StoreError where the database was written by a newer version of this package.
    """
    if database.path is not None:
        # SQLite would make it readable by everybody, and gives its log the same mode
        database.path.touch(mode=0o600)
    if revision == "head" and current_revision(database) == HEAD:
        return
    with _lock_migrations(database), translate_errors(database.where):
        if database.is_sqlite:
            _enable_write_ahead_log(database)
        _run(database, revision, "upgrade")
        database.engine.dispose()  # SQLite reads the planner's statistics when a connection opens


def downgrade(database: Database, revision: str) -> None:
    """Take the tables back to `revision`; `base` removes them with all their rows."""
    with _lock_migrations(database), translate_errors(database.where):
        _run(database, revision, "downgrade")


def current_revision(database: Database) -> str | None:
    """The version of the tables; None before the first migration."""
    with database.read_transaction() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(
            text("SELECT version_num FROM alembic_version")
        ).scalar()
        return version


def _run(database: Database, revision: str, direction: str) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    script = ScriptDirectory(str(FOLDER))
    steps: Callable[..., Any] = (
        script._upgrade_revs if direction == "upgrade" else script._downgrade_revs
    )

    with database.engine.execution_options(writes=True).begin() as connection:
        _wait_for_lock(connection, database)
        context = MigrationContext.configure(
            connection,
            opts={
                "transactional_ddl": True,
                "fn": lambda version, _: steps(revision, version),
                "script": script,
            },
        )
        try:
            with Operations.context(context):
                context.run_migrations()
        except CommandError as cause:
            raise StoreError(
                f"The store {database.where} cannot be migrated ({cause}). It was probably written "
                "by a newer version of this package: upgrade the package, or point it at another "
                "store."
            ) from cause


def _enable_write_ahead_log(database: Database) -> None:
    # Kept in the file from then on. Set outside any transaction, where SQLite allows it.
    connection = database.engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def _wait_for_lock(connection: Connection, database: Database) -> None:
    if not database.is_sqlite:
        # a million votes may take longer to rebuild than any query
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})


def _lock_migrations(database: Database) -> AbstractContextManager[None]:
    return (
        _file_lock(Path(f"{database.path}.migrating"), database.busy_timeout_s)
        if database.path
        else _no_lock()
    )


@contextmanager
def _no_lock() -> Iterator[None]:
    yield


@contextmanager
def _file_lock(path: Path, timeout_s: float) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, timeout=timeout_s):
            yield
    except Timeout as cause:
        raise StoreError(
            f"Another process has been migrating the store for {timeout_s:g} s ({path}). Let it "
            "finish, then try again."
        ) from cause

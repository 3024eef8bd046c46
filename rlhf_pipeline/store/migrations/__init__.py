"""Brings the tables of a store to the newest version, with Alembic run from code.

A new version is a file versions/v<NNNN>_<noun>.py beside the others; `schema.py` changes in the
same commit, and a test holds both equal.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.faults import translate_errors

BASE = "0010"
HEAD = "0020"
LAST_COMMIT_BEFORE_BASE = "9b1a569"  # its `rlhf init` upgrades versions 0001 to 0009
FOLDER = Path(__file__).parent
LOCK_KEY = 727_461  # key of the advisory lock of Postgres: any fixed number


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the tables to `revision` (default: the newest), in one transaction under a lock.

    Costs one query if there is nothing to do. Raises StoreError for tables older than BASE and for
    those of a newer version of this package.
    """
    if database.path is not None:
        # SQLite would make it readable by everyone, and its log inherits the mode
        database.path.touch(mode=0o600)
    current = current_revision(database)
    if revision == "head" and current == HEAD:
        return
    _refuse_versions_before_base(database, current, revision)
    with _lock_migrations(database), translate_errors(database.where):
        if database.is_sqlite:
            _enable_write_ahead_log(database)
        _run(database, revision)
        database.engine.dispose()  # SQLite reads the planner's statistics when a connection opens


def current_revision(database: Database) -> str | None:
    """The version of the tables; None before the first migration."""
    with database.read_transaction() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.execute(
            text("SELECT version_num FROM alembic_version")
        ).scalar()
        return version


def _refuse_versions_before_base(database: Database, *versions: str | None) -> None:
    for version in versions:
        if version is not None and version < BASE:
            raise StoreError(
                f"The store {database.where} has tables of version {version}; this package "
                f"upgrades version {BASE} and later. Check out commit {LAST_COMMIT_BEFORE_BASE} "
                "and run its `rlhf init` on this home, then return to this package."
            )


def _run(database: Database, revision: str) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    script = ScriptDirectory(str(FOLDER))
    with database.engine.execution_options(writes=True).begin() as connection:
        _wait_for_lock(connection, database)
        context = MigrationContext.configure(
            connection,
            opts={
                "transactional_ddl": True,
                "fn": lambda version, _: script._upgrade_revs(revision, version),
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
        # a million votes may take longer to change than any query
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})


def _lock_migrations(database: Database) -> AbstractContextManager[None]:
    if database.path is None:
        return nullcontext()
    return _file_lock(Path(f"{database.path}.migrating"), database.busy_timeout_s)


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

"""Makes the tables of a store and brings them to the newest version, with Alembic run from code.

A store with the tables of another commit is refused: see versions/v0001_baseline.py.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import schema
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.faults import translate_errors

HEAD = schema.fingerprint()
FOLDER = Path(__file__).parent
EXPORT_THERE = (
    "Run `rlhf export comparisons` and `rlhf export votes` there with the commit that made it, "
    "then `rlhf import comparisons FILE` and `rlhf import votes FILE` here into a new home "
    "(RLHF_HOME)."
)
LOCK_KEY = 727_461  # key of the advisory lock of Postgres: any fixed number


def upgrade(database: Database) -> None:
    """Make the tables, or bring them to the newest version, in one transaction under a lock.

    Costs one query if there is nothing to do. Raises StoreError for the tables of another commit.
    """
    if database.path is not None:
        # SQLite would make it readable by everyone, and its log inherits the mode
        database.path.touch(mode=0o600)
    current = current_revision(database)
    if current == HEAD:
        return
    with _lock_migrations(database), translate_errors(database.where):
        if database.is_sqlite:
            _enable_write_ahead_log(database)
        _run(database, current)
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


def refusal(where: str, version: str | None) -> StoreError:
    """The error for a store whose tables another commit made."""
    return StoreError(
        f"The store {where} has the tables of another commit (schema {version}; this code has "
        f"{HEAD}). {EXPORT_THERE}"
    )


def _run(database: Database, current: str | None) -> None:
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
                "fn": lambda version, _: script._upgrade_revs("head", version),
                "script": script,
            },
        )
        try:
            with Operations.context(context):
                context.run_migrations()
        except CommandError as cause:
            raise refusal(database.where, current) from cause


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

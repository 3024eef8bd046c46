"""Makes the tables of a store, and refuses those that another commit made.

Until 0.1.0 is released there is one version, a fingerprint of schema.py. It stands in the table in
which Alembic looks for it, so the release can begin its migrations from there.
"""

from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Connection, inspect, text

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import schema
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.faults import translate_errors

HEAD = schema.fingerprint()
EXPORT_THERE = (
    "Run `rlhf export comparisons` and `rlhf export votes` there with the commit that made it, "
    "then `rlhf import comparisons FILE` and `rlhf import votes FILE` here into a new home "
    "(RLHF_HOME)."
)
# Rows of an index, rows that share its first column, its first two, and so on. SQLite guesses ten
# for the first column, so it would read all cards of an annotator to find those held, and begin a
# page of the newest votes of a category with all comparisons of it. Postgres measures for itself.
STATISTICS = (
    ("cards", "ix_cards_annotator", "1000000 3000 1"),
    ("cards", "ix_cards_state", "1000000 3000 50 1"),
    ("offers", "ix_offers_to_do", "1000000 300000 100000 1"),
    ("comparisons", "ix_comparisons_category", "1000000 100000 1000 1 1"),
    ("comparisons", "ix_comparisons_source", "1000000 100000 1000 1 1"),
    ("comparisons", "ix_comparisons_flag", "10000 3000 30 1 1"),
)


def upgrade(database: Database) -> None:
    """Make the tables where there are none, in one transaction. Costs one query if there is nothing
    to do. Raises StoreError for the tables of another commit.
    """
    if database.path is not None:
        # SQLite would make it readable by everyone, and its log inherits the mode
        database.path.touch(mode=0o600)
    if current_revision(database) is None:
        if database.path is not None:
            _enable_write_ahead_log(database, database.path)
        with database.write_transaction() as connection:
            if _read_revision(connection) is None:  # else another process made them meanwhile
                _make_tables(connection)
        database.engine.dispose()  # SQLite reads the planner's statistics when a connection opens
    version = current_revision(database)
    if version != HEAD:
        raise refusal(database.where, version)


def current_revision(database: Database) -> str | None:
    """The version of the tables; None where there are none."""
    with database.read_transaction() as connection:
        return _read_revision(connection)


def refusal(where: str, version: str | None) -> StoreError:
    """The error for a store whose tables another commit made."""
    return StoreError(
        f"The store {where} has the tables of another commit (schema {version}; this code has "
        f"{HEAD}). {EXPORT_THERE}"
    )


def _read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(
        text("SELECT version_num FROM alembic_version")
    ).scalar()
    return version


def _make_tables(connection: Connection) -> None:
    schema.metadata.create_all(connection, checkfirst=False)
    if connection.dialect.name == "sqlite":
        statements = _statements_of_sqlite()
    else:
        statements = _statements_of_postgres()
    for statement in (
        *statements,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        f"INSERT INTO alembic_version VALUES ('{HEAD}')",
    ):
        connection.execute(text(statement))


def _statements_of_sqlite() -> Iterator[str]:
    for table in schema.APPEND_ONLY:
        for change in ("update", "delete"):
            yield (
                f"CREATE TRIGGER {table}_refuse_{change} BEFORE {change.upper()} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
    yield "ANALYZE"  # makes the table of statistics
    for table, index, rows in STATISTICS:
        yield f"INSERT INTO sqlite_stat1 VALUES ('{table}', '{index}', '{rows}')"


def _statements_of_postgres() -> Iterator[str]:
    yield (
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in schema.APPEND_ONLY:
        yield (
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def _enable_write_ahead_log(database: Database, path: Path) -> None:
    """Kept in the file from then on. One process at a time: SQLite does not wait for this lock."""
    lock = Path(f"{path}.migrating")
    try:
        with translate_errors(database.where), FileLock(lock, timeout=database.busy_timeout_s):
            # outside any transaction, where SQLite allows it
            connection = database.engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()
    except Timeout as cause:
        raise StoreError(
            f"Another process holds {lock} and has not made the store. Let it finish, then try "
            "again."
        ) from cause

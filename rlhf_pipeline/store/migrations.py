"""Makes the tables of a store, upgrades those of an earlier version, and refuses all others.

The version stands in the table in which Alembic keeps its own, whose operations change the tables.
"""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Connection, event, inspect, text

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import schema
from rlhf_pipeline.store.database_copy import copy_sqlite
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.faults import translate_errors
from rlhf_pipeline.store.integrity import find_orphans
from rlhf_pipeline.store.schema_changes import CHANGES, SchemaChange, list_versions

HEAD = list_versions()[-1]
EXPORT_THERE = (
    "Run `rlhf export comparisons` and `rlhf export votes` there with the commit that made it, "
    "then `rlhf import preferences FILE FILE` here into a new home (RLHF_HOME)."
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


_log = logging.getLogger(__name__)


def migrate(database: Database) -> None:
    """Make the tables where there are none, in one transaction; else `upgrade` them. Costs one
    query if there is nothing to do.
    """
    if database.path is not None:
        # SQLite would make it readable by everyone, and its log inherits the mode
        database.path.touch(mode=0o600)
    if read_version(database) is None:
        if database.path is not None:
            _enable_write_ahead_log(database, database.path)
        with database.write_transaction() as connection:
            if _read_version(connection) is None:  # else another process made them meanwhile
                _make_tables(connection)
        database.engine.dispose()  # SQLite reads the planner's statistics when a connection opens
    upgrade(database)


def upgrade(database: Database, changes: Sequence[SchemaChange] = CHANGES) -> None:
    """Bring the tables of an earlier version up to date, in one transaction; an SQLite file is
    copied beside itself before. A store without tables stays as it is.

    Raises StoreError for the tables of a later version or of another commit.
    """
    versions = list_versions(changes)
    version = read_version(database)
    if version in (None, versions[-1]):
        return
    if version in versions:
        # with connections of its own: those of others keep watching over references
        with closing(Database(database.url.render_as_string(hide_password=False))) as own:
            _apply(own, changes, versions)
        database.engine.dispose()
        version = read_version(database)
    if version != versions[-1]:
        raise StoreError(describe_other(database.where, version, changes))


def read_version(database: Database) -> str | None:
    """The version of the tables; None where there are none."""
    with database.read_transaction() as connection:
        return _read_version(connection)


def describe_other(
    where: str, version: str | None, changes: Sequence[SchemaChange] = CHANGES
) -> str:
    """What to do with a store of another version than the newest."""
    versions = list_versions(changes)
    if version in versions:
        return (
            f"The store {where} has the tables of an earlier version (schema {version}; this code "
            f"has {versions[-1]}), so it was not read. The next command that uses it upgrades it: "
            "run `rlhf status`, then this again."
        )
    number = (version or "").partition("-")[0]
    if number.isdecimal() and "-" in (version or "") and int(number) > len(changes):
        return (
            f"The store {where} has the tables of a later version (schema {version}; this code has "
            f"{versions[-1]}). Install that version: `pip install --upgrade rlhf-pipeline`."
        )
    return (
        f"The store {where} has the tables of another commit (schema {version}; this code has "
        f"{versions[-1]}). {EXPORT_THERE}"
    )


def list_copies(database: Database) -> list[Path]:
    """The copies of an SQLite file that upgrades made, oldest first."""
    if database.path is None:
        return []
    return sorted(database.path.parent.glob(f"{database.path.name}.before-*[0-9]"))


def _read_version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.execute(
        text("SELECT version_num FROM alembic_version")
    ).scalar()
    return version


def _make_tables(connection: Connection) -> None:
    schema.metadata.create_all(connection, checkfirst=False)
    if connection.dialect.name == "sqlite":
        connection.execute(text("ANALYZE"))  # makes the table of statistics
    for statement in (
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        f"INSERT INTO alembic_version VALUES ('{HEAD}')",
    ):
        connection.execute(text(statement))
    _add_triggers_and_statistics(connection)


def _apply(own: Database, changes: Sequence[SchemaChange], versions: Sequence[str]) -> None:
    """Apply the changes that a store lacks. `own` serves only this call."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    if own.is_sqlite:
        # SQLite changes a column by making its table anew, and would refuse to drop a table to
        # which rows refer.
        event.listen(own.engine, "connect", _ignore_references)
    with own.write_transaction() as connection:
        done = versions.index(_read_version(connection) or "")
        if done == len(changes):
            return  # another process was first
        if own.path is not None:
            _copy(own.path, Path(f"{own.path}.before-{done + 1}"))
        _drop_triggers(connection)
        context = MigrationContext.configure(connection, opts={"target_metadata": schema.metadata})
        for change, version in zip(changes[done:], versions[done + 1 :], strict=True):
            change.apply(Operations(context))
            _log.warning("%s: schema %s, to %s", own.where, version, change.title)
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{versions[-1]}'"))
        _add_triggers_and_statistics(connection)
        if orphans := find_orphans(connection):
            raise StoreError(
                f"The store {own.where} was not upgraded: {' '.join(orphans)} Restore the last "
                "backup, or go on with the version that made the store."
            )


def _ignore_references(connection: sqlite3.Connection, record: object) -> None:
    connection.execute("PRAGMA foreign_keys=OFF")


def _copy(path: Path, copy: Path) -> None:
    """As of the transaction that holds the lock."""
    copy.unlink(missing_ok=True)  # of an upgrade that was interrupted: the store is as it was
    copy.touch(mode=0o600)
    copy_sqlite(path, copy)
    _log.warning("%s is a copy of the store before its upgrade; remove it when all is well", copy)


def _drop_triggers(connection: Connection) -> None:
    """Those of append-only tables: a change may fill a new column of old rows, and a table that
    SQLite makes anew loses its own.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(text("DROP FUNCTION refuse_change CASCADE"))
        return
    names = text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE :refusal")
    for name in connection.execute(names, {"refusal": "% is append-only%"}).scalars().all():
        connection.execute(text(f"DROP TRIGGER {name}"))


def _add_triggers_and_statistics(connection: Connection) -> None:
    is_sqlite = connection.dialect.name == "sqlite"
    for statement in _statements_of_sqlite() if is_sqlite else _statements_of_postgres():
        connection.execute(text(statement))


def _statements_of_sqlite() -> Iterator[str]:
    for table in schema.APPEND_ONLY:
        for change in ("update", "delete"):
            yield (
                f"CREATE TRIGGER {table}_refuse_{change} BEFORE {change.upper()} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
    yield "DELETE FROM sqlite_stat1"
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

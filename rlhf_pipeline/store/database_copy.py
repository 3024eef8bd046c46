"""Copies databases: an SQLite file or a Postgres database whole, or table by table to Postgres."""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import (
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    inspect,
    literal,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from rlhf_pipeline.core.config import extend_environ
from rlhf_pipeline.core.errors import ConfigurationError, StoreError
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.store.engine import read_only_engine, read_only_uri
from rlhf_pipeline.store.faults import describe_url, explain, translate_errors
from rlhf_pipeline.store.postgres import network_options

ROWS = 5_000  # read and written at a time
VERSIONS = "alembic_version"  # written by the owner of the tables
SHOWN = 3  # faults of one file that are named
UNREADABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def sqlite_file(url: str) -> Path:
    return Path(make_url(url).database or "")


def find_damage(file: Path) -> str:
    """What SQLite's own check finds in a file, which is not changed; empty for a sound one."""
    try:
        with closing(sqlite3.connect(read_only_uri(file), uri=True, timeout=30)) as database:
            rows = database.execute(f"PRAGMA integrity_check({SHOWN})").fetchall()
    except sqlite3.Error as cause:
        return str(cause)
    return "" if rows == [("ok",)] else "; ".join(" ".join(row[0].split()) for row in rows)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database in use, with its log, as one file. One that SQLite cannot read is copied as
    it is. Raises StoreError if the disk refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
            ) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode=DELETE")  # one file, not three
    except sqlite3.Error as cause:
        if cause.sqlite_errorcode & 0xFF not in UNREADABLE:
            raise StoreError(f"{source} to {target}: {explain(str(cause))}") from cause
        shutil.copyfile(source, target)


def dump_postgres(url: str, file: Path) -> None:
    """Write a whole database as of one moment, in `pg_dump`'s own format."""
    _run_client("pg_dump", url, "--format=custom", "--no-owner", "--no-acl", f"--file={file}")


def load_postgres(url: str, file: Path) -> None:
    """Load a dump in one transaction; tables of the same names are replaced."""
    options = ("--clean", "--if-exists", "--no-owner", "--no-acl", "--single-transaction")
    _run_client("pg_restore", url, *options, str(file))


def _run_client(program: str, url: str, *options: str) -> None:
    parsed = make_url(url).set(drivername="postgresql")
    # not on the command line, which every user of the machine can list
    secret = {} if parsed.password is None else {"PGPASSWORD": str(parsed.password)}
    plain = parsed._replace(password=None).render_as_string(hide_password=False)
    try:
        done = subprocess.run(
            [program, f"--dbname={plain}", *options],
            env=extend_environ(**secret),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as cause:
        raise ConfigurationError(
            f"{program} is not installed. Install PostgreSQL's client programs, of the server's "
            "version or newer."
        ) from cause
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"{program} was killed"
        raise StoreError(f"{program} of {plain}: {explain(why)}")


def copy_tables(
    source_url: str,
    target_url: str,
    tables: MetaData | None = None,
    *,
    progress: Progress = ignore_progress,
) -> dict[str, int]:
    """Copy the rows of every table, in one transaction, into the tables that their owner made in a
    Postgres database; returns their numbers.

    Rows are read with the types of the target, so that text and 0/1 of SQLite become the types of
    Postgres. Rows of the target, such as those that creating its tables inserted, are deleted.
    Raises StoreError for a table that the target lacks.
    """
    with open_engine(source_url) as source, open_engine(target_url) as target:
        if tables is None:
            tables = MetaData()
            tables.reflect(target)
        here = set(inspect(source).get_table_names()) - {VERSIONS}
        copy_order = [table for table in tables.sorted_tables if table.name in here]
        if lost := here - {table.name for table in copy_order}:
            raise StoreError(
                f"The target lacks tables of {source_url}: {', '.join(sorted(lost))}. Different "
                "versions made them: upgrade, then migrate again."
            )
        counts = {}
        with source.connect() as reading, target.begin() as writing:
            for table in reversed(copy_order):
                if writing.execute(select(table).limit(1)).first():
                    writing.execute(table.delete())
            for done, table in enumerate(copy_order, start=1):
                counts[table.name] = _copy_rows(reading, writing, table)
                progress(done, len(copy_order), table.name)
        with target.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))  # else Postgres plans for empty tables
    return counts


def _copy_rows(reading: Connection, writing: Connection, table: Table) -> int:
    """The number of copied rows; the sequence of the table's key goes on behind them."""
    n = 0
    columns = [column for column in table.c if column.computed is None]
    result = reading.execution_options(stream_results=True).execute(select(*columns)).mappings()
    while rows := result.fetchmany(ROWS):
        writing.execute(table.insert(), [dict(row) for row in rows])
        n += len(rows)
    for column in table.c:
        if column.primary_key and column.type.python_type is int:
            sequence = writing.execute(
                text("SELECT pg_get_serial_sequence(:t, :c)"),
                {"t": f'"{table.name}"', "c": column.name},
            ).scalar()
            if sequence:
                highest = select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()
                writing.execute(select(func.setval(sequence, highest, False)))
    return n


def has_tables(url: str) -> bool:
    """Whether the database exists and has tables. A SQLite file is neither created nor changed."""
    if is_sqlite(url) and not sqlite_file(url).exists():
        return False
    engine = read_only_engine(sqlite_file(url)) if is_sqlite(url) else engine_of(url)
    try:
        with engine.connect() as connection:
            return bool(inspect(connection).get_table_names())
    except SQLAlchemyError as cause:
        if "does not exist" in str(cause):
            return False
        with translate_errors(describe_url(engine.url)):
            raise
    finally:
        engine.dispose()
    return False


def forbid_writes(connection: Connection, where: str) -> None:
    """Let every later writer of an SQLite store fail with its new place: each act adds a link."""
    quoted = where.replace("'", "''")
    connection.execute(
        text(
            "CREATE TRIGGER audit_moved BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, "
            f"'this store was moved to {quoted}'); END"
        )
    )


def relocate(url: str, old: str, new: str) -> None:
    """Replace the prefix `old` of every text in the database by `new`, after a home was moved."""
    with open_engine(url) as engine, engine.begin() as connection:
        tables = MetaData()
        tables.reflect(connection)
        for table in tables.sorted_tables:
            for column in table.c:
                if isinstance(column.type, String):
                    moved = literal(new, String).concat(func.substr(column, len(old) + 1))
                    starts = func.substr(column, 1, len(old)) == old
                    connection.execute(table.update().where(starts).values({column.name: moved}))


def engine_of(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return create_engine(parsed, poolclass=NullPool, connect_args={"timeout": 30})
    options = {**network_options(parsed), "options": "-c timezone=UTC"}
    return create_engine(
        parsed.set(drivername="postgresql+psycopg2"), poolclass=NullPool, connect_args=options
    )


@contextmanager
def open_engine(url: str) -> Iterator[Engine]:
    """`engine_of` with translated errors, disposed of at the end."""
    engine = engine_of(url)
    try:
        with translate_errors(describe_url(engine.url)):
            yield engine
    finally:
        engine.dispose()

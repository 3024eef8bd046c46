"""Copies whole databases between engines, with counts and hashes of both sides.

Rows are read with the types of the target, so that text and 0/1 of SQLite become the types of
Postgres. A database is copied in one transaction, so a killed copy leaves nothing. The hash of a
table does not depend on the order of its rows.
"""

import hashlib
import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
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

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Record
from rlhf_pipeline.store.engine import Database, read_only_engine
from rlhf_pipeline.store.faults import explain, translate_errors
from rlhf_pipeline.store.postgres import network_options
from rlhf_pipeline.store.schema import metadata as store_tables

ROWS = 5_000  # read and written at a time
MODULUS = 1 << 256
VERSIONS = {"alembic_version"}  # written by the owner of the tables
SEALED = ("audit", "votes")  # every act that must survive writes one of them


class CopiedTable(Record):
    """One table on both sides: rows, and SHA-256 over all of them."""

    database: str
    table: str
    n_source: int
    n_target: int
    source_hash: str
    target_hash: str

    @property
    def is_equal(self) -> bool:
        return (self.n_source, self.source_hash) == (self.n_target, self.target_hash)


class TableHash:
    """Sum of the SHA-256 of all rows: independent of their order, different if a row comes
    twice.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, values: Sequence[Any]) -> None:
        plain = json.dumps(
            [canonical_value(value) for value in values],
            sort_keys=True,
            ensure_ascii=False,
            separators=(",", ":"),
        )
        self._sum = (
            self._sum
            + int.from_bytes(hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest(), "big")
        ) % MODULUS
        self.rows += 1

    @property
    def hex(self) -> str:
        return f"{self._sum:064x}"


def canonical_value(value: Any) -> Any:
    """A value in the form that both databases share: times in UTC, bytes in hex, decimals
    as text.
    """
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, Decimal | date):
        return str(value)
    return value


def copy_store(
    source: str, target: str, *, progress: Progress = ignore_progress
) -> list[CopiedTable]:
    """Copy the store's tables into migrated, empty ones."""
    return _copy("store", source, target, tables=store_tables, progress=progress)


def copy_database(
    name: str,
    source: str,
    target: str,
    *,
    only: Collection[str] | None = None,
    leave: Collection[str] = (),
    progress: Progress = ignore_progress,
) -> list[CopiedTable]:
    """Copy every table that `target` has, or `only` these, into the tables that their owner made
    there; the target's rows are deleted first.

    Tables that the source lacks are left as they are. Raises StoreError if the source has rows for
    which the target has no table: both were then made by different versions of their owner.
    """
    return _copy(name, source, target, only=only, leave=leave, progress=progress)


def _copy(
    name: str,
    source_url: str,
    target_url: str,
    *,
    tables: MetaData | None = None,
    only: Collection[str] | None = None,
    leave: Collection[str] = (),
    progress: Progress = ignore_progress,
) -> list[CopiedTable]:
    source, target = engine_of(source_url), engine_of(target_url)
    try:
        with translate_errors(_redact_url(source)):
            here = set(inspect(source).get_table_names())
        with translate_errors(_redact_url(target)):
            if tables is None:
                tables = MetaData()
                tables.reflect(target)
        wanted = [
            t
            for t in tables.sorted_tables
            if t.name in here
            and t.name not in {*VERSIONS, *leave}
            and (only is None or t.name in only)
        ]
        with translate_errors(_redact_url(source)), source.connect() as connection:
            counts = {
                t.name: connection.execute(select(func.count()).select_from(t)).scalar_one()
                for t in wanted
            }
            lost = [
                n
                for n in sorted(here - set(tables.tables) - {*VERSIONS, *leave})
                if only is None and _has_rows(connection, n)
            ]
        if lost:
            raise StoreError(
                f"{_redact_url(source)} holds rows of {', '.join(lost)}, for which "
                f"{_redact_url(target)} has no table: they were made by different versions. "
                "Upgrade both with the version that runs now, then move."
            )
        copied = list(
            _copy_each_table(name, source, target, wanted, sum(counts.values()), progress)
        )
    finally:
        source.dispose()
        target.dispose()
    analyze_tables(target_url)
    return copied


def _copy_each_table(
    name: str,
    source: Engine,
    target: Engine,
    tables: Sequence[Table],
    n_rows: int,
    progress: Progress,
) -> Iterator[CopiedTable]:
    hashes: dict[str, TableHash] = {}
    done = 0
    with (
        translate_errors(f"{_redact_url(source)} or {_redact_url(target)}"),
        source.connect() as reading,
        target.begin() as writing,
    ):
        for table in reversed(tables):
            # rows that creating the tables inserted, such as MLflow's first experiment
            if _has_rows(writing, table.name):
                writing.execute(table.delete())
        for table in tables:
            hashes[table.name] = TableHash()
            for rows in _read_batches(reading, table):
                for row in rows:
                    hashes[table.name].add(row)
                _write(writing, table, rows)
                done += len(rows)
                progress(done, n_rows, f"{name}.{table.name}")
            advance_sequences(writing, table)
    for table in tables:
        there = hash_of(target, table)
        yield CopiedTable(
            database=name, table=table.name, n_source=hashes[table.name].rows, n_target=there.rows,
            source_hash=hashes[table.name].hex, target_hash=there.hex,
        )  # fmt: skip


def hash_of(engine: Engine, table: Table) -> TableHash:
    """Hash of the stored rows, read in batches."""
    found = TableHash()
    with translate_errors(_redact_url(engine)), engine.connect() as connection:
        for rows in _read_batches(connection, table):
            for row in rows:
                found.add(row)
    return found


def _read_batches(connection: Connection, table: Table) -> Iterator[Sequence[Any]]:
    streamed = connection.execution_options(stream_results=True, max_row_buffer=ROWS)
    result = streamed.execute(select(*stored_columns(table)))
    yield from iter(lambda: result.fetchmany(ROWS), [])


def _write(connection: Connection, table: Table, rows: Sequence[Any]) -> None:
    names = [column.name for column in stored_columns(table)]
    if connection.dialect.name != "postgresql":
        connection.execute(table.insert(), [dict(zip(names, row, strict=True)) for row in rows])
        return
    is_json = [isinstance(column.type, JSON) for column in stored_columns(table)]
    lines = io.StringIO()
    for row in rows:
        lines.write(
            "\t".join(
                encode_copy_json(value) if json_there else encode_copy_value(value)
                for value, json_there in zip(row, is_json, strict=True)
            )
        )
        lines.write("\n")
    lines.seek(0)
    columns = ", ".join(f'"{name}"' for name in names)
    try:
        copy_rows(connection, f'COPY "{table.name}" ({columns}) FROM STDIN', lines)
    except (ValueError, StoreError) as cause:
        raise StoreError(f"{table.name}: {cause} {_describe_nul_row(table, rows)}") from cause


# What COPY reads otherwise:
# https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def encode_copy_value(value: Any) -> str:
    r"""One value as Postgres's COPY reads it.

    >>> [encode_copy_value(value) for value in (None, "a\tb", True, b"\x00")]
    ['\\N', 'a\\tb', 't', '\\\\x00']
    """
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes | memoryview):
        return "\\\\x" + bytes(value).hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value).translate(ESCAPES)


def encode_copy_json(value: Any) -> str:
    """A value of a JSON column, in which a text is a value like any other."""
    return "\\N" if value is None else json.dumps(value).translate(ESCAPES)


def _describe_nul_row(table: Table, rows: Sequence[Any]) -> str:
    names = [column.name for column in stored_columns(table)]
    keys = [column.name for column in table.primary_key]
    for row in rows:
        if any(isinstance(value, str) and "\x00" in value for value in row):
            named = ", ".join(
                f"{key}={value!r}" for key, value in zip(names, row, strict=True) if key in keys
            )
            return f"The row with {named} holds a NUL character, which Postgres cannot keep."
    return "Nothing was copied."


def advance_sequences(connection: Connection, table: Table) -> None:
    """Set Postgres's sequences behind the copied numbers."""
    if connection.dialect.name != "postgresql":
        return
    for column in table.c:
        if column.primary_key and column.type.python_type is int:
            sequence = connection.execute(
                text("SELECT pg_get_serial_sequence(:t, :c)"),
                {"t": f'"{table.name}"', "c": column.name},
            ).scalar()
            if sequence:
                highest = select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()
                connection.execute(select(func.setval(sequence, highest, False)))


def analyze_tables(url: str) -> None:
    """Make Postgres analyze all tables that were just filled. SQLite has statistics from the
    start.

    Postgres does so some minutes later, or never if autovacuum is off. Until then it plans as for
    empty tables, and an export that joins votes and comparisons reads all of one for each of the
    other.
    """
    with (
        open_engine(url) as engine,
        suppress(SQLAlchemyError),  # optional: the copy is complete without
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        if connection.dialect.name == "postgresql":
            for name in inspect(connection).get_table_names():
                connection.execute(text(f'ANALYZE "{name}"'))


def n_rows(url: str, tables: Collection[str] | None = None) -> dict[str, int]:
    """Number of rows per existing table, or per existing one of `tables`."""
    with open_engine(url) as engine, engine.connect() as connection:
        names = [
            n
            for n in sorted(inspect(connection).get_table_names())
            if n not in VERSIONS and (tables is None or n in tables)
        ]
        return {
            name: connection.execute(text(f'SELECT count(*) FROM "{name}"')).scalar_one()
            for name in names
        }


def has_tables(url: str) -> bool:
    """Whether the database exists and has tables. A SQLite file is neither created nor changed."""
    parsed = make_url(url)
    file = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
    if file is not None and not file.exists():
        return False
    engine = engine_of(url) if file is None else read_only_engine(file)
    try:
        with engine.connect() as connection:
            return bool(inspect(connection).get_table_names())
    except SQLAlchemyError as cause:
        if "does not exist" in str(cause):
            return False
        with translate_errors(parsed.render_as_string(hide_password=True)):
            raise
    finally:
        engine.dispose()
    return False


def drop_all_tables(url: str) -> None:
    """Drop every table of a Postgres database that a killed copy or `--replace` leaves behind."""
    with open_engine(url) as engine, engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))


def relocate(url: str, old: str, new: str) -> int:
    """Replace the prefix `old` of every text in the database by `new`, after a home was moved.
    Returns the number of values.
    """
    changed = 0
    with open_engine(url) as engine, engine.begin() as connection:
        tables = MetaData()
        tables.reflect(connection)
        for table in tables.sorted_tables:
            for column in table.c:
                if isinstance(column.type, String):
                    moved = literal(new, String).concat(func.substr(column, len(old) + 1))
                    starts = func.substr(column, 1, len(old)) == old
                    changed += connection.execute(
                        table.update().where(starts).values({column.name: moved})
                    ).rowcount
    return changed


@contextmanager
def pause_writes(database: Database) -> Iterator[Callable[[str], None]]:
    """Block all writers of this store inside the block; `seal(where)` makes that permanent: later
    writers get an error that names the new place.
    """
    with database.write_transaction() as connection:
        yield lambda where: _block_inserts(connection, where)


def _block_inserts(connection: Connection, where: str) -> None:
    quoted = where.replace("'", "''")
    for table in SEALED:
        connection.execute(text(f"DROP TRIGGER IF EXISTS {table}_moved"))
        connection.execute(
            text(
                f"CREATE TRIGGER {table}_moved BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, "
                f"'this store was moved to {quoted}'); END"
            )
        )


def _has_rows(connection: Connection, table: str) -> bool:
    return connection.execute(text(f'SELECT 1 FROM "{table}" LIMIT 1')).scalar() is not None


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
        with translate_errors(_redact_url(engine)):
            yield engine
    finally:
        engine.dispose()


def stored_columns(table: Table) -> list[Column[Any]]:
    """Columns that are written; computed ones can be neither written nor lost."""
    return [column for column in table.c if column.computed is None]


def copy_rows(connection: Connection, statement: str, file: Any) -> int:
    """Run one COPY of Postgres from or to a file within the open transaction, which SQLAlchemy
    cannot express; returns the number of rows.
    """
    driver = connection.dialect.dbapi
    assert driver is not None  # the connection came from it
    with closing(connection.connection.cursor()) as cursor:
        try:
            cursor.copy_expert(statement, file)
        except driver.Error as cause:
            raise StoreError(
                f"{_redact_url(connection.engine)}: {explain(str(cause))} "
                f"({statement.partition(' (')[0]})"
            ) from cause
        return int(cursor.rowcount)


def _redact_url(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)

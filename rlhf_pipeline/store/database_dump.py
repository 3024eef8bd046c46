"""Dumps a database in use to files and loads it: a SQLite file, or Postgres tables as CSV.

Both capture one moment of the database.
"""

import gzip
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, MetaData, make_url, text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Record
from rlhf_pipeline.store.database_copy import (
    advance_sequences,
    analyze_tables,
    copy_rows,
    open_engine,
    stored_columns,
)
from rlhf_pipeline.store.engine import read_only_uri

DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}


class DumpedTable(Record):
    """One table of a Postgres database: its file, its columns in the file's order, its rows."""

    table: str
    file: str
    columns: tuple[str, ...]
    n_rows: int


def is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def sqlite_file(url: str) -> Path:
    return Path(make_url(url).database or "")


def copy_sqlite(source: Path, target: Path, *, uri: str | None = None) -> dict[str, int]:
    """Copy an SQLite file and its log consistently with SQLite's online backup; returns the rows of
    each table.

    `uri` opens the file in another way than `mode=ro`. Raises StoreError for a file that is not a
    database, and if the disk refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        with (
            closing(
                sqlite3.connect(
                    uri or f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30
                )
            ) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            # in one step: otherwise the copy restarts after each write in between, perhaps
            # for ever
            old.backup(new)
            new.execute("PRAGMA journal_mode=DELETE")  # one file, not three
            tables = [
                row[0]
                for row in new.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE "
                    "'sqlite_%'"
                )
            ]
            return {
                table: new.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
                for table in sorted(tables)
            }
    except sqlite3.Error as cause:
        raise StoreError(
            f"{source} cannot be copied to {target}: {cause}. Free disk space, or look at it with "
            "`rlhf check`."
        ) from cause


def copy_verified_sqlite(source: Path, target: Path) -> dict[str, int]:
    """`copy_sqlite` that leaves nothing beside `source`. Raises StoreError for a file with
    inconsistent pages.
    """
    try:
        rows = copy_sqlite(source, target, uri=read_only_uri(source))
        with closing(sqlite3.connect(target)) as copy:
            found = [row[0] for row in copy.execute("PRAGMA integrity_check")]
    except (StoreError, sqlite3.Error) as cause:
        raise StoreError(
            f"{source} is damaged: {cause.__cause__ or cause}. Restore the last backup."
        ) from cause
    if found != ["ok"]:
        raise StoreError(f"{source} is damaged: {found[0]}. Restore the last backup.")
    return rows


def is_damaged(file: Path) -> bool:
    """Whether an SQLite file cannot be read or has inconsistent pages; a locked file or one of
    another version is not damaged.
    """
    try:
        with closing(sqlite3.connect(read_only_uri(file), uri=True, timeout=30)) as database:
            return [row[0] for row in database.execute("PRAGMA integrity_check")] != ["ok"]
    except sqlite3.Error as cause:
        return cause.sqlite_errorcode & 0xFF in DAMAGE


def dump_postgres(
    url: str, folder: Path, *, progress: Progress = ignore_progress
) -> list[DumpedTable]:
    """Write every table of one snapshot as `<folder>/<table>.csv.gz` with a header, referenced
    tables first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open_engine(url) as engine,
        engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection,
    ):
        tables = MetaData()
        tables.reflect(connection)
        dumped = []
        for done, table in enumerate(tables.sorted_tables):
            columns = tuple(column.name for column in stored_columns(table))
            file = folder / f"{table.name}.csv.gz"
            with gzip.open(file, "wb", compresslevel=3) as packed:
                n_rows = copy_rows(
                    connection,
                    f'COPY "{table.name}" ({_quote_columns(columns)}) TO STDOUT WITH (FORMAT '
                    "csv, HEADER)",
                    packed,
                )
            dumped.append(
                DumpedTable(table=table.name, file=file.name, columns=columns, n_rows=n_rows)
            )
            progress(done + 1, len(tables.tables), table.name)
        return dumped


def load_postgres(
    url: str, folder: Path, tables: Sequence[DumpedTable], *, progress: Progress = ignore_progress
) -> None:
    """Load rows into empty tables in one transaction and advance the sequences.

    Raises StoreError if the tables are of another version, or have another number of rows
    afterwards.
    """
    with open_engine(url) as engine, engine.begin() as connection:
        shown = engine.url.render_as_string(hide_password=True)
        there = MetaData()
        there.reflect(connection)
        for dump in tables:
            _refuse_other_columns(shown, dump, there)
        for table in reversed(there.sorted_tables):
            if (
                table.name in {dump.table for dump in tables}
                and connection.execute(text(f'SELECT 1 FROM "{table.name}" LIMIT 1')).scalar()
            ):
                connection.execute(table.delete())
        for done, dump in enumerate(tables):
            n = _load(connection, folder, dump)
            if n != dump.n_rows:
                raise StoreError(
                    f"{dump.file} holds {n} rows, not {dump.n_rows} as the manifest says. "
                    "Nothing was restored."
                )
            advance_sequences(connection, there.tables[dump.table])
            progress(done + 1, len(tables), dump.table)
    analyze_tables(url)


def _load(connection: Connection, folder: Path, dump: DumpedTable) -> int:
    with gzip.open(folder / dump.file, "rb") as packed:
        return copy_rows(
            connection,
            f'COPY "{dump.table}" ({_quote_columns(dump.columns)}) FROM STDIN WITH (FORMAT csv, '
            "HEADER)",
            packed,
        )


def _refuse_other_columns(shown: str, dump: DumpedTable, there: MetaData) -> None:
    found = (
        {column.name for column in there.tables[dump.table].c}
        if dump.table in there.tables
        else set()
    )
    missing = sorted(set(dump.columns) - found)
    if missing:
        raise StoreError(
            f"{shown} has no {dump.table}.{missing[0]}: the backup was made by another version of "
            "its owner. Install the versions that the manifest names, and restore."
        )


def _quote_columns(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)

"""Connections and transactions of a home's database, SQLite or Postgres."""

import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Select,
    Table,
    create_engine,
    event,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.pool import NullPool

from rlhf_pipeline.core.config import BARE_SCHEMES, DRIVER
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.protocols import Clock
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.faults import describe_url, translate_errors
from rlhf_pipeline.store.postgres import IDLE_S, postgres_engine

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
MAX_ROWS = 500  # of one write transaction, so that nobody waits long for the lock
# between two attempts to begin: SQLite's own waiting sleeps up to 100 ms
POLL_S = 0.002
SERIES_PAUSE_S = 0.01  # between two transactions of a series: other writers go first
# Pages at hand of SQLite. An import touches the leaves of a million votes' indexes in no order:
# reading these again and again took a fifth of its time.
CACHE_KB = 64_000
LOCK_KEY = 727_463  # of writers, on Postgres: any fixed number
MAX_PARAMETERS = 10_000  # values of one IN list: below SQLite's 32,766 and Postgres's 65,535

# A process that hangs in the middle of its transaction must not hold the lock forever.
_TAKE_LOCK = text(
    f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_S}s', true), "
    "pg_advisory_xact_lock(:key)"
)


class SystemClock:
    """The real time."""

    def now(self) -> datetime:
        return utc_now()


class Database:
    """One engine and its transactions.

    One writes at a time on both databases (SQLite: BEGIN IMMEDIATE, Postgres: an
    advisory lock held to commit), so what a write transaction read is still true when it commits.
    With `read_only` an SQLite file must exist, and nothing is created or changed.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        read_only: bool = False,
    ):
        self.url = _parse(url)
        self.clock: Clock = clock or SystemClock()
        self.busy_timeout_s = busy_timeout_s
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.path = _sqlite_path(self.url, read_only=read_only) if self.is_sqlite else None
        if self.path is not None and read_only:
            self.engine = read_only_engine(self.path, busy_timeout_s)
        elif self.is_sqlite:
            self.engine = _sqlite_engine(self.url, busy_timeout_s)
        else:
            self.engine = postgres_engine(self.url, busy_timeout_s=busy_timeout_s)
        self._writers = self.engine.execution_options(writes=True)
        # On Postgres each statement sees what was committed before it, unless the isolation level
        # keeps one state for the transaction.
        self._readers = (
            self.engine
            if self.is_sqlite
            else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )
        self._write_lock = threading.Lock()  # of the threads of this process
        if self.is_sqlite:
            self._begin_immediately()

    @property
    def where(self) -> str:
        return str(self.path) if self.path else describe_url(self.url)

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with translate_errors(self.where), self._readers.begin() as connection:
            yield connection

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """A transaction that holds the write lock; commits at the end, rolls back after an
        error. Raises StoreError if the lock is not free within the timeout.
        """
        # Threads of one process queue before they take a connection: on Postgres each that waits
        # would hold one of the server's.
        with (
            translate_errors(self.where),
            self._hold_write_lock(),
            self._writers.begin() as connection,
        ):
            if not self.is_sqlite:
                connection.execute(_TAKE_LOCK, {"key": LOCK_KEY})
            yield connection

    @contextmanager
    def _hold_write_lock(self) -> Iterator[None]:
        if not self._write_lock.acquire(timeout=self.busy_timeout_s):
            raise OperationalError(
                "BEGIN", None, sqlite3.OperationalError("database is locked by another thread")
            )
        try:
            yield
        finally:
            self._write_lock.release()

    def fetch_all(self, query: Select[Any]) -> Sequence[Any]:
        """All rows of a query in a transaction of its own."""
        with self.read_transaction() as connection:
            return connection.execute(query).all()

    def fetch_mappings(self, query: Select[Any]) -> Sequence[RowMapping]:
        """Its rows by the names of their columns."""
        with self.read_transaction() as connection:
            return connection.execute(query).mappings().all()

    def fetch_scalars(self, query: Select[T]) -> Sequence[T]:
        """The first column of its rows."""
        with self.read_transaction() as connection:
            return connection.execute(query).scalars().all()

    def fetch_scalar(self, query: Select[T]) -> T | None:
        """The first column of its first row; None if there is no row."""
        with self.read_transaction() as connection:
            return connection.execute(query).scalar()

    def fetch_first(self, query: Select[Any]) -> Any:
        """None if there is no row."""
        with self.read_transaction() as connection:
            return connection.execute(query).first()

    def fetch_among(
        self, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]
    ) -> list[Any]:
        """The rows in which `column` is one of `values`, as many values at once as a database
        takes, in one transaction.
        """
        with self.read_transaction() as connection:
            return [
                row
                for some in batches(sorted(set(values)), MAX_PARAMETERS)
                for row in connection.execute(query.where(column.in_(some))).all()
            ]

    def count(self, table: Table, *conditions: ColumnElement[bool]) -> int:
        """The rows of a table that meet the conditions."""
        rows = select(func.count()).select_from(table).where(*conditions)
        return self.fetch_scalar(rows) or 0

    def insert(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows that have the same columns."""
        if rows and self.is_sqlite:
            statement, columns = _build_insert(table, tuple(rows[0]))
            values = (process(map(itemgetter(name), rows)) for name, process in columns)
            connection.exec_driver_sql(statement, [*zip(*values, strict=True)])
        elif rows:
            connection.execute(table.insert(), list(rows))

    def insert_new(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Insert rows but those whose key exists."""
        if rows:
            insert = _begin_insert(self.is_sqlite, table)
            connection.execute(insert.on_conflict_do_nothing(), list(rows))

    def upsert(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        key: tuple[str, ...],
        unchanged: tuple[str, ...] = (),
    ) -> None:
        """Insert rows, or replace those with the same `key` but for their `unchanged` columns."""
        if rows:
            connection.execute(_build_upsert(self.is_sqlite, table, key, unchanged), list(rows))

    def next_number(
        self, connection: Connection, column: Column[int], *conditions: ColumnElement[bool]
    ) -> int:
        """One more than the highest number in a column, within a write transaction."""
        highest = select(func.max(column)).where(*conditions)
        return (connection.execute(highest).scalar() or 0) + 1

    def close(self) -> None:
        self.engine.dispose()

    def with_backoff(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches, one transaction each; between two of them waiting writers go first.
        Without it a page's vote would wait for a whole import. Making a batch is part of the pause.
        """
        earliest = 0.0
        for batch in batches:
            time.sleep(max(0.0, earliest - time.monotonic()))
            yield batch
            earliest = time.monotonic() + SERIES_PAUSE_S

    def _begin_immediately(self) -> None:
        """Begin SQLite's write transactions with the lock, as soon as it is free."""

        @event.listens_for(self.engine, "begin")
        def begin(connection: Connection) -> None:
            if not connection.get_execution_options().get("writes", False):
                connection.exec_driver_sql("BEGIN")
                return
            driver: Any = connection.connection.driver_connection
            deadline = time.monotonic() + self.busy_timeout_s
            driver.execute("PRAGMA busy_timeout=0")
            try:
                while not driver.in_transaction:
                    try:
                        driver.execute("BEGIN IMMEDIATE")
                    except sqlite3.OperationalError as refused:
                        is_busy = refused.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                        if not is_busy or time.monotonic() > deadline:
                            raise OperationalError("BEGIN IMMEDIATE", None, refused) from refused
                        time.sleep(POLL_S)
            finally:
                driver.execute(f"PRAGMA busy_timeout={int(self.busy_timeout_s * 1000)}")


class Repository:
    """Base of the store's nouns."""

    def __init__(self, database: Database):
        self._database = database


@cache
def _build_insert(table: Table, names: tuple[str, ...]) -> tuple[str, list[tuple[str, Any]]]:
    """SQLite's statement, and by column what turns values into the driver's."""
    dialect = sqlite.dialect()
    compiled = table.insert().compile(dialect=dialect, column_keys=list(names))
    processors = {n: table.c[n].type.dialect_impl(dialect).bind_processor(dialect) for n in names}
    return str(compiled), [
        (name, partial(map, process) if (process := processors[name]) else iter)
        for name in compiled.positiontup or ()
    ]


@cache
def _build_upsert(
    is_sqlite: bool, table: Table, key: tuple[str, ...], unchanged: tuple[str, ...]
) -> Any:
    insert = _begin_insert(is_sqlite, table)
    changed = {name: c for name, c in insert.excluded.items() if name not in key + unchanged}
    return insert.on_conflict_do_update(index_elements=key, set_=changed)


def _begin_insert(is_sqlite: bool, table: Table) -> Any:
    """An insert that knows conflicts, by the database's own dialect."""
    if is_sqlite:
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # 0.06 s that a home on SQLite does not need

    return postgresql.insert(table)


def _parse(url: str) -> URL:
    cure = "Write postgresql://user:password@host/database or sqlite:///folder/store.db."
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # without its message and cause, which may repeat the password
        raise StoreError(f"The URL of the store cannot be read. {cure}") from None
    if parsed.drivername in (*BARE_SCHEMES, DRIVER):
        return parsed.set(drivername=DRIVER)
    if parsed.drivername != "sqlite":
        raise StoreError(
            f"The URL of the store names {parsed.drivername!r}, which cannot be used. {cure}"
        )
    return parsed


def _sqlite_path(url: URL, *, read_only: bool) -> Path:
    """The database file; its folder is created and checked. Raises StoreError if it cannot be
    written, with `read_only` if it is missing.
    """
    if not url.database or url.database == ":memory:":
        raise StoreError(
            "The store needs a file that several processes can open, not an in-memory database: "
            "sqlite:///folder/store.db"
        )
    path = Path(url.database).absolute()
    if read_only:
        if not path.is_file():
            raise StoreError(
                f"The store {path} is missing. Restore the last backup: "
                "`rlhf restore FOLDER --replace`."
            )
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as cause:
        raise StoreError(
            f"The store {path} cannot be opened: its folder cannot be written ({cause.strerror}). "
            "Give this user write permission, free disk space, or set RLHF_HOME to another folder."
        ) from cause
    return path


def _sqlite_engine(url: URL, busy_timeout_s: float) -> Engine:
    engine = create_engine(
        url,
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
        pool_size=8,
        max_overflow=24,
        pool_timeout=busy_timeout_s,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        # the driver's own BEGIN would come too late and be deferred
        connection.isolation_level = None
        # Moving the log into the file every 64 MB, not every 4: an import touches the same pages of
        # the indexes again and again, and of people's votes the one that moves it waits a tenth of
        # a second with all that stand behind it: one in 1,800 now, not in 110.
        pragmas = (
            "synchronous=FULL",
            "foreign_keys=ON",
            "recursive_triggers=ON",
            "wal_autocheckpoint=16000",
            f"cache_size=-{CACHE_KB}",
        )
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    return engine


def read_only_uri(path: Path) -> str:
    """URI of an SQLite file. Without a log beside it nobody has the file open, and a plain
    read-only connection would leave an empty log there.

    SQLite keeps the log beside the file itself, not beside a link to it.
    """
    file = path.resolve()
    has_log = file.with_name(f"{file.name}-wal").exists()
    return f"{file.as_uri()}?{'mode=ro' if has_log else 'immutable=1'}"


def read_only_engine(path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """Engine of an SQLite file that does not move the log into the file when it closes."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            read_only_uri(path),
            uri=True,
            timeout=busy_timeout_s,
            check_same_thread=False,
            isolation_level=None,
        )

    return create_engine("sqlite://", creator=connect, poolclass=NullPool)

"""Connections and transactions of one project's database. Knows SQLite and Postgres apart; knows no table."""

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, create_engine, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DisconnectionError, NoSuchModuleError

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.protocols import Clock
from rlhf_pipeline.records import content_hash, utc_now
from rlhf_pipeline.store.faults import translated

BUSY_TIMEOUT_S = 30.0
MAX_ROWS = 500  # of one write transaction, so that nobody waits long for the lock
MAX_PARAMETERS = 10_000  # of one IN list: below SQLite's 32,766 and Postgres's 65,535


class SystemClock:
    """The real time."""

    def now(self) -> datetime:
        return utc_now()


class Database:
    """One engine seen by one project: `reading` and `writing` transactions and the columns every row carries.

    Writers of a project stand in one queue on both databases (SQLite: BEGIN IMMEDIATE, Postgres: an advisory lock held to
    commit), so what a write transaction read is still true when it commits.
    """

    def __init__(self, url: str, organization: str, project: str, *, clock: Clock | None = None, busy_timeout_s: float = BUSY_TIMEOUT_S):
        self.url = _parse(url)
        self.organization = organization
        self.project = project
        self.clock: Clock = clock or SystemClock()
        self.busy_timeout_s = busy_timeout_s
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.path = _sqlite_path(self.url) if self.is_sqlite else None
        self.engine = _sqlite_engine(self.url, busy_timeout_s) if self.is_sqlite else _postgres_engine(self.url, busy_timeout_s)
        _refuse_inherited_connections(self.engine)
        self._writers = self.engine.execution_options(writes=True)
        self._turn = threading.Lock()

    @property
    def where(self) -> str:
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with translated(self.where), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the project's write lock; commits at the end, keeps nothing after an error."""
        with translated(self.where), self._in_turn(), self._writers.begin() as connection:
            if not self.is_sqlite:
                key = int(content_hash(self.organization, self.project)[:15], 16)
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
            yield connection

    def mine(self, table: Table | Any) -> ColumnElement[bool]:
        """The condition that a row belongs to this project."""
        return and_(table.c.organization_id == self.organization, table.c.project_id == self.project)

    def owned(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """`rows` with this project's columns added."""
        return [{"organization_id": self.organization, "project_id": self.project, **row} for row in rows]

    def insert(self, connection: Connection, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        owned = self.owned(rows)
        if owned:
            connection.execute(table.insert(), owned)

    def close(self) -> None:
        self.engine.dispose()

    def _in_turn(self) -> AbstractContextManager[None]:
        # Threads of one process queue here: SQLite's own waiting sleeps up to 100 ms at a time and starves the unlucky.
        return _turn(self._turn, self.busy_timeout_s, self.where) if self.is_sqlite else nullcontext()


@contextmanager
def _turn(lock: threading.Lock, timeout_s: float, where: str) -> Iterator[None]:
    if not lock.acquire(timeout=timeout_s):
        raise StoreError(
            f"The store {where}: database is locked: another thread held the write lock longer than {timeout_s:g} s. "
            "Let it finish, then try again; nothing of this transaction was kept."
        )
    try:
        yield
    finally:
        lock.release()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError) as cause:
        raise StoreError(f"Database URL cannot be used ({cause}). Write sqlite:///folder/store.db or postgresql+psycopg2://…") from cause
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreError(f"Database {parsed.get_backend_name()!r} is not supported. Use sqlite or postgresql.")
    return parsed


def _sqlite_path(url: URL) -> Path:
    """The database file; its folder is made and tried. Raises StoreError where it cannot be written."""
    if not url.database or url.database == ":memory:":
        raise StoreError("The store needs a file that several processes can open, not an in-memory database: sqlite:///folder/store.db")
    path = Path(url.database).absolute()
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


def _postgres_engine(url: URL, busy_timeout_s: float) -> Engine:
    options = f"-c lock_timeout={int(busy_timeout_s * 1000)} -c timezone=UTC"
    return create_engine(url, pool_pre_ping=True, connect_args={"options": options})


def _sqlite_engine(url: URL, busy_timeout_s: float) -> Engine:
    engine = create_engine(
        url, connect_args={"timeout": busy_timeout_s, "check_same_thread": False}, pool_size=8, max_overflow=24, pool_timeout=busy_timeout_s
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN would come too late and be deferred
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _refuse_inherited_connections(engine: Engine) -> None:
    """A forked child must not use its parent's connections: the pool makes it new ones."""

    @event.listens_for(engine, "connect")
    def stamp(connection: Any, record: Any) -> None:
        record.info["pid"] = os.getpid()

    @event.listens_for(engine, "checkout")
    def refuse(connection: Any, record: Any, proxy: Any) -> None:
        if record.info["pid"] != os.getpid():
            record.dbapi_connection = proxy.dbapi_connection = None
            raise DisconnectionError("connection of another process")

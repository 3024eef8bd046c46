"""Creates, marks and drops the databases of one home on a Postgres server."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import database_copy
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.faults import explain
from rlhf_pipeline.store.postgres import network_options

KINDS = ("store", "dagster", "mlflow")
# oldest server version that supports DROP … FORCE and the types used here
OLDEST_VERSION = 130_000
WITH_PROVIDERS = 150_000  # from this version on a new database names its locale provider
FILLING = " (being filled)"
SECONDS_TO_LEAVE = 5
CREATION_LOCK_KEY = 727_462  # key of the advisory lock: any fixed number


@dataclass(frozen=True)
class DatabaseMark:
    """The owner of the databases, stored as the comment of one of them; without a home if that had
    no id yet.
    """

    project: str  # with its organization
    home_id: str | None = None
    is_filling: bool = False

    @classmethod
    def parse(cls, comment: str | None) -> Self | None:
        """None for a comment that is not a mark."""
        ours = re.fullmatch(
            rf"rlhf (.+?)(?: home ([0-9a-f]+))?({re.escape(FILLING)})?", comment or "", re.DOTALL
        )
        return cls(ours[1], ours[2], ours[3] is not None) if ours else None

    def __str__(self) -> str:
        return (
            f"rlhf {self.project}"
            + (f" home {self.home_id}" if self.home_id else "")
            + FILLING * self.is_filling
        )


@dataclass(frozen=True)
class ServerDatabases:
    """Three databases `<prefix>_store`, `<prefix>_dagster`, `<prefix>_mlflow` on the server of
    `url`, for one home of one project.

    Ids tell homes of the same organization and project apart, which every home has by default.
    Databases marked before homes had ids become those of the first home of their project that calls
    `make`.
    """

    url: str
    prefix: str
    organization: str
    project: str
    home_id: str | None = None
    leave_s: float = SECONDS_TO_LEAVE  # for which `drop` waits for connections to end

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}_{kind}" for kind in KINDS)

    @contextmanager
    def lock_owner(self) -> Iterator[str | None]:
        """The id of the home that owns the databases, None if no home does; nobody makes or drops
        any until the block ends.

        Raises StoreError as `make` does, but not if they belong to another home.
        """
        with self._lock_creation() as (_, mark):
            yield mark.home_id if mark else None

    @contextmanager
    def _lock_creation(self) -> Iterator[tuple[Connection, "DatabaseMark | None"]]:
        try:
            with _connect(self._maintenance_url()) as connection:
                connection.execute(
                    text("SELECT pg_advisory_lock(:key)"), {"key": CREATION_LOCK_KEY}
                )
                mark = self._fetch_mark(connection)
                self._refuse_old_servers(connection)
                self._refuse_other_projects(mark)
                yield connection, mark
        except SQLAlchemyError as cause:
            raise StoreError(
                f"The Postgres server {self._redacted_url()}: {_describe_error(cause)}"
            ) from cause

    def make(self, *, filling: bool = False) -> list[str]:
        """Create the missing databases; returns their names. Safe in many processes at once and to
        repeat.

        `filling` marks them as incomplete until `finish`, and empties what an earlier such call
        left behind. Raises StoreError, without the password, if the server cannot be reached or
        refuses the login or the creation, or if the databases belong to another project or another
        home: Dagster's history cannot be shared.
        """
        with self._lock_creation() as (connection, mark):
            self._refuse_other_homes(mark)
            made = [name for name in self.names if self._create_database(connection, name)]
            if filling:
                self._empty_databases(was_filling=mark is not None and mark.is_filling)
            elif mark is not None and mark.is_filling:
                raise StoreError(
                    f"The databases {self.prefix}_… on {self._redacted_url()} are half filled: "
                    "a move was interrupted. Repeat `rlhf migrate`, or name "
                    "another RLHF_DATABASE_PREFIX."
                )
            self._write_mark(connection, replace(self._own_mark, is_filling=filling))
        return made

    def read_mark(self, database: Database) -> DatabaseMark | None:
        """The owner of the databases, as any database of the server knows it; None if there is no
        mark or the server cannot be asked.
        """
        try:
            with database.read_transaction() as connection:
                return self._fetch_mark(connection)
        except StoreError:
            return None

    def refuse_others(self, mark: DatabaseMark | None) -> None:
        """Raise StoreError if they belong to another project or home."""
        self._refuse_other_projects(mark)
        self._refuse_other_homes(mark)

    def finish(self) -> None:
        """Mark the databases as complete: from here on they belong to the home."""
        try:
            with _connect(self._maintenance_url()) as connection:
                self._write_mark(connection, self._own_mark)
        except SQLAlchemyError as cause:
            raise StoreError(
                f"The Postgres server {self._redacted_url()}: {_describe_error(cause)}"
            ) from cause

    def drop(self) -> list[str]:
        """Drop the databases with everything in them; returns their names.

        Raises StoreError if they do not have this home's mark, or while a daemon or a shell is
        connected.
        """
        try:
            with _connect(self._maintenance_url()) as connection:
                connection.execute(
                    text("SELECT pg_advisory_lock(:key)"), {"key": CREATION_LOCK_KEY}
                )
                there = [name for name in self.names if _exists(connection, name)]
                mark = self._fetch_mark(connection)
                if there and (
                    mark is None
                    or mark.home_id is None
                    or replace(mark, is_filling=False) != self._own_mark
                ):
                    raise StoreError(
                        f"The databases {', '.join(there)} on {self._redacted_url()} carry no "
                        f"mark of {self._own_mark.project}: {self._describe_owner(mark)}. Nothing "
                        f"was "
                        "dropped; drop them yourself if they are yours."
                    )
                busy = _find_in_use(connection, there, self.leave_s)
                if busy:
                    raise StoreError(
                        f"Somebody is connected to {', '.join(busy)} on {self._redacted_url()}. "
                        "Stop the daemon, `rlhf dev` and all other processes of this home, then "
                        "try again; nothing was dropped."
                    )
                # The one with the mark last, so that this may be killed and repeated.
                for name in sorted(there, key=lambda name: name == self._dagster_name):
                    connection.execute(text(f"DROP DATABASE {name}"))
        except SQLAlchemyError as cause:
            raise StoreError(
                f"The Postgres server {self._redacted_url()}: {_describe_error(cause)}"
            ) from cause
        return there

    def _empty_databases(self, *, was_filling: bool) -> None:
        for name in self.names:
            url = self._maintenance_url().set(database=name).render_as_string(hide_password=False)
            if not database_copy.has_tables(url):
                continue
            if not was_filling:
                raise StoreError(
                    f"The database {name} on {self._redacted_url()} holds tables already, perhaps "
                    "another copy of this project. Nothing was moved. Name another "
                    "RLHF_DATABASE_PREFIX, or drop the three databases if they hold nothing you "
                    "need."
                )
            database_copy.drop_all_tables(url)

    def _create_database(self, connection: Connection, name: str) -> bool:
        if _exists(connection, name):
            return False
        # Sorted by code point, as SQLite sorts: a seeded draw from ordered rows must be the same on
        # both.
        provider = (
            " LOCALE_PROVIDER libc" if _read_server_version(connection) >= WITH_PROVIDERS else ""
        )
        connection.execute(
            text(
                f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' "
                f"LC_CTYPE 'C'{provider}"
            )
        )
        return True

    def _fetch_mark(self, connection: Connection) -> DatabaseMark | None:
        """None if there is no mark."""
        asked = text(
            "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = :name"
        )
        return DatabaseMark.parse(connection.execute(asked, {"name": self._dagster_name}).scalar())

    def _refuse_old_servers(self, connection: Connection) -> None:
        if _read_server_version(connection) < OLDEST_VERSION:
            raise StoreError(
                f"The Postgres server {self._redacted_url()} is version "
                f"{_read_server_version(connection) // 10_000}; 13 is the oldest that is supported."
            )

    def _refuse_other_projects(self, mark: DatabaseMark | None) -> None:
        if mark is not None and mark.project != self._own_mark.project:
            raise StoreError(
                f"The databases {self.prefix}_… on {self._redacted_url()} belong to project "
                f"{mark.project}, not to {self._own_mark.project}: Dagster's history cannot be "
                "shared. Set RLHF_DATABASE_PREFIX to another name."
            )

    def _refuse_other_homes(self, mark: DatabaseMark | None) -> None:
        if mark is not None and mark.home_id not in (None, self.home_id):
            raise StoreError(
                f"The databases {self.prefix}_… on {self._redacted_url()} belong to another home "
                f"of {mark.project}: two homes would mix their votes. Set RLHF_DATABASE_PREFIX to "
                "another name; or, where that home is lost or both are meant to be one, let a "
                "home without rows of its own join them with `rlhf init --join`."
            )

    def _describe_owner(self, mark: DatabaseMark | None) -> str:
        if mark is None:
            return "none at all"
        if mark.home_id is None and mark.project == self._own_mark.project:
            return (
                f"{mark.project} without a home, as before homes had ids (run `rlhf init` in the "
                f"home that owns them to complete it)"
            )
        return (
            f"another home's of {mark.project}"
            if mark.project == self._own_mark.project
            else mark.project
        )

    def _write_mark(self, connection: Connection, mark: DatabaseMark) -> None:
        # such a statement takes no parameters
        quoted = str(mark).replace("'", "''").replace("%", "%%")
        try:
            connection.exec_driver_sql(f"COMMENT ON DATABASE {self._dagster_name} IS '{quoted}'")
        except DBAPIError:  # created by an administrator, who must set the mark
            return

    @property
    def _dagster_name(self) -> str:
        return f"{self.prefix}_dagster"

    @property
    def _own_mark(self) -> DatabaseMark:
        return DatabaseMark(f"{self.organization}/{self.project}", self.home_id)

    def _maintenance_url(self) -> URL:
        url = make_url(self.url)
        return url.set(drivername="postgresql+psycopg2", database=url.database or "postgres")

    def _redacted_url(self) -> str:
        return make_url(self.url).render_as_string(hide_password=True)


def _connect(url: URL) -> Connection:
    engine = create_engine(
        url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=network_options(url)
    )
    return engine.connect()


def _exists(connection: Connection, name: str) -> bool:
    return bool(
        connection.execute(
            text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name}
        ).scalar()
    )


def _find_in_use(connection: Connection, names: Sequence[str], wait_s: float) -> list[str]:
    """Databases with open connections, after waiting as long as the server itself for
    closing ones.
    """
    asked = text(
        "SELECT DISTINCT datname FROM pg_stat_activity WHERE datname = ANY(:names) AND "
        "backend_type IS DISTINCT FROM 'autovacuum worker' ORDER BY 1"
    )
    deadline = time.monotonic() + wait_s
    while True:
        used = [str(name) for name in connection.execute(asked, {"names": list(names)}).scalars()]
        if not used or time.monotonic() > deadline:
            return used
        time.sleep(0.1)


def _read_server_version(connection: Connection) -> int:
    return int(connection.execute(text("SHOW server_version_num")).scalar_one())


def _describe_error(cause: SQLAlchemyError) -> str:
    lines: Sequence[str] = (
        str(cause.orig if isinstance(cause, DBAPIError) else cause).strip().splitlines()
    )
    return explain(" ".join(line.strip() for line in lines))

"""Creates the three databases of a project on a Postgres server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store.faults import describe_url, translate_errors
from rlhf_pipeline.store.postgres import network_options

KINDS = ("store", "dagster", "mlflow")
# oldest server version that supports DROP … FORCE and the types used here
OLDEST_VERSION = 130_000
WITH_PROVIDERS = 150_000  # from this version on a new database names its locale provider
SECONDS_TO_LEAVE = 5.0  # a server notices late that a client has left
CREATION_LOCK_KEY = 727_462  # key of the advisory lock: any fixed number


@dataclass(frozen=True)
class ServerDatabases:
    """Databases `<prefix>_store`, `<prefix>_dagster` and `<prefix>_mlflow` on the server of `url`.

    The comment of the store's names their project, so that no other project takes them.
    """

    url: str
    prefix: str
    project: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}_{kind}" for kind in KINDS)

    def make(self) -> list[str]:
        """Create those that are missing; returns their names. Safe in many processes at once.

        Raises StoreError, without the password, if the server cannot be reached, refuses the login
        or the creation, or holds databases of another project under this prefix.
        """
        with self._connect() as connection:
            version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
            if version < OLDEST_VERSION:
                raise StoreError(
                    f"The Postgres server {self._redacted_url} is version {version // 10_000}; 13 "
                    "is the oldest that is supported."
                )
            self._refuse_other_projects(connection)
            there = self._find_present(connection)
            missing = [name for name in self.names if name not in there]
            # Sorted by code point, as SQLite sorts: a seeded draw from ordered rows must be the
            # same on both.
            provider = " LOCALE_PROVIDER libc" if version >= WITH_PROVIDERS else ""
            for name in missing:
                connection.execute(
                    text(
                        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' "
                        f"LC_COLLATE 'C' LC_CTYPE 'C'{provider}"
                    )
                )
            if self.names[0] in missing:
                quoted = self._comment.replace("'", "''").replace("%", "%%")
                connection.exec_driver_sql(f"COMMENT ON DATABASE {self.names[0]} IS '{quoted}'")
        return missing

    def find_used(self, wait_s: float = SECONDS_TO_LEAVE) -> list[str]:
        """Databases to which somebody is still connected after `wait_s`."""
        used = text(
            "SELECT DISTINCT datname FROM pg_stat_activity WHERE datname = ANY(:names) AND "
            "backend_type IS DISTINCT FROM 'autovacuum worker' ORDER BY 1"
        )
        deadline = time.monotonic() + wait_s
        with self._connect() as connection:
            while True:
                names = connection.execute(used, {"names": list(self.names)}).scalars().all()
                if not names or time.monotonic() > deadline:
                    return list(names)
                time.sleep(0.1)

    def _find_present(self, connection: Connection) -> list[str]:
        result = connection.execute(
            text("SELECT datname FROM pg_database WHERE datname = ANY(:names) ORDER BY 1"),
            {"names": list(self.names)},
        )
        return list(result.scalars())

    def _refuse_other_projects(self, connection: Connection) -> None:
        comment = connection.execute(
            text(
                "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = "
                ":name"
            ),
            {"name": self.names[0]},
        ).scalar()
        if comment not in (None, self._comment):
            raise StoreError(
                f"The databases {self.prefix}_… on {self._redacted_url} belong to {comment}, not "
                f"to {self._comment}. Set RLHF_DATABASE_PREFIX to another name."
            )

    @property
    def _comment(self) -> str:
        return f"rlhf {self.project}"

    @property
    def _redacted_url(self) -> str:
        return describe_url(make_url(self.url))

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        """A connection to the server's own database, alone among those that make any."""
        url = make_url(self.url)
        url = url.set(drivername="postgresql+psycopg2", database=url.database or "postgres")
        engine = create_engine(
            url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=network_options(url)
        )
        with translate_errors(self._redacted_url), engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": CREATION_LOCK_KEY})
            yield connection

"""Translates database errors into StoreErrors with cause and cure."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rlhf_pipeline.core.errors import StoreError, UnstorableText

LOCKED = (
    "another process held the write lock longer than the timeout. Find it (SQLite: `lsof` on the "
    "file, Postgres: pg_stat_activity), let it finish or stop it, then try again; nothing of this "
    "transaction was kept."
)

CUT_OFF = (
    "the server ended the connection. Whether the last transaction was kept is not known; try "
    "again once the server answers: votes under the same idempotency keys and comparisons under "
    "the same ids are not stored twice."
)
NO_CONNECTION = (
    "the server has no connection left. Raise its limit (max_connections, CONNECTION "
    "LIMIT), or lower the number of processes."
)
UNREACHABLE = (
    "the server does not answer. Start it or correct the URL, then try again; nothing was written."
)

# Part of the driver's message -> cause and cure, first match wins.
CURES: tuple[tuple[str, str], ...] = (
    ("database is locked", LOCKED),
    ("lock timeout", LOCKED),
    (
        "database or disk is full",
        "no space is left. Free disk space and try again; the transaction was rolled back.",
    ),
    (
        "no space left",
        "no space is left. Free disk space and try again; the transaction was rolled back.",
    ),
    (
        "readonly database",
        "the file cannot be written. Give this user write permission on the file and its folder, "
        "or change RLHF_HOME.",
    ),
    (
        "unable to open database file",
        "the file or its folder cannot be opened. Check path, permissions and that the disk is "
        "mounted.",
    ),
    (
        "disk i/o error",
        "the disk reported an error. Check free space and the health of the disk, then try again; "
        "committed "
        "rows are kept.",
    ),
    ("no such table", "its tables are missing. Run `rlhf init` (Store.migrate) first."),
    (
        "no such column",
        "its tables are of another version. Restart this process: it upgrades them, or says why "
        "it cannot.",
    ),
    (
        "password authentication failed",
        "the server refused name or password. Correct them in the URL.",
    ),
    (
        "no password supplied",
        "the server asks for a password. Put it into the URL, or into ~/.pgpass.",
    ),
    (
        "no pg_hba.conf entry",
        "the server refuses this user from this host. Correct the URL, or allow it in pg_hba.conf.",
    ),
    (
        "permission denied to create database",
        "this user may not create databases. Run ALTER ROLE … CREATEDB, or have an administrator "
        "create them.",
    ),
    (
        "permission denied",
        "this user lacks a permission in the database. Ask its owner to grant it, or use the "
        "owner's name in the URL.",
    ),
    ("too many clients", NO_CONNECTION),
    ("too many connections", NO_CONNECTION),  # for a role or a database
    ("remaining connection slots", NO_CONNECTION),
    (
        "not permitted to log in",
        "this user may not log in. Run ALTER ROLE … LOGIN, or name another user in the URL.",
    ),
    (
        "server version mismatch",
        "install PostgreSQL's client programs of the server's version or newer.",
    ),
    ("is starting up", "the server is starting. Try again in a moment; nothing was written."),
    (
        "not yet accepting connections",
        "the server is starting. Try again in a moment; nothing was written.",
    ),
    (
        "statement timeout",
        "one statement ran longer than the limit. Lower the load on the server, then try again; "
        "it was rolled back.",
    ),
    (
        "idle-in-transaction timeout",
        "this process paused in the middle of a transaction, which the server then ended. Try "
        "again; it was rolled back.",
    ),
    ("is shutting down", CUT_OFF),
    ("terminating connection", CUT_OFF),
    ("server closed the connection", CUT_OFF),
    ("connection already closed", CUT_OFF),
    ("connection has been closed", CUT_OFF),
    ("ssl syscall", CUT_OFF),
    ("could not receive data", CUT_OFF),
    ("could not send data", CUT_OFF),
    (
        "in recovery mode",
        "the server is recovering from a crash. Try again in a moment; nothing was written.",
    ),
    ("connection refused", UNREACHABLE),
    ("timeout expired", UNREACHABLE),
    ("no route to host", UNREACHABLE),
    ("network is unreachable", UNREACHABLE),
    # while connecting; later it follows "could not receive data"
    ("connection timed out", UNREACHABLE),
    ("connection reset by peer", CUT_OFF),
    ("could not translate host name", UNREACHABLE),
    ("is the server running", UNREACHABLE),
    (
        "read-only transaction",
        "the server is a standby that only reads. Name its primary in the URL.",
    ),
    (
        "deadlock detected",
        "two transactions waited for each other and this one was undone. Try again; nothing of it "
        "was kept.",
    ),
    ('role "', "the server has no such user. Correct the name in the URL."),
    (
        'database "',
        "the server has no such database. Correct its name in the URL, create it with `createdb`, "
        "or set RLHF_SERVER_URL instead: `rlhf init` makes the databases there.",
    ),
    (
        "invalid response to ssl negotiation",
        "another program than Postgres answers there. Correct host and port in the URL.",
    ),
    (
        "does not exist",
        "its database or tables are missing. Run `rlhf init` (Store.migrate) first.",
    ),
    (
        "file is not a database",
        "the file is not an SQLite database. Point the store at another file, or restore a backup.",
    ),
    ("malformed", "the file is damaged. Restore the last backup."),
    (
        "this store was moved to",
        "its rows are there now. Restart this process; the transaction was rolled back.",
    ),
    (
        "is append-only",
        "recorded rows are never changed or removed. Record a new row instead (a vote: supersede "
        "it).",
    ),
)


def describe_url(url: URL) -> str:
    """The address for messages, without passwords, which its query may hold too."""
    secrets = [name for name in url.query if "pass" in name.lower()]
    return url.difference_update_query(secrets).render_as_string(hide_password=True)


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Raise every database error inside as a StoreError that names `where`, the cause and
    the cure.
    """
    try:
        yield
    except StatementError as cause:  # the driver's errors, and values that it cannot convert
        if isinstance(cause.orig, UnstorableText):
            raise cause.orig from None
        raise StoreError(f"The store {where}: {explain(str(cause.orig))}") from cause
    except sqlite3.Error as cause:  # of a connection that SQLAlchemy did not open
        raise StoreError(f"The store {where}: {explain(str(cause))}") from cause
    except (
        UnicodeEncodeError,
        ValueError,
    ) as cause:  # from the driver: SQLAlchemy does not translate these
        if not isinstance(cause, UnicodeEncodeError) and "NUL" not in str(cause):
            raise
        raise UnstorableText(
            f"The store {where}: a text cannot be stored ({cause}). Remove NUL characters and "
            f"lone surrogates from it."
        ) from cause
    except PoolTimeout as cause:
        raise StoreError(
            f"The store {where}: all connections are in use. Lower the number of threads, then try "
            "again."
        ) from cause
    except SQLAlchemyError as cause:
        raise StoreError(f"The store {where}: {cause}") from cause


def explain(message: str) -> str:
    """The driver's message with its cure, or unchanged if the fault is unknown.

    >>> explain("database or disk is full").startswith("database or disk is full: no space is left")
    True
    """
    first = message.strip().splitlines()[0] if message.strip() else "no message"
    for part, cure in CURES:
        if part in message.lower():
            return f"{first}: {cure}"
    return f"{first}."

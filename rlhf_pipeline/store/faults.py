"""What the database said, told as a StoreError with cause and cure. Knows messages of SQLite and Postgres, no SQL."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rlhf_pipeline.errors import StoreError

LOCKED = (
    "another process held the write lock longer than the timeout. Find it (SQLite: `lsof` on the file, Postgres: pg_stat_activity), "
    "let it finish or stop it, then try again; nothing of this transaction was kept."
)

# Part of the driver's message -> cause and cure, first match wins.
CURES: tuple[tuple[str, str], ...] = (
    ("database is locked", LOCKED),
    ("lock timeout", LOCKED),
    ("database or disk is full", "no space is left. Free disk space and try again; nothing of this transaction was kept."),
    ("no space left", "no space is left. Free disk space and try again; nothing of this transaction was kept."),
    ("readonly database", "the file cannot be written. Give this user write permission on the file and its folder, or change RLHF_HOME."),
    ("unable to open database file", "the file or its folder cannot be opened. Check path, permissions and that the disk is mounted."),
    ("disk i/o error", "the disk refused. Check free space and the health of the disk, then try again; committed rows are kept."),
    ("no such table", "its tables are missing. Run `rlhf init` (Store.migrate) first."),
    ("no such column", "its tables are older than this code. Run `rlhf init` (Store.migrate) first."),
    ("does not exist", "its database or tables are missing. Run `rlhf init` (Store.migrate) first."),
    ("file is not a database", "the file is something else. Point the store at another file, or restore a backup."),
    ("malformed", "the file is damaged. Restore the last backup."),
    ("is append-only", "recorded rows are never changed or removed. Record a new row instead (a vote: supersede it)."),
    ("connection refused", "the server does not answer. Start it or correct the database URL, then try again."),
)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn every database error inside into a StoreError that names `where`, the cause and the cure."""
    try:
        yield
    except StatementError as cause:  # the driver's errors, and values that it cannot take
        raise StoreError(f"The store {where}: {explain(str(cause.orig))}") from cause
    except PoolTimeout as cause:
        raise StoreError(f"The store {where}: all connections are in use. Lower the number of threads, then try again.") from cause
    except SQLAlchemyError as cause:
        raise StoreError(f"The store {where}: {cause}") from cause


def explain(message: str) -> str:
    """The driver's message with its cure; without one where it is not a known fault.

    >>> explain("database or disk is full").startswith("database or disk is full: no space is left")
    True
    """
    first = message.strip().splitlines()[0] if message.strip() else "no message"
    for part, cure in CURES:
        if part in message.lower():
            return f"{first}: {cure}"
    return f"{first}."

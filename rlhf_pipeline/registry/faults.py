"""Turns faults of MLflow's database into StoreErrors with place, cause and cure."""

import errno
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError  # MLflow lets some of its errors through

from rlhf_pipeline.core.errors import ArtefactError, StoreError
from rlhf_pipeline.core.files import find_refusal

# MLflow error codes of invalid requests, which are not database faults
REQUEST_ERROR_CODES = (
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_PARAMETER_VALUE",
)
RESTORE = "Restore a backup with `rlhf restore`, or put the file back."

# Part of the driver's or MLflow's message -> fault and cure; the first match is used.
CURES: tuple[tuple[str, str], ...] = (
    (
        "readonly",
        "cannot be written. Give this user write permission on the file and its folder, and run "
        "again.",
    ),
    ("disk is full", "cannot be written: no space is left. Free disk space and run again."),
    (
        "unable to open",
        "cannot be opened. Check its path, its permissions and that the disk is mounted.",
    ),
    ("not a database", f"is damaged. {RESTORE}"),
    ("malformed", f"is damaged. {RESTORE}"),
    ("no such table", f"lacks tables. {RESTORE}"),
    ("migration in unexpected state", f"lacks tables. {RESTORE}"),
    (
        "out-of-date database schema",
        "was written by another version of MLflow. Install that version, or restore a backup made "
        "with this one.",
    ),
)

CHECK_STORAGE = "Check that the storage of MLflow's files answers and can be written"
STORAGE_CURES = {number: "Free disk space" for number in (errno.ENOSPC, errno.EDQUOT)}


class DatabaseBusy(StoreError):
    """The database is busy; the same call may succeed later."""


class DatabaseFaults:
    """Translates faults of one tracking database: a file `database`, or the server at `address`."""

    def __init__(self, database: Path | None, address: str, patience_s: float):
        self._database = database
        self._address = address
        self._patience_s = patience_s

    @contextmanager
    def translate(self) -> Iterator[None]:
        """Turn every database fault inside the block into a StoreError."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as cause:
            if cause.error_code in REQUEST_ERROR_CODES:
                raise
            raise self._error(str(cause)) from cause
        except (SQLAlchemyError, sqlite3.Error) as cause:
            raise self._error(str(cause)) from cause

    def _error(self, message: str) -> StoreError:
        is_busy = self._database is None or "locked" in message
        return (DatabaseBusy if is_busy else StoreError)(self.explain(message))

    def explain(self, message: str) -> str:
        """Place, cause and cure for a message of SQLite, SQLAlchemy or MLflow."""
        reason = _reason(message)
        if self._database is None:
            return (
                f"MLflow's server {self._address} does not answer: {reason}. Start it, or correct "
                "RLHF_MLFLOW_URL or RLHF_SERVER_URL, and run again; nothing was registered "
                "partially."
            )
        if "locked" in message:
            return (
                f"MLflow's database {self._database} has been locked by another process for "
                f"{self._patience_s:g} s. End the process that holds it (`fuser {self._database}` "
                "shows it) and run again; nothing was registered partially."
            )
        cure = next(
            (cure for part, cure in CURES if part in message),
            "cannot be used. Repair it or restore a backup, and run again.",
        )
        return f"MLflow's database {self._database} {cure} ({reason})"


class FaultTranslatingClient:
    """An MlflowClient whose calls raise StoreError for database faults, and ArtefactError for files
    that cannot be stored. Calls that read files raise their storage's errors.
    """

    def __init__(self, client: Any, faults: DatabaseFaults):
        self._client = client
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method
        if name in ("log_artifact", "log_artifacts"):
            method = _translating_storage_faults(method)
        elif "artifact" in name:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._faults.translate():
                return method(*args, **kwargs)

        return call


def _translating_storage_faults(store: Callable[..., Any]) -> Callable[..., Any]:
    """`store`, which copies files into a run, with its storage's errors as ArtefactErrors."""
    from mlflow.exceptions import MlflowException

    def call(run_id: str, path: str, folder: str | None = None) -> Any:
        try:
            return store(run_id, path, folder)
        except (MlflowException, SQLAlchemyError, sqlite3.Error):
            raise  # of the database, or of the server that has both
        except Exception as cause:
            refusal = find_refusal(cause)
            reason = f"{type(cause).__name__}: {cause}" if refusal is None else refusal.strerror
            cure = STORAGE_CURES.get(0 if refusal is None else refusal.errno or 0, CHECK_STORAGE)
            raise ArtefactError(
                f"MLflow could not copy {path} into the files of its run {run_id}: {reason}. "
                f"{cure} and run again: nothing was registered, and a finished training is not "
                "repeated."
            ) from cause

    return call


def _reason(message: str) -> str:
    """The driver's message within a message of several lines.

    >>> said = "(sqlite3.OperationalError) attempt to write a readonly database"
    >>> _reason(f"raised as a result of autoflush\\n{said}\\n[SQL: …]")
    'attempt to write a readonly database'
    """
    driver = re.search(r"\((?:sqlite3|psycopg2)\.\S*\) (.+)", message)
    return (driver[1] if driver else message.strip().partition("\n")[0]).strip().rstrip(".")

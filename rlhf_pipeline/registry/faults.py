"""Turns faults of MLflow's database into StoreErrors with place, cause and cure."""

import re
import sqlite3
from collections.abc import Iterator
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
        "locked",
        "is locked by another process. End it (`fuser` on the file shows it) and run again; "
        "nothing was registered partially.",
    ),
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
    ("", "cannot be used. Repair it or restore a backup, and run again."),
)


class DatabaseFaults:
    """Translates faults of one tracking database: a file `database`, or the server at `address`."""

    def __init__(self, database: Path | None, address: str):
        self._database = database
        self._address = address

    @contextmanager
    def translate(self) -> Iterator[None]:
        """Turn every database fault inside the block into a StoreError."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, SQLAlchemyError, sqlite3.Error) as cause:
            if getattr(cause, "error_code", None) in REQUEST_ERROR_CODES:
                raise
            raise StoreError(self._explain(str(cause))) from cause

    def _explain(self, message: str) -> str:
        """Place, cause and cure for a message of SQLite, SQLAlchemy or MLflow."""
        if self._database is None:
            return (
                f"MLflow's server {self._address} does not answer: {_reason(message)}. Start it, "
                "or correct RLHF_MLFLOW_URL or RLHF_SERVER_URL, and run again; nothing was "
                "registered partially."
            )
        cure = next(cure for part, cure in CURES if part in message)
        return f"MLflow's database {self._database} {cure} ({_reason(message)})"


class FaultTranslatingClient:
    """An MlflowClient whose calls raise StoreError for database faults, and ArtefactError for files
    that cannot be stored. Calls that read files raise their storage's errors.
    """

    def __init__(self, client: Any, faults: DatabaseFaults):
        self._client = client
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        stores_files = name.startswith("log_artifact")
        if "artifact" in name and not stores_files:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                with self._faults.translate():
                    return method(*args, **kwargs)
            except Exception as cause:
                if not stores_files or isinstance(cause, StoreError):
                    raise
                refusal = find_refusal(cause)
                raise ArtefactError(
                    f"MLflow could not copy {args[1]} into the files of its run {args[0]}: "
                    f"{refusal.strerror if refusal else repr(cause)}. Check that the storage of "
                    "MLflow's files answers and has space, and run again: nothing was registered, "
                    "and a finished training is not repeated."
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

"""Connects to MLflow and serialises its writes across processes.

Uses `MlflowClient` with an explicit tracking URI: the fluent API keeps the active run in global
state, which would leak between threads and assets.
"""

import logging
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from rlhf_pipeline.core.config import silence_telemetry
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.registry.faults import DatabaseFaults, FaultTranslatingClient

T = TypeVar("T")

# without it MLflow's UI opens the experiment on its empty page for GenAI traces
KIND = {"mlflow.experimentKind": "custom_model_development"}
COMMIT = "mlflow.source.git.commit"
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "storage_location"),
)  # columns with absolute paths
LOCK_TIMEOUT_S = 120.0


class Tracking:
    """One tracking server or database, and its experiment `project`.

    `tracking_uri` is a database URL or the address of an MLflow server, `artifacts` a folder or URL
    for files, `ui` the address people open in a browser. Safe for several threads and processes: on
    SQLite every write holds a lock file beside the database, because a transaction that reads
    before it writes fails immediately, whatever its timeout, if another one writes in between.
    """

    def __init__(
        self,
        tracking_uri: str,
        artifacts: str | Path,
        project: str,
        ui: str = "",
    ) -> None:
        self.tracking_uri = tracking_uri
        self.artifacts = artifacts
        self.project = project
        self.ui = ui
        self._opening = threading.Lock()
        self._opened: tuple[Any, str] | None = None
        parts = urlsplit(tracking_uri)
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._database = _sqlite_file(tracking_uri)
        self._faults = DatabaseFaults(self._database, address)

    @property
    def client(self) -> Any:
        """The MlflowClient; the first use migrates the database and creates the experiment."""
        return self.open()[0]

    @property
    def experiment_id(self) -> str:
        return self.open()[1]

    def run_url(self, run_id: str) -> str:
        """URL of the run's page below `ui`; relative if `ui` is empty."""
        return self._page(f"runs/{run_id}")

    @property
    def runs_url(self) -> str:
        """URL of the list of runs."""
        return self._page("runs")

    def _page(self, path: str) -> str:
        # without it the page opens in MLflow's GenAI view, which shows no metrics of runs
        view = "workflowType=machine_learning"
        base = self.ui.rstrip("/") + "/" if self.ui else ""
        return f"{base}#/experiments/{self.experiment_id}/{path}?{view}"

    def open(self) -> tuple[Any, str]:
        """Client and experiment id. The first call migrates the database, sets SQLite to WAL mode
        and creates the experiment.
        """
        with self._opening:
            if self._opened is None:
                with self._lock():
                    self._opened = self._connect()
            return self._opened

    def get_or_create_experiment(self, name: str) -> str:
        """The id of another experiment, created if needed. Call it within `write`."""
        return self._get_or_create_experiment(self.client, name)

    def write(self, act: Callable[[], T]) -> T:
        """Run `act` under the write lock. Must not be nested."""
        self.open()
        with self._lock():
            return act()

    def get_or_none(self, ask: Callable[[], T]) -> T | None:
        """The result of `ask`, or None if MLflow reports RESOURCE_DOES_NOT_EXIST."""
        self.open()
        from mlflow.exceptions import MlflowException

        try:
            return ask()
        except MlflowException as cause:
            if cause.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def find_moved_artifacts(self) -> tuple[str, str]:
        """Recorded and actual prefix of MLflow's artifact paths; they differ if the home was
        moved.
        """
        with self._lock(), self._faults.translate():
            client = self._make_client()
            return self._compare_locations(
                client.get_experiment(self._get_or_create_experiment(client, self.project))
            )

    def _connect(self) -> tuple[Any, str]:
        with self._faults.translate():
            if self._database is not None:
                # The mode is stored in the file. A file that cannot be used is named here: MLflow
                # would try again for minutes.
                with closing(sqlite3.connect(self._database, timeout=30)) as connection:
                    connection.execute("PRAGMA journal_mode=WAL")
            client = self._make_client()
            experiment_id = self._get_or_create_experiment(client, self.project)
            old, new = self._compare_locations(client.get_experiment(experiment_id))
            if old != new:
                self._relocate(old, new)
        return client, experiment_id

    def _make_client(self) -> Any:
        silence_telemetry()
        from mlflow import MlflowClient
        from mlflow.environment_variables import MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR

        MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.set(False)
        # faults are raised as StoreErrors, not logged with their SQL
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        return FaultTranslatingClient(
            MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri),
            self._faults,
        )

    def _compare_locations(self, experiment: Any) -> tuple[str, str]:
        """Old and new prefix of local paths; equal if nothing moved or the files are remote."""
        new = f"{_uri(self.artifacts)}/"
        old = str(experiment.artifact_location).removesuffix(experiment.name)
        is_local = old.startswith("file:") and new.startswith("file:")
        return (old, new) if is_local and _path(old) != _path(new) else (new, new)

    def _relocate(self, old: str, new: str) -> None:
        """Update the paths in a database that was moved with its artifacts; otherwise runs would
        write into the old home.
        """
        database = self._database
        if database is None or database.parent.resolve() != _path(new).parent:
            raise StoreError(
                f"MLflow's database records the files of {self.project!r} in {_path(old)}, but "
                f"this home has them in {_path(new)}. Move the home back, or, if its databases "
                "are on a server, update the paths with `rlhf init --join`."
            )
        with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
            for table, column in LOCATIONS:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE "
                    f"substr({column}, 1, ?) = ?",
                    (new, len(old) + 1, len(old), old),
                )

    def _get_or_create_experiment(self, client: Any, name: str) -> str:
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        return str(
            client.create_experiment(
                name,
                artifact_location=f"{_uri(self.artifacts)}/{name}",
                tags=KIND,
            )
        )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the write lock of an SQLite database; a server needs none. The system releases it if
        the holder dies.
        """
        if self._database is None:
            yield
            return
        lock = FileLock(f"{self._database}.lock", timeout=LOCK_TIMEOUT_S, poll_interval=0.01)
        try:
            self._database.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as cause:  # a time-out is one too
            raise StoreError(
                f"MLflow's database {self._database} cannot be locked: {cause}. End the process "
                "that holds the lock, or give this user write permission on its folder, and run "
                "again."
            ) from cause
        try:
            yield
        finally:
            lock.release()


def make_tables(database_url: str) -> None:
    """Create MLflow's tables in an empty database, without a default experiment."""
    silence_telemetry()
    from mlflow.store.db.utils import _safe_initialize_tables, create_sqlalchemy_engine_with_retry

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    engine = create_sqlalchemy_engine_with_retry(database_url)
    try:
        _safe_initialize_tables(engine)
    finally:
        engine.dispose()


def _uri(artifacts: str | Path) -> str:
    # MLflow's default would be ./mlruns in the working directory.
    return (
        str(artifacts).rstrip("/")
        if "://" in str(artifacts)
        else Path(artifacts).absolute().as_uri()
    )


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path)).resolve()


def _sqlite_file(tracking_uri: str) -> Path | None:
    if not tracking_uri.startswith("sqlite:///"):
        return None
    return Path(unquote(tracking_uri.removeprefix("sqlite:///").split("?")[0])).absolute()


def web_server_command(
    tracking_uri: str, artifacts: Path, *, host: str, port: int
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of MLflow's web server with one worker, as started by `mlflow
    server`.

    `tracking_uri` is passed only in the environment: it may hold a password, and every user can
    read command lines.
    """
    silence_telemetry()
    from mlflow.environment_variables import _MLFLOW_SGI_NAME
    from mlflow.server import constants

    environ = {
        constants.BACKEND_STORE_URI_ENV_VAR: tracking_uri,
        constants.REGISTRY_STORE_URI_ENV_VAR: tracking_uri,
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: str(artifacts),
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        _MLFLOW_SGI_NAME.name: "uvicorn",
        # MLflow's default starts eight processes and uses 1.2 GB for a job queue that is not needed
        # here.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return [
        sys.executable,
        "-m",
        "uvicorn",
        "--host",
        host,
        "--port",
        str(port),
        "mlflow.server.fastapi_app:app",
    ], environ

"""Tells which parts a project needs respond: store, registry, and what evaluates its sensors."""

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from typing import Generic, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

from rlhf_pipeline.api_types.project import DaemonStatus, Readiness, RegistryStatus
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.database_copy import has_tables

T = TypeVar("T")
KNOWN_FOR_S = 5.0
WAIT_S = 0.05  # for a status that is not known yet; a health check answers at once
MLFLOW_S = 2.0
LEAST_LATE_S = 120.0  # a busy daemon takes that long between two ticks


class BackgroundStatus(Generic[T]):
    """A status that a thread finds out, at most every `seconds`; callers get the latest one, and
    `unknown` before the first.
    """

    def __init__(
        self,
        find: Callable[[], T],
        unknown: T,
        seconds: float = KNOWN_FOR_S,
        wait_s: float = WAIT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._find = find
        self._status = unknown
        self._seconds = seconds
        self._wait_s = wait_s
        self._now = monotonic
        self._lock = threading.Lock()
        self._found_at = float("-inf")
        self._is_finding = False
        self._found = threading.Event()

    def __call__(self) -> T:
        with self._lock:
            is_due = not self._is_finding and self._now() - self._found_at > self._seconds
            if is_due:
                self._is_finding = True
                self._found.clear()
                threading.Thread(target=self._update, name="status", daemon=True).start()
        self._found.wait(self._wait_s)
        return self._status

    def _update(self) -> None:
        try:
            self._status = self._find()
        finally:
            self._found_at = self._now()
            self._is_finding = False
            self._found.set()


class ReadinessCheck:
    """The health of one project's parts, quickly and without details that are secret."""

    def __init__(self, settings: Settings, store: Store):
        self._settings = settings
        self._store = store
        self._registry = BackgroundStatus[RegistryStatus](
            lambda: find_registry_status(settings.tracking_uri), "unknown"
        )
        self._daemon = BackgroundStatus[DaemonStatus](self.find_daemon_status, "unknown")

    def __call__(self) -> Readiness:
        """Raises StoreError if the store does not respond."""
        self._store.votes.max_seq()
        return Readiness(status="ok", store="ok", registry=self._registry(), daemon=self._daemon())

    def find_daemon_status(self) -> DaemonStatus:
        """By the last tick of a sensor of Dagster's daemon or `rlhf loop`."""
        # Rules read drift and its causes, and so tables: `rlhf vote`, which opens a site too, needs
        # none of it.
        from rlhf_pipeline.alerts.rounds import read_silence

        try:
            silence = read_silence(self._store, self._settings, self._store.database.clock.now())
        except StoreError:
            return "unknown"
        if not silence or silence[0].value is None:  # None: it was ended on purpose
            return "absent"
        return "silent" if silence[0].value > LEAST_LATE_S else "ok"


def find_registry_status(tracking_uri: str) -> RegistryStatus:
    """Whether MLflow's server or database responds; `absent` until it is made."""
    if tracking_uri.startswith(("http://", "https://")):
        try:
            with urlopen(f"{tracking_uri.rstrip('/')}/health", timeout=MLFLOW_S):
                return "ok"
        except HTTPError as refusal:  # it responds, and wants a login
            return "ok" if refusal.code < HTTPStatus.INTERNAL_SERVER_ERROR else "unreachable"
        except (OSError, HTTPException, ValueError):
            return "unreachable"
    try:
        return "ok" if has_tables(tracking_uri) else "absent"
    except StoreError:
        return "unreachable"

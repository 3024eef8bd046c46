"""Tells which parts a project needs respond: store, registry, and what evaluates its sensors."""

from http import HTTPStatus
from http.client import HTTPException
from typing import Literal
from urllib.error import HTTPError
from urllib.request import urlopen

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.database_copy import has_tables
from rlhf_pipeline.web.memory_cache import CachedValue

RegistryStatus = Literal["ok", "absent", "unreachable"]
DaemonStatus = Literal["ok", "absent", "silent", "unknown"]
KNOWN_FOR_S = 5.0
MLFLOW_S = 0.5  # a health check answers soon
LEAST_LATE_S = 120.0  # a busy daemon takes that long between two ticks


class Readiness(Answer):
    status: Literal["ok"]
    store: Literal["ok"]
    registry: RegistryStatus = Field(
        description="Whether MLflow responds; absent until its database is made."
    )
    daemon: DaemonStatus = Field(
        description="Whether the daemon or `rlhf loop` evaluates sensors; absent if neither has "
        "run yet or it was ended on purpose, silent if it stopped."
    )


class ReadinessCheck:
    """The health of one project's parts, quickly and without details that are secret."""

    def __init__(self, settings: Settings, store: Store):
        self._settings = settings
        self._store = store
        self._registry = CachedValue(
            lambda: find_registry_status(settings.tracking_uri), KNOWN_FOR_S
        )
        self._daemon = CachedValue(self.find_daemon_status, KNOWN_FOR_S)

    def __call__(self) -> Readiness:
        """Raises StoreError if the store does not respond."""
        self._store.votes.max_seq()
        return Readiness(status="ok", store="ok", registry=self._registry(), daemon=self._daemon())

    def find_daemon_status(self) -> DaemonStatus:
        """By the last tick of a sensor of Dagster's daemon or `rlhf loop`."""
        # Rules read drift and its causes, and so tables: `rlhf vote`, which opens a site too, needs
        # none of it.
        from rlhf_pipeline.watch.alerts.rounds import read_silence

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

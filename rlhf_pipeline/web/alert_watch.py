"""Watches the daemon from the web app, which outlives it, and sends messages that wait."""

import logging
import threading
from types import TracebackType

from rlhf_pipeline.alert_rounds import send_messages, watch_daemon
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.store import Store

EVERY_S = 60.0
logger = logging.getLogger(__name__)


class AlertWatch:
    """Looks once a minute, in a thread, while the app runs. The daemon sends messages too; each is
    leased to one of them.
    """

    def __init__(self, settings: Settings, store: Store, *, every_s: float = EVERY_S):
        self._settings, self._store, self._every_s = settings, store, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="alerts", daemon=True)

    def look(self) -> None:
        """One look, now."""
        watch_daemon(self._store, self._settings, self._store.database.clock.now())
        send_messages(self._store, self._settings)

    def __enter__(self) -> "AlertWatch":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.look()
            except PipelineError as cause:  # such as a busy database: the next look repeats it
                logger.warning("Alerts were not checked: %s", cause)
            except Exception:
                logger.exception("Alerts were not checked")

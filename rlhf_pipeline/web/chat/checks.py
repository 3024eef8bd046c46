"""Checks hourly, while this server answers, that its policy is the judged version."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.generate.completions import CompletionBackend, LocalBackend
from rlhf_pipeline.improve.served_check import check_served
from rlhf_pipeline.learn.champions import Champions

EVERY_S = 3600.0
log = logging.getLogger(__name__)


class ServedChecks:
    """Reads the policy in the memory of this process. Servers are checked by the job
    `served_check`.
    """

    def __init__(self, settings: Settings, champions: Champions) -> None:
        self._settings = settings
        self._champions = champions
        self._due: dict[str, float] = {}  # by version
        self._worker = ThreadPoolExecutor(1, "served-check")
        self._is_closed = False

    def close(self) -> None:
        """Start no more checks. What ends a running one, such as a library that starts no threads
        in a process that ends, is no news.
        """
        self._is_closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)

    def consider(self, backend: CompletionBackend) -> None:
        """Start a check if one is due; chats go on."""
        if self._is_closed or not isinstance(backend, LocalBackend):
            return
        now = time.monotonic()
        if now >= self._due.get(backend.model_version, now):
            self._due[backend.model_version] = now + EVERY_S
            self._worker.submit(self._check, backend)

    def _check(self, backend: LocalBackend) -> None:
        try:
            check_served(self._champions, self._settings, backend)
        except Exception as cause:
            if self._is_closed:
                return
            if isinstance(cause, PipelineError):
                log.warning("It is unknown whether the judged version serves: %s", cause)
            else:
                log.exception("The check of what serves failed")

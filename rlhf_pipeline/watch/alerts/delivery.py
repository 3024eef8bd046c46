"""Empties the outbox of alerts: attempts, waits between them, and messages that are given up."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from rlhf_pipeline.core.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.core.monitoring import AlertMessage
from rlhf_pipeline.core.protocols import Clock
from rlhf_pipeline.core.terminal import escape_controls
from rlhf_pipeline.store.alerts import AlertMessages

LEASE_S = 60.0  # longer than any attempt; a killed sender's message is then sent again

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """Sends what is due in the outbox.

    Each target has a thread of its own, so one that is slow costs the others nothing. A target that
    fails is left alone until the next call. Messages about one alert reach a target in their order.
    """

    outbox: AlertMessages
    send: Callable[[AlertMessage], object]
    clock: Clock
    retry_seconds: Sequence[float]  # from each failed attempt to the next; then it is given up

    def send_due(self, max_seconds: float = 10) -> int:
        """Send what is due; no attempt begins after `max_seconds`. Returns the number of messages
        that were delivered.
        """
        targets = self.outbox.due_targets(self.clock.now())
        if not targets:
            return 0
        until = time.monotonic() + max_seconds
        with ThreadPoolExecutor(len(targets), thread_name_prefix="alerts") as pool:
            return sum(pool.map(lambda target: self._send_to(target, until), targets))

    def _send_to(self, target: str, until: float) -> int:
        n_sent = 0
        while time.monotonic() < until:
            message = self.outbox.lease(target, self.clock.now(), seconds=LEASE_S)
            if message is None or not self._attempt(message):
                break
            n_sent += 1
        return n_sent

    def _attempt(self, message: AlertMessage) -> bool:
        """Whether it was delivered. Whatever one target raises, the others go on."""
        try:
            self.send(message)
        except (DeliveryFailed, ConfigurationError) as failure:
            self._record_failure(message, escape_controls(" ".join(str(failure).split())))
            return False
        except Exception as failure:
            logger.exception("A channel failed")  # log lines hide the secrets that it may repeat
            what = f"Unexpected {type(failure).__name__}; the log shows where it was raised."
            self._record_failure(message, what)
            return False
        self.outbox.mark_delivered(message.message_id, self.clock.now())
        return True

    def _record_failure(self, message: AlertMessage, error: str) -> None:
        """Try again as the schedule says, or give it up."""
        again_at, fate = None, "is given up"
        if message.n_attempts <= len(self.retry_seconds):
            wait_s = self.retry_seconds[message.n_attempts - 1]
            again_at = self.clock.now() + timedelta(seconds=wait_s)
            fate = f"will be retried at {again_at:%H:%M:%S} UTC"
        self.outbox.mark_failed(message.message_id, error, next_attempt_at=again_at)
        logger.warning("Message %s to %s %s: %s", message.message_id, message.target, fate, error)

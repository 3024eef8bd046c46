"""Empties the outbox of alerts: attempts, waits between them, and messages that are given up."""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Thread

from rlhf_pipeline.alerts.channels import Channel
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.protocols import Clock
from rlhf_pipeline.store.alerts import AlertMessages
from rlhf_pipeline.terminal import escape_controls

LONGEST_RETRY_AFTER_S = 86_400.0  # of what a receiver may ask for
LEASE_S = 30.0  # longer than any attempt; a killed sender's message is then sent again

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """Sends what is due in the outbox.

    Each target has a thread of its own, so one that hangs costs the others nothing. A target that
    fails is left alone until the next call. Messages about one alert reach a target in their order.
    """

    outbox: AlertMessages
    channels: Mapping[str, Channel]
    clock: Clock
    retry_seconds: Sequence[float]  # from each failed attempt to the next; then it is given up

    def send_due(self, max_seconds: float = 10) -> int:
        """Send what is due, for at most `max_seconds` in all; returns the number of messages that
        were delivered.
        """
        targets = self.outbox.due_targets(self.clock.now())
        if not targets:
            return 0
        until = time.monotonic() + max_seconds
        with ThreadPoolExecutor(len(targets), thread_name_prefix="alerts") as pool:
            return sum(pool.map(lambda target: self._send_to(target, until, max_seconds), targets))

    def _send_to(self, target: str, until: float, max_seconds: float) -> int:
        """Send one target's messages. None starts in the second half of the time, so that each has
        at least half of it.
        """
        n_sent = 0
        while time.monotonic() <= until - max_seconds / 2:
            message = self.outbox.lease(target, self.clock.now(), seconds=LEASE_S)
            if message is None or not self._attempt(message, until - time.monotonic()):
                break
            n_sent += 1
        return n_sent

    def _attempt(self, message: AlertMessage, seconds: float) -> bool:
        """Whether it was delivered. Whatever one target raises, the others go on."""
        channel = self.channels.get(message.target)
        try:
            if channel is None:
                raise DeliveryFailed(
                    f"There is no target {message.target}. Add it to alert_targets and replay the "
                    "message.",
                    is_permanent=True,
                )
            if message.n_attempts > len(self.retry_seconds) + 1:
                raise DeliveryFailed("The process that sent it was killed during the last attempt.")
            send_within(channel, message, self.clock.now(), seconds)
        except (DeliveryFailed, ConfigurationError) as failure:
            # it may quote the receiver
            self._record_failure(message, failure, escape_controls(" ".join(f"{failure}".split())))
            return False
        except Exception as failure:
            logger.exception("A channel failed")  # log lines hide the secrets that it may repeat
            what = f"Unexpected {type(failure).__name__}; the log shows where it was raised."
            self._record_failure(message, failure, what)
            return False
        self.outbox.mark_delivered(message.message_id, self.clock.now())
        return True

    def _record_failure(self, message: AlertMessage, failure: Exception, error: str) -> None:
        """Try again as the schedule says, or later if the receiver asked for it, or give it up."""
        refusal = failure if isinstance(failure, DeliveryFailed) else DeliveryFailed("")
        again_at, fate = None, "is given up"
        if not refusal.is_permanent and message.n_attempts <= len(self.retry_seconds):
            asked_s = min(refusal.retry_after or 0.0, LONGEST_RETRY_AFTER_S)
            wait_s = max(self.retry_seconds[message.n_attempts - 1], asked_s)
            again_at = self.clock.now() + timedelta(seconds=wait_s)
            fate = f"will be retried at {again_at:%H:%M:%S} UTC"
        self.outbox.mark_failed(message.message_id, error, next_attempt_at=again_at)
        logger.warning("Message %s to %s %s: %s", message.message_id, message.target, fate, error)


def send_within(channel: Channel, message: AlertMessage, now: datetime, seconds: float) -> str:
    """Send in a thread that is left alone after `seconds`: neither DNS nor a reply that drips byte
    by byte has a limit of its own. What arrives later has the id of its repetition.
    """
    outcome: Future[str] = Future()

    def send() -> None:
        try:
            outcome.set_result(channel.send(message, now))
        except Exception as failure:  # noqa: BLE001  raised where the result is awaited
            outcome.set_exception(failure)

    Thread(target=send, name=f"alerts to {message.target}", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        raise DeliveryFailed(f"The receiver took longer than {seconds:.3g} s.") from None

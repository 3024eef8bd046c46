"""Empties the outbox of alerts: attempts, waits between them, and messages that are given up."""

import logging
import random
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from rlhf_pipeline.alerts.channels.base import Channel
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.protocols import Clock
from rlhf_pipeline.terminal import escape_controls

MOST_ATTEMPTS = 12
FIRST_WAIT = timedelta(minutes=1)
LONGEST_WAIT = timedelta(hours=6)  # 12 attempts then take 20 to 26 hours
LONGEST_RETRY_AFTER = timedelta(hours=24)  # of what a receiver may ask for
LEASE_SECONDS = 120.0  # far longer than any attempt; a killed sender's message is then sent again

logger = logging.getLogger(__name__)


class Outbox(Protocol):
    """Where messages wait; the store implements it."""

    def due_targets(self, now: datetime) -> Sequence[str]: ...

    def lease(
        self, now: datetime, *, seconds: float, limit: int = 1, target: str | None = None
    ) -> list[AlertMessage]: ...

    def mark_delivered(self, message_id: str, now: datetime) -> None: ...

    def mark_failed(
        self, message_id: str, error: str, *, next_attempt_at: datetime | None
    ) -> None: ...


@dataclass(frozen=True)
class DeliveryAttempt:
    """One message that was sent, or was not: then `error` says why."""

    message: AlertMessage
    error: str | None = None
    is_dead: bool = False


def deliver_due(
    outbox: Outbox, channels: Mapping[str, Channel], clock: Clock, *, max_seconds: float = 10
) -> list[DeliveryAttempt]:
    """Send what is due, for at most `max_seconds` in all.

    Each target has a thread of its own, so one that hangs costs the others nothing. A target that
    fails is left alone until the next call. Messages about one alert reach a target in their order.
    """
    targets = outbox.due_targets(clock.now())
    if not targets:
        return []
    until = time.monotonic() + max_seconds
    with ThreadPoolExecutor(len(targets), thread_name_prefix="alerts") as pool:
        senders = [
            pool.submit(_deliver_to, name, channels.get(name), outbox, clock, until)
            for name in targets
        ]
    return [attempt for sender in senders for attempt in sender.result()]


def next_attempt(message: AlertMessage, failure: Exception, now: datetime) -> datetime | None:
    """When to try again: after twice the previous wait, or later if the receiver asked for it. None
    if the message is given up.
    """
    refusal = failure if isinstance(failure, DeliveryFailed) else DeliveryFailed("")
    if refusal.is_permanent or message.n_attempts >= MOST_ATTEMPTS:
        return None
    wait = min(FIRST_WAIT * (1 << (message.n_attempts - 1)), LONGEST_WAIT)
    # Spreads the attempts of many messages; seeded, so that the same attempt always waits as long.
    wait *= random.Random(f"{message.message_id}:{message.n_attempts}").uniform(1, 1.25)
    requested_s = min(refusal.retry_after or 0.0, LONGEST_RETRY_AFTER.total_seconds())
    return now + max(wait, timedelta(seconds=requested_s))


def _deliver_to(
    name: str, channel: Channel | None, outbox: Outbox, clock: Clock, until: float
) -> list[DeliveryAttempt]:
    """Send one target's messages. None starts in the second half of the time, so that each has at
    least half of it.
    """
    attempts: list[DeliveryAttempt] = []
    half = (until - time.monotonic()) / 2
    while time.monotonic() <= until - half:
        leased = outbox.lease(clock.now(), seconds=LEASE_SECONDS, target=name)
        if not leased:
            break
        attempts.append(_attempt(leased[0], channel, outbox, clock, until - time.monotonic()))
        if attempts[-1].error is not None and not attempts[-1].is_dead:
            break
    return attempts


def _attempt(
    message: AlertMessage, channel: Channel | None, outbox: Outbox, clock: Clock, seconds: float
) -> DeliveryAttempt:
    try:
        if channel is None:
            raise DeliveryFailed(
                f"There is no target {message.target}. Add it to alert_targets and replay the "
                "message.",
                is_permanent=True,
            )
        if message.n_attempts > MOST_ATTEMPTS:
            raise DeliveryFailed("The process that sent it was killed during the last attempt.")
        channel.send(message, now=clock.now(), seconds=seconds)
    except Exception as failure:  # noqa: BLE001  whatever one target raises, the others go on
        now = clock.now()
        again_at = next_attempt(message, failure, now)
        error = _describe(failure)
        outbox.mark_failed(message.message_id, error, next_attempt_at=again_at)
        fate = "is given up" if again_at is None else f"will be retried at {again_at:%H:%M} UTC"
        logger.warning("Message %s to %s %s: %s", message.message_id, message.target, fate, error)
        return DeliveryAttempt(message, error, is_dead=again_at is None)
    outbox.mark_delivered(message.message_id, clock.now())
    return DeliveryAttempt(message)


def _describe(failure: Exception) -> str:
    if isinstance(failure, DeliveryFailed | ConfigurationError):
        return escape_controls(" ".join(str(failure).split()))  # it may quote the receiver
    # Only where it was raised is logged: its text may hold a secret.
    places = "".join(traceback.format_tb(failure.__traceback__))
    logger.error("Unexpected %s of a channel:\n%s", type(failure).__name__, places)
    return f"Unexpected {type(failure).__name__}; the log shows where it was raised."

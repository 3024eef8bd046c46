"""What every channel does: it sends one message, within a time, or says why not."""

from datetime import datetime
from typing import Protocol

from rlhf_pipeline.monitoring import AlertMessage


class Channel(Protocol):
    """Brings messages to one target."""

    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        """Send it within `seconds`; the text says what the receiver accepted.

        Raises DeliveryFailed, or ConfigurationError for settings that cannot be used; neither
        repeats a secret. A message may be sent twice, under the same id.
        """
        ...

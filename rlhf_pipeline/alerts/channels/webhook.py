"""Posts alerts as signed JSON (Standard Webhooks)."""

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

from rlhf_pipeline import __version__
from rlhf_pipeline.alert_targets import WebhookTarget
from rlhf_pipeline.alerts.http_post import HttpReply, post
from rlhf_pipeline.alerts.signature import sign
from rlhf_pipeline.completions.redaction import (
    SHORTEST_ALONE,
    WholeWordSecret,
    address_of,
    redact,
    secrets_of,
)
from rlhf_pipeline.errors import DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.secret_files import read_secret


class WebhookChannel:
    def __init__(self, target: WebhookTarget, *, allow_private: bool):
        self._target = target
        self._allow_private = allow_private

    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        url = self._target.url.get_secret_value()
        secrets = read_secret(self._target.secret, self._target.secret_file)
        body = json.dumps(message.payload, allow_nan=False, separators=(",", ":")).encode()
        timestamp = int(now.timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"rlhf-pipeline/{__version__}",
            "webhook-id": message.message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(secrets, message.message_id, timestamp, body),
        }
        reply = post(url, body, headers, allow_private=self._allow_private, seconds=seconds)
        if 200 <= reply.status < 300:
            return f"{urlsplit(url).hostname} answered {reply.status}"
        raise _describe_refusal(reply, url, secrets, now)


def _describe_refusal(reply: HttpReply, url: str, secrets: str, now: datetime) -> DeliveryFailed:
    host = urlsplit(url).hostname
    hidden = (*secrets.split(), *secrets_of(url), *_path_secrets(url))
    if 300 <= reply.status < 400:
        try:
            place = address_of(reply.headers.get("location", "")) or "nowhere"
        except ValueError:
            place = "an invalid address"
        return DeliveryFailed(
            f"{host} answered {reply.status} with a redirect to {redact(place, *hidden)}. "
            "Redirects are not followed; set the url of the target to its final address."
        )
    said = redact(reply.text, *hidden)
    return DeliveryFailed(
        f"{host} answered {reply.status}{': ' if said else '.'}{said}",
        retry_after=parse_retry_after(reply.headers.get("retry-after", ""), now),
        is_permanent=reply.status == 410,  # Gone: the specification's way to end a subscription
    )


def parse_retry_after(header: str, now: datetime) -> float | None:
    """Seconds to wait, from a number or a date; None for anything else.

    >>> parse_retry_after("120", datetime(2026, 1, 1, tzinfo=UTC))
    120.0
    >>> parse_retry_after("Thu, 01 Jan 2026 01:00:00 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    3600.0
    """
    if header.strip().isdecimal() and header.isascii():
        return float(header)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


def _path_secrets(url: str) -> tuple[str, ...]:
    """The path, which some services use as a password, and its parts, unless they are short."""
    path = urlsplit(url).path
    parts = (form for part in path.split("/") for form in (part, unquote(part)))
    words = (WholeWordSecret(part) for part in parts if len(part) >= SHORTEST_ALONE)
    return (path, *words) if len(path) > 1 else ()

"""The channels by which messages leave: the log, signed webhooks, and the services of apprise."""

import binascii
import json
import logging
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

import httpx
from standardwebhooks import Webhook

from rlhf_pipeline import __version__
from rlhf_pipeline.alert_targets import LOG, AlertTarget, check_web_address
from rlhf_pipeline.alerts.addresses import is_public, resolve_allowed
from rlhf_pipeline.alerts.messages import build_subject, build_text, find_new_detail
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.secret_files import read_secret
from rlhf_pipeline.telemetry.logs import SecretFilter
from rlhf_pipeline.terminal import escape_controls

TIMEOUT_S = 10.0  # of each step of an attempt; `delivery` bounds the whole
MOST_SAID = 300  # characters of what apprise reports
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{32,86}={0,2}")  # 24 to 64 bytes in base64
logger = logging.getLogger("rlhf_pipeline.alerts")


class Channel(Protocol):
    """Brings messages to one target."""

    def send(self, message: AlertMessage, now: datetime) -> str:
        """Send it; the text says what the receiver accepted.

        Raises DeliveryFailed, or ConfigurationError for settings that cannot be used; neither
        repeats a secret. A message may be sent twice, under the same id.
        """
        ...


def target_names(settings: Settings) -> tuple[str, ...]:
    """The log, which is a target without being configured, and the configured targets."""
    return tuple(dict.fromkeys((LOG, *(target.name for target in settings.alert_targets))))


def channels_of(settings: Settings) -> dict[str, Channel]:
    """A channel per target of `target_names`."""
    hide = SecretFilter(settings).hide
    channels: dict[str, Channel] = {LOG: LogChannel()}
    for target in settings.alert_targets:
        if target.channel == "webhook":
            channels[target.name] = WebhookChannel(target, settings.alert_allow_private)
        elif target.channel == "apprise":
            channels[target.name] = AppriseChannel(target, hide)
        else:
            channels[target.name] = LogChannel()
    return channels


class LogChannel:
    """Writes to the log of the process that sends."""

    def send(self, message: AlertMessage, now: datetime) -> str:
        data = message.payload["data"]
        severity = data["severity"]
        # The end of an alert is no error; a test is a warning, which logs show by default.
        if message.kind == "test" or (message.kind == "resolved" and severity == "critical"):
            severity = "warning"
        parts = (build_subject(message), find_new_detail(data), data["link"])
        line = " ".join(" ".join(part for part in parts if part).split())
        logger.log(LEVELS[severity], "%s", escape_controls(line))
        return "written to the log"


class WebhookChannel:
    """Posts JSON that is signed as Standard Webhooks prescribes, to an address that was checked.

    The host is resolved once: a second answer of the DNS could lead into the own network.
    """

    def __init__(self, target: AlertTarget, allow_private: bool):
        self._target, self._allow_private = target, allow_private

    def send(self, message: AlertMessage, now: datetime) -> str:
        text = read_secret(self._target.url, self._target.url_file)
        secrets = read_secret(self._target.secret, self._target.secret_file)
        try:
            check_web_address(text)
        except ValueError as cause:
            raise ConfigurationError(f"The webhook's {cause}.") from None
        url = httpx.URL(text)
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = resolve_allowed(url.host, port, allow_private=self._allow_private)
        if url.scheme != "https" and any(map(is_public, addresses)):
            raise DeliveryFailed(f"{url.host} is public, and http is not encrypted. Use https.")
        body = json.dumps(message.payload, allow_nan=False, separators=(",", ":"))
        headers = {
            "Host": url.netloc.decode(),
            "Content-Type": "application/json",
            "User-Agent": f"rlhf-pipeline/{__version__}",
            "webhook-id": message.message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": _sign(secrets, message.message_id, now, body),
        }
        failures = []
        for address in addresses:
            try:
                reply = _post(url, str(address), body, headers)
            except httpx.ConnectError as cause:
                failures.append(f"{address}: {cause}")
            except httpx.HTTPError as cause:
                reason = str(cause) or "the connection ended"
                raise DeliveryFailed(f"{url.host} gave no valid reply: {reason}.") from None
            else:
                return _read_reply(reply, url.host, now)
        raise DeliveryFailed(f"Cannot connect to {url.host} ({'; '.join(failures)}).")


def _post(url: httpx.URL, address: str, body: str, headers: dict[str, str]) -> httpx.Response:
    """Post to this address of the host; the reply's body is not read."""
    with (
        httpx.Client(
            verify=ssl.create_default_context(),  # the system's authorities, or SSL_CERT_FILE
            trust_env=False,  # a proxy would resolve the host again
            timeout=TIMEOUT_S,
        ) as client,
        client.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers=headers,
            extensions={"sni_hostname": url.host},
        ) as reply,
    ):
        return reply


def _read_reply(reply: httpx.Response, host: str, now: datetime) -> str:
    answer = f"{host} answered {reply.status_code}"
    if reply.is_success:
        return answer
    if reply.is_redirect:
        cure = "Redirects are not followed; set the url of the target to its final address."
        raise DeliveryFailed(f"{answer}. {cure}")
    raise DeliveryFailed(
        f"{answer}.",
        retry_after=parse_retry_after(reply.headers.get("retry-after", ""), now),
        is_permanent=reply.status_code == 410,  # Gone: the way to end a subscription
    )


class AppriseChannel:
    """Sends mail and chat, and whatever else the package apprise knows."""

    def __init__(self, target: AlertTarget, hide: Callable[[str], str]):
        self._target, self._hide = target, hide

    def send(self, message: AlertMessage, now: datetime) -> str:
        import apprise  # loads plug-ins for more than a hundred services

        service = apprise.Apprise()
        severity = message.payload["data"]["severity"]
        kind = "failure" if severity == "critical" else severity
        with apprise.LogCapture(level=logging.WARNING) as said:  # type: ignore[no-untyped-call]
            if not service.add(read_secret(self._target.url, self._target.url_file)):
                raise ConfigurationError("apprise cannot use the url. https://appriseit.com helps.")
            is_sent = service.notify(
                title=build_subject(message),
                body=build_text(message),
                notify_type="success" if message.kind == "resolved" else kind,
            )
            reason = self._hide(" ".join(said.getvalue().split()))[:MOST_SAID]
        if not is_sent:
            raise DeliveryFailed(f"apprise did not send the message: {reason}")
        return "apprise sent the message"


def _sign(secrets: str, message_id: str, now: datetime, body: str) -> str:
    """The header `webhook-signature`: one signature per secret, so that a receiver may know the new
    or the old one while they are rotated. Raises ConfigurationError, which repeats none of them.
    """
    try:
        if not secrets or not all(map(SECRET.fullmatch, secrets.split())):
            raise ValueError
        keys = [Webhook(secret) for secret in secrets.split()]
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            "A webhook's secret must be whsec_ and 24 to 64 random bytes in base64. Make one: "
            'echo "whsec_$(openssl rand -base64 32)".'
        ) from None
    return " ".join(key.sign(message_id, now.astimezone(UTC), body) for key in keys)


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

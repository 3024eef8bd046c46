"""The channels by which messages leave: the log, signed webhooks, and the services of apprise."""

import json
import logging
import re
import socket
import ssl
from concurrent.futures import Future
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Thread
from typing import TYPE_CHECKING, Any

from rlhf_pipeline import __version__
from rlhf_pipeline.core.alert_targets import LOG, WEB_ADDRESS, AlertTarget
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.core.monitoring import AlertMessage
from rlhf_pipeline.core.secret_files import read_secret
from rlhf_pipeline.core.terminal import escape_controls
from rlhf_pipeline.watch.alerts.messages import build_subject, build_text
from rlhf_pipeline.watch.telemetry.logs import SecretFilter

if TYPE_CHECKING:  # every sensor's process imports this module, and few send
    import httpx

TIMEOUT_S = 10.0  # of an attempt
AGAIN = "The receiver failed; alerts to it are tried again."
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{32,86}={0,2}")  # 24 to 64 bytes in base64
NAT64 = IPv6Network("64:ff9b::/96")
# Services of clouds that only their own machines reach, most of them metadata: of Azure, Oracle,
# Alibaba, Amazon and Google; and addresses of which only the network's own translator knows where
# they lead (RFC 8215, and IPv4-compatible ones), such as to those.
NEVER = tuple(
    ip_network(network)
    for network in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "100.100.100.200/32",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
        "64:ff9b:1::/48",
        "::/96",
    )
)
logger = logging.getLogger("rlhf_pipeline.watch.alerts")


def find_targets(settings: Settings) -> dict[str, AlertTarget]:
    """The configured targets by name, and the log, which is one without being configured."""
    log = AlertTarget(name=LOG, channel="log")
    return {LOG: log} | {target.name: target for target in settings.alert_targets}


def send(settings: Settings, target: AlertTarget, message: AlertMessage, now: datetime) -> str:
    """Bring a message to a target; the text says what the receiver accepted.

    Raises DeliveryFailed, or ConfigurationError for settings that cannot be used; neither repeats a
    secret. A message may be sent twice, under the same id. The thread that sends is left alone
    after `TIMEOUT_S`: neither DNS nor a reply that drips byte by byte has a limit of its own.
    """
    outcome: Future[str] = Future()

    def bring() -> None:
        try:
            outcome.set_result(_bring(settings, target, message, now))
        except Exception as failure:  # noqa: BLE001  raised where the result is awaited
            outcome.set_exception(failure)

    Thread(target=bring, name=f"alerts to {target.name}", daemon=True).start()
    try:
        return outcome.result(TIMEOUT_S)
    except TimeoutError:
        raise DeliveryFailed(f"The receiver took longer than {TIMEOUT_S:g} s. {AGAIN}") from None


def check_target(target: AlertTarget) -> None:
    """Raise ConfigurationError, which repeats no secret, for a target that no message can reach.
    Sends nothing; only the names of webhooks' hosts are looked up.
    """
    try:
        if target.channel == "webhook":
            url, secrets = _read_webhook(target)
            _sign(secrets, "msg_check", datetime.now(UTC), "")
            resolve_allowed(url, allow_private=target.allow_private)
        elif target.channel == "apprise":
            _open_service(target)
    except (ConfigurationError, DeliveryFailed) as cause:
        raise ConfigurationError(f"alert_targets.{target.name}: {cause}") from None


def _bring(settings: Settings, target: AlertTarget, message: AlertMessage, now: datetime) -> str:
    if target.channel == "webhook":
        return _post(target, message, now)
    if target.channel == "apprise":
        return _notify(target, message, SecretFilter(settings))
    severity = message.payload["data"]["severity"]
    # The end of an alert is no error; a test is a warning, which logs show by default.
    if message.kind == "test" or (message.kind == "resolved" and severity == "critical"):
        severity = "warning"
    line = f"{build_subject(message)} {message.payload['data']['link'] or ''}"
    logger.log(LEVELS[severity], "%s", escape_controls(line))
    return "written to the log"


def _notify(target: AlertTarget, message: AlertMessage, secrets: SecretFilter) -> str:
    """Send mail and chat, and whatever else the package apprise knows."""
    import apprise  # loads plug-ins for more than a hundred services

    severity = message.payload["data"]["severity"]
    kind = "failure" if severity == "critical" else severity
    with apprise.LogCapture(level=logging.WARNING) as warnings:  # type: ignore[no-untyped-call]
        is_sent = _open_service(target).notify(
            title=build_subject(message),
            body=build_text(message),
            notify_type="success" if message.kind == "resolved" else kind,
        )
        reason = secrets.hide(" ".join(warnings.getvalue().split()))
    if not is_sent:
        raise DeliveryFailed(f"apprise did not send the message: {reason}")
    return "apprise sent the message"


def _open_service(target: AlertTarget) -> Any:
    import apprise

    service = apprise.Apprise()
    if not service.add(read_secret(target.url, target.url_file)):
        raise ConfigurationError("apprise cannot use the url. https://appriseit.com helps.")
    return service


def _read_webhook(target: AlertTarget) -> "tuple[httpx.URL, str]":
    import httpx

    text = read_secret(target.url, target.url_file)
    if not WEB_ADDRESS.fullmatch(text):
        raise ConfigurationError(
            "A webhook's url must be an address such as https://example.org/alerts without user:@."
        )
    return httpx.URL(text), read_secret(target.secret, target.secret_file)


def _post(target: AlertTarget, message: AlertMessage, now: datetime) -> str:
    """Post JSON that is signed as Standard Webhooks prescribes, to an address that was checked.

    The host is resolved once: a second answer of the DNS could lead into the own network.
    """
    import httpx

    url, secrets = _read_webhook(target)
    body = json.dumps(message.payload, allow_nan=False, separators=(",", ":"))
    headers = {
        "Host": url.netloc.decode(),
        "Content-Type": "application/json",
        "User-Agent": f"rlhf-pipeline/{__version__}",
        "webhook-id": message.message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": _sign(secrets, message.message_id, now, body),
    }
    failure, cure = "it has no address", "Correct its url."
    for address in resolve_allowed(url, allow_private=target.allow_private):
        try:
            with (
                httpx.Client(
                    verify=ssl.create_default_context(),  # the system's, or SSL_CERT_FILE
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
                if reply.is_success:
                    return f"{url.host} answered {reply.status_code}"
                failure = f"it answered {reply.status_code}"
                # too many requests, or a fault of the receiver's own
                cure = AGAIN if reply.is_server_error or reply.status_code == 429 else cure
                break
        except httpx.HTTPError as cause:
            failure = f"{address}: {cause or type(cause).__name__}"
            if not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
                break  # the host may have taken the message: its next address would take it again
    raise DeliveryFailed(f"{url.host} did not take the message ({failure}). {cure}")


def _sign(secrets: str, message_id: str, now: datetime, body: str) -> str:
    """The header `webhook-signature`: one signature per secret, so that a receiver may know the new
    or the old one while they are rotated. Raises ConfigurationError, which repeats none of them.
    """
    from standardwebhooks import Webhook

    try:
        if not secrets or not all(map(SECRET.fullmatch, secrets.split())):
            raise ValueError
        keys = [Webhook(secret) for secret in secrets.split()]
    except ValueError:
        raise ConfigurationError(
            "A webhook's secret must be whsec_ and 24 to 64 random bytes in base64. Make one: "
            'echo "whsec_$(openssl rand -base64 32)".'
        ) from None
    return " ".join(key.sign(message_id, now.astimezone(UTC), body) for key in keys)


def resolve_allowed(url: "httpx.URL", *, allow_private: bool) -> list[str]:
    """The addresses of a webhook's host, in the system's order.

    Raises DeliveryFailed if any is private, or public without https. With `allow_private` it still
    refuses link-local addresses and the metadata services of clouds.
    """
    try:
        entries = socket.getaddrinfo(url.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as cause:
        raise DeliveryFailed(f"{url.host} cannot be resolved: {cause}. Correct its name.") from None
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))
    for address in map(_find_destination, addresses):
        is_never = any(address in network for network in NEVER) and not address.is_loopback
        is_site = isinstance(address, IPv6Address) and address.is_site_local
        is_public = address.is_global and not (address.is_multicast or is_never or is_site)
        if is_public and url.scheme != "https":
            raise DeliveryFailed(f"{url.host} is public, and http is not encrypted. Use https.")
        is_unusable = address.is_link_local or address.is_multicast or address.is_unspecified
        if not is_public and (is_unusable or is_never or not allow_private):
            raise DeliveryFailed(
                f"{url.host} has the private address {address}, which webhooks may not reach. Name "
                "another host, or set allow_private of the target in alert_targets, "
                "which allows all but link-local addresses and services of clouds."
            )
    return addresses


def _find_destination(text: str) -> IPv4Address | IPv6Address:
    """The address, or the IPv4 address that a mapped, 6to4 or NAT64 address leads to."""
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address

"""Messages in the log, as signed webhooks to a checked address, and by mail and chat."""

import base64
import json
import logging
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from rlhf_pipeline.core.alert_targets import parse_targets
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.core.monitoring import Alert, AlertMessage
from rlhf_pipeline.watch.alerts import channels
from rlhf_pipeline.watch.alerts.channels import find_targets, resolve_allowed
from rlhf_pipeline.watch.alerts.messages import build_text
from tests.unit.watch.alerts.conftest import message_about
from tests.unit.watch.alerts.receivers import Hook, serve_hook

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


def send(message: AlertMessage, *, allow_private: bool = True, **target: Any) -> str:
    if target["channel"] == "webhook":
        target["allow_private"] = allow_private
    settings = Settings(alert_targets=parse_targets({"team": target}))
    return channels.send(settings, find_targets(settings)["team"], message, datetime.now(UTC))


def post(message: AlertMessage, url: str, **more: Any) -> str:
    return send(message, **{"channel": "webhook", "url": url, "secret": SECRET} | more)


def failure(message: AlertMessage, url: str, **more: Any) -> str:
    with pytest.raises(DeliveryFailed) as refusal:
        post(message, url, **more)
    return str(refusal.value)


def test_an_alert_is_one_line_of_the_log(drift: Alert, caplog: pytest.LogCaptureFixture) -> None:
    detailed = drift.model_copy(update={"title": "two\nlines\x1b[2J"})
    for kind in ("opened", "resolved"):
        send(message_about(detailed, kind), channel="log")
    text = "two lines\\u001b[2J http://127.0.0.1:8080/drift"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, f"[demo] critical: {text}"),
        (logging.WARNING, f"[demo] resolved: {text}"),
    ]


def test_alert_text_has_time_severity_action_and_cure(opened: AlertMessage) -> None:
    assert build_text(opened).splitlines() == [
        "Drift of the error rate",
        "",
        "Since: 2026-01-03T12:00:00Z",
        "Severity: critical",
        "State: answered, not served",
        "What the loop did: It retrained the reward model.",
        "What to do next: Promote a policy.",
        "http://127.0.0.1:8080/drift",
    ]


def test_a_receiver_verifies_the_payload(opened: AlertMessage) -> None:
    with serve_hook(Hook()) as hook:
        assert post(opened, hook.url) == "127.0.0.1 answered 204"
    ((headers, body),) = hook.received
    payload = Webhook(SECRET).verify(body, headers)
    assert payload == json.loads(json.dumps(opened.payload))
    assert headers["webhook-id"] == opened.message_id


def test_rotated_secret_signs_beside_the_new_one(opened: AlertMessage, tmp_path: Path) -> None:
    file, new = tmp_path / "hook.key", "whsec_" + base64.b64encode(b"n" * 32).decode()
    with serve_hook(Hook()) as hook:
        file.write_text(f"{SECRET}\n{new}\n")
        post(opened, hook.url, secret=None, secret_file=str(file))
        headers, body = hook.received[-1]
        for secret in (SECRET, new):
            assert Webhook(secret).verify(body, headers)
        file.write_text("whsec_short")
        with pytest.raises(ConfigurationError, match="24 to 64 random bytes") as refusal:
            post(opened, hook.url, secret=None, secret_file=str(file))
    assert "whsec_short" not in str(refusal.value)


def test_a_private_address_is_refused_by_default(opened: AlertMessage) -> None:
    with serve_hook(Hook()) as hook:
        message = failure(opened, hook.url, allow_private=False)
    assert message.startswith("127.0.0.1 has the private address 127.0.0.1")
    assert "set allow_private" in message
    assert hook.received == []


@pytest.mark.parametrize(
    "address",
    [
        "127.8.8.8",
        "10.1.2.3",
        "192.168.1.1",
        "100.64.0.1",
        "2130706433",
        "localhost",
        "[::1]",
        "[fc00::1]",
        "[::ffff:10.0.0.1]",
        "[2002:7f00:1::1]",
        "[64:ff9b::10.0.0.1]",
        "[fec0::1]",
    ],
)
def test_addresses_of_the_own_network_must_be_allowed(address: str) -> None:
    url = httpx.URL(f"http://{address}/")
    with pytest.raises(DeliveryFailed, match="set allow_private"):
        resolve_allowed(url, allow_private=False)
    assert resolve_allowed(url, allow_private=True)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "0.0.0.0",
        "224.0.0.1",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::1]",
        "[::10.0.0.1]",
        "[fd00:ec2::254]",
        "100.100.100.200",
        "168.63.129.16",
    ],
)
def test_cloud_metadata_is_never_reachable(address: str) -> None:
    with pytest.raises(DeliveryFailed, match="link-local"):
        resolve_allowed(httpx.URL(f"http://{address}/"), allow_private=True)


def test_a_redirect_is_not_followed(opened: AlertMessage) -> None:
    place = "http://169.254.169.254/latest/meta-data"
    with serve_hook(Hook(status=307, headers={"Location": place})) as hook:
        assert "answered 307" in failure(opened, hook.url)
    assert len(hook.received) == 1


@pytest.mark.parametrize(("status", "cure"), [(500, "tried again"), (404, "Correct its url")])
def test_receiver_errors_are_not_blamed_on_the_url(
    opened: AlertMessage, status: int, cure: str
) -> None:
    with serve_hook(Hook(status=status)) as hook:
        assert cure in failure(opened, hook.url)


@pytest.mark.parametrize("status", [0, 204], ids=["no valid reply", "accepted"])
def test_only_a_failed_connection_tries_the_next_address(
    opened: AlertMessage, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with serve_hook(Hook(status=status)) as hook:
        addresses = ["127.0.0.2", "127.0.0.1", "127.0.0.1"]  # none listens at the first
        monkeypatch.setattr(channels, "resolve_allowed", lambda *_, **__: addresses)
        if status:
            assert post(opened, hook.url) == "127.0.0.1 answered 204"
        else:
            assert failure(opened, hook.url)
    assert len(hook.received) == 1


def test_slow_reply_ends_at_the_timeout(
    opened: AlertMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "TIMEOUT_S", 0.5)

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 204 OK\r\nx: ")
            while not is_over.wait(0.05):
                connection.sendall(b"x")

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert "longer than 0.5 s" in failure(opened, url)
        is_over.set()
        thread.join()


def test_http_is_refused_for_public_addresses(opened: AlertMessage) -> None:
    assert "Use https" in failure(opened, "http://1.1.1.1/")


def test_the_name_is_looked_up_once(opened: AlertMessage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second answer of the DNS may lead elsewhere (rebinding)."""
    hosts = []
    original = socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **more: Any) -> Any:
        hosts.append(host)
        return original("127.0.0.1" if host == "hooks.example.org" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with serve_hook(Hook()) as hook:
        post(opened, hook.url.replace("127.0.0.1", "hooks.example.org"))
    assert hosts == ["hooks.example.org", "127.0.0.1"]
    assert hook.received[0][0]["Host"] == f"hooks.example.org:{hook.port}"


def test_certificate_must_be_trusted_and_name_the_host(
    opened: AlertMessage,
    certificate: Path,
    server_tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve_hook(Hook(), server_tls) as hook:
        known = f"https://localhost:{hook.port}/"
        assert "self-signed certificate" in failure(opened, known)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert post(opened, known) == "localhost answered 204"
        assert "127.0.0.1" in failure(opened, f"https://127.0.0.1:{hook.port}/")
    assert len(hook.received) == 1


def test_a_chat_receives_title_text_and_kind(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=200)) as hook:
        url = f"json://127.0.0.1:{hook.port}/"
        assert send(opened, channel="apprise", url=url) == "apprise sent the message"
    received = json.loads(hook.received[0][1])
    assert received["title"] == "[demo] critical: Drift of the error rate"
    assert "What to do next: Promote a policy." in received["message"]
    assert received["type"] == "failure"


def test_a_refusing_service_is_named_without_its_token(opened: AlertMessage) -> None:
    with (
        serve_hook(Hook(status=403)) as hook,
        pytest.raises(DeliveryFailed, match="403") as failure_info,
    ):
        send(opened, channel="apprise", url=f"json://127.0.0.1:{hook.port}/s3cr3t-t0ken")
    assert "s3cr3t-t0ken" not in str(failure_info.value)
    with pytest.raises(ConfigurationError, match="cannot use the url") as unknown:
        send(opened, channel="apprise", url="nosuchservice://s3cr3t-t0ken")
    assert "s3cr3t-t0ken" not in str(unknown.value)

"""Webhooks go to the address that was checked, within their time, and follow no redirect."""

import base64
import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook

from rlhf_pipeline.alert_targets import WebhookTarget
from rlhf_pipeline.alerts.channels.webhook import WebhookChannel
from rlhf_pipeline.errors import DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from tests.unit.alerts.receivers import Hook, serve_bytes, serve_hook

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


def send(
    message: AlertMessage, url: str, *, allow_private: bool = True, seconds: float = 5, **more: Any
) -> str:
    target = WebhookTarget(
        name="team", channel="webhook", url=SecretStr(url), **{"secret": SecretStr(SECRET)} | more
    )
    channel = WebhookChannel(target, allow_private=allow_private)
    return channel.send(message, now=datetime.now(UTC), seconds=seconds)


def failure(message: AlertMessage, url: str, **more: Any) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as refusal:
        send(message, url, **more)
    return refusal.value


def test_a_receiver_verifies_the_payload(opened: AlertMessage) -> None:
    with serve_hook(Hook()) as hook:
        assert send(opened, hook.url) == "127.0.0.1 answered 204"
    ((headers, body),) = hook.received
    payload = Webhook(SECRET).verify(body, headers)
    assert payload["type"] == "alert.opened"
    assert payload["data"] == {
        "alert_id": 7,
        "rule": "drift",
        "subject": "reward model 3",
        "severity": "critical",
        "state": "open",
        "title": "Drift of the error rate",
        "detail": "The taste of annotators changed.",
        "value": 0.31,
        "threshold": 0.05,
        "cause": "taste changed",
        "evidence": {"cause": "taste changed", "votes": 120},
        "link": "http://127.0.0.1:8080/drift",
        "project": "demo",
        "opened_at": "2026-01-03T12:00:00Z",
        "acknowledged_at": None,
        "acknowledged_by": None,
        "resolved_at": None,
        "resolved_by": None,
        "resolution": "",
    }


def test_a_private_address_is_refused_by_default(opened: AlertMessage) -> None:
    with serve_hook(Hook()) as hook:
        said = str(failure(opened, hook.url, allow_private=False))
    assert said.startswith("127.0.0.1 has the private address 127.0.0.1")
    assert "RLHF_ALERT_ALLOW_PRIVATE=true" in said
    assert hook.received == []


@pytest.mark.parametrize(
    "place", ["http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/"]
)
def test_a_redirect_to_a_private_address_is_refused(opened: AlertMessage, place: str) -> None:
    with serve_hook(Hook(status=307, headers={"Location": place})) as hook:
        said = str(failure(opened, hook.url))
    assert f"answered 307 with a redirect to {place}. Redirects are not followed" in said
    assert len(hook.received) == 1


def test_a_broken_redirect_is_an_error(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=301, headers={"Location": "http://["})) as hook:
        assert "with a redirect to an invalid address" in str(failure(opened, hook.url))


def test_http_is_refused_for_public_addresses(
    opened: AlertMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("1.1.1.1", 80))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry])
    assert "Use https" in str(failure(opened, "http://hooks.example.org/"))


def test_the_name_is_looked_up_once(opened: AlertMessage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second answer of the DNS may lead elsewhere (rebinding)."""
    asked = []
    original = socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        return original("127.0.0.1" if host == "hooks.example.org" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with serve_hook(Hook()) as hook:
        send(opened, hook.url.replace("127.0.0.1", "hooks.example.org"))
    assert asked == ["hooks.example.org", "127.0.0.1"]
    assert hook.received[0][0]["Host"] == f"hooks.example.org:{hook.port}"


def test_refusals_say_what_the_receiver_said_without_secrets(opened: AlertMessage) -> None:
    text = f"no route for /hook?key=abcdefgh with {SECRET}".encode()
    with serve_hook(Hook(status=404, text=text)) as hook:
        refusal = failure(opened, hook.url)
    assert "127.0.0.1 answered 404: no route for ***" in str(refusal)
    assert "abcdefgh" not in str(refusal)
    assert SECRET not in str(refusal)
    assert not refusal.is_permanent


def test_a_refusal_hides_a_short_token_of_the_path(opened: AlertMessage) -> None:
    text = b"no hook s3cr3t-token, no hook a/b+c%2F, nor hooks"
    with serve_hook(Hook(status=404, text=text)) as hook:
        said = str(failure(opened, f"http://127.0.0.1:{hook.port}/hook/s3cr3t-token/a%2Fb+c%252F"))
    assert said == "127.0.0.1 answered 404: no hook ***, no hook ***, nor hooks"


def test_a_receiver_may_ask_for_a_wait_or_for_an_end(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=503, headers={"Retry-After": "900"})) as hook:
        assert failure(opened, hook.url).retry_after == 900
    with serve_hook(Hook(status=410)) as hook:
        assert failure(opened, hook.url).is_permanent


@pytest.mark.parametrize("chunk", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"x"])
def test_a_slow_receiver_is_left_in_time(opened: AlertMessage, chunk: bytes) -> None:
    def drip(connected: Any) -> None:
        for _ in range(100):
            connected.sendall(chunk)
            time.sleep(0.05)

    with serve_bytes(drip) as port:
        began = time.monotonic()
        said = str(failure(opened, f"http://127.0.0.1:{port}/", seconds=0.3))
    assert said == "The receiver took longer than 0.3 s."
    assert time.monotonic() - began < 2


def test_an_accepting_reply_is_not_waited_for(opened: AlertMessage) -> None:
    def accept(connected: Any) -> None:
        connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        time.sleep(2)

    with serve_bytes(accept) as port:
        assert send(opened, f"http://127.0.0.1:{port}/", seconds=1) == "127.0.0.1 answered 200"


def test_a_huge_reply_is_not_read(opened: AlertMessage) -> None:
    with serve_hook(Hook(status=500, text=b"x" * 5_000_000)) as hook:
        assert len(str(failure(opened, hook.url))) < 400


def test_a_closed_port_is_an_error_with_its_cause(opened: AlertMessage) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        said = str(failure(opened, f"http://127.0.0.1:{unused.getsockname()[1]}/"))
    assert "127.0.0.1: Connection refused" in said


def test_the_certificate_must_be_known_and_name_the_host(
    opened: AlertMessage,
    certificate: Path,
    server_tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve_hook(Hook(), server_tls) as hook:
        known = f"https://localhost:{hook.port}/"
        assert "self-signed certificate" in str(failure(opened, known))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert send(opened, known) == "localhost answered 204"
        assert "127.0.0.1" in str(failure(opened, f"https://127.0.0.1:{hook.port}/"))
    assert len(hook.received) == 1


def test_a_secret_file_is_read_at_each_attempt(opened: AlertMessage, tmp_path: Path) -> None:
    file = tmp_path / "hook.key"
    with serve_hook(Hook()) as hook:
        for letter in (b"a", b"b"):
            secret = "whsec_" + base64.b64encode(letter * 32).decode()
            file.write_text(f"{secret}\n")
            send(opened, hook.url, secret=None, secret_file=file)
            headers, body = hook.received[-1]
            assert Webhook(secret).verify(body, headers)

"""Mails are sent over TLS, form a thread per alert, and no text of an alert adds a header."""

import email
import email.policy
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from rlhf_pipeline.alert_targets import EmailTarget
from rlhf_pipeline.alerts.channels.email import EmailChannel, build_mail
from rlhf_pipeline.alerts.messages import build_payload
from rlhf_pipeline.errors import DeliveryFailed
from rlhf_pipeline.monitoring import Alert, AlertMessage
from tests.unit.alerts.conftest import NOON, message_about
from tests.unit.alerts.receivers import Mailbox, serve_bytes


def target(port: int = 25, **more: Any) -> EmailTarget:
    values: dict[str, Any] = {
        "host": "localhost",
        "encryption": "none",
        "sender": "loop@example.org",
        "recipients": ("ann@example.org", "bob@example.org"),
    }
    return EmailTarget(name="team", channel="email", port=port, **values | more)


def send(message: AlertMessage, port: int, **more: Any) -> str:
    return EmailChannel(target(port, **more)).send(message, now=NOON, seconds=5)


def test_a_mail_says_what_happened_in_text_and_html(opened: AlertMessage) -> None:
    box = Mailbox()
    with serve_bytes(box.handle) as port:
        assert send(opened, port) == "localhost took the mail"
    mail = email.message_from_bytes(box.mails[0], policy=email.policy.default)
    assert mail["Subject"] == "[demo] critical: Drift of the error rate"
    assert mail["Message-ID"] == f"<{opened.message_id}@example.org>"
    assert mail["In-Reply-To"] == "<alert-demo-7@example.org>"
    plain, html = (part.get_content() for part in mail.iter_parts())  # type: ignore[attr-defined]
    lines = plain.splitlines()
    assert "Value: 0.31 (threshold 0.05)" in lines
    assert lines[-4:] == ["Cause: taste changed", "Votes: 120", "", "http://127.0.0.1:8080/drift"]
    assert '<a href="http://127.0.0.1:8080/drift">' in html
    assert len(box.recipients) == 2


def test_the_password_travels_encrypted_only(
    opened: AlertMessage,
    certificate: Path,
    server_tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = {"encryption": "starttls", "username": "ann", "password": SecretStr("pw12345")}
    box = Mailbox(tls=server_tls)
    with serve_bytes(box.handle) as port:
        with pytest.raises(DeliveryFailed, match="self-signed certificate"):
            send(opened, port, **login)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        box.is_encrypted = False
        send(opened, port, **login)
    assert len(box.mails) == 1
    with serve_bytes(Mailbox().handle) as port, pytest.raises(DeliveryFailed, match="STARTTLS"):
        send(opened, port, **login)


def test_a_wrong_password_is_not_repeated(
    opened: AlertMessage,
    certificate: Path,
    server_tls: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    login = {"encryption": "starttls", "username": "ann", "password": SecretStr("wrong-pw")}
    with (
        serve_bytes(Mailbox(tls=server_tls).handle) as port,
        pytest.raises(DeliveryFailed, match="535") as refusal,
    ):
        send(opened, port, **login)
    assert "wrong-pw" not in str(refusal.value)
    assert "AGFubgB3cm9uZy1wdw" not in str(refusal.value)


def test_text_of_an_alert_adds_no_header_and_no_markup(drift: Alert) -> None:
    title = "x\r\nBcc: eve@example.org\r\n\r\n<script>alert(1)</script>\ud800"
    evil = drift.model_copy(update={"title": title, "link": 'https://a.org/"><b>'})
    mail = build_mail(message_about(evil), target(), NOON)
    read = email.message_from_bytes(mail.as_bytes(), policy=email.policy.default)
    assert read["Bcc"] is None
    assert read["Subject"] == "[demo] critical: x Bcc: eve@example.org <script>alert(1)</script>"
    html = list(read.iter_parts())[1].get_content()  # type: ignore[attr-defined]
    assert "<script>" not in html
    assert '<a href="https://a.org/&quot;&gt;&lt;b&gt;">' in html


def test_a_refused_recipient_costs_the_others_nothing(opened: AlertMessage) -> None:
    box = Mailbox(refused=("bob@",))
    with serve_bytes(box.handle) as port:
        assert send(opened, port) == "localhost took the mail, but not for bob@example.org"
    box = replace(box, refused=("bob@", "ann@"))
    with serve_bytes(box.handle) as port, pytest.raises(DeliveryFailed, match="no such mailbox"):
        send(opened, port)


def test_a_silent_mail_server_is_left_in_time(opened: AlertMessage) -> None:
    with serve_bytes(lambda connected: time.sleep(5)) as port:
        began = time.monotonic()
        with pytest.raises(DeliveryFailed, match="longer than"):
            EmailChannel(target(port)).send(opened, now=NOON, seconds=0.3)
    assert time.monotonic() - began < 2


def test_an_accepted_mail_counts_although_the_server_never_says_goodbye(
    opened: AlertMessage,
) -> None:
    box = Mailbox(answers_quit=False)
    with serve_bytes(box.handle) as port:
        sent = EmailChannel(target(port)).send(opened, now=NOON, seconds=1)
    assert sent == "localhost took the mail"
    assert len(box.mails) == 1


def test_a_message_names_no_annotators(drift: Alert) -> None:
    reasons = ["newcomers with another taste: ann, bob, from vote 9 on"]
    alert = drift.model_copy(update={"evidence": {"reasons": reasons, "n_annotators": 2}})
    assert build_payload(alert, "opened", "demo", NOON)["data"]["evidence"] == {"n_annotators": 2}

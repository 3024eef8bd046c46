"""Sends alerts through a mail server, as plain text and as simple HTML."""

import html
import logging
import smtplib
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from rlhf_pipeline.alert_targets import EmailTarget
from rlhf_pipeline.alerts.addresses import resolve
from rlhf_pipeline.alerts.connections import Deadline, close_at, connect
from rlhf_pipeline.alerts.messages import build_subject, build_text
from rlhf_pipeline.completions.redaction import redact
from rlhf_pipeline.errors import DeliveryFailed
from rlhf_pipeline.monitoring import AlertMessage
from rlhf_pipeline.secret_files import read_secret

logger = logging.getLogger(__name__)


class EmailChannel:
    """The server may have a private address: mail servers usually do."""

    def __init__(self, target: EmailTarget):
        self._target = target

    def send(self, message: AlertMessage, *, now: datetime, seconds: float) -> str:
        target = self._target
        password = read_secret(target.password, target.password_file)
        mail = build_mail(message, target, now)
        deadline = Deadline(seconds)
        addresses = resolve(target.host, target.port, deadline.remaining())
        connected = connect(target.host, target.port, addresses, deadline)
        try:
            with connected, close_at(deadline, connected):
                refused = self._submit(connected, mail, password)
        except (smtplib.SMTPException, OSError, ValueError) as cause:
            reason = redact(cause, *_forms(target.username or "", password))
            raise DeliveryFailed(f"{target.host} rejected the mail: {reason}") from None
        if refused:
            logger.warning("%s refused the recipients %s", target.host, sorted(refused))
            return f"{target.host} took the mail, but not for {', '.join(sorted(refused))}"
        return f"{target.host} took the mail"

    def _submit(
        self, connected: socket.socket, mail: EmailMessage, password: str
    ) -> dict[str, Any]:
        """Log in and send; returns the refused recipients, if others were accepted."""
        target = self._target
        context = ssl.create_default_context()
        client = _Client(connected, context if target.encryption == "tls" else None)
        try:
            client.connect(target.host, target.port)
            if target.encryption == "starttls":
                client.starttls(context=context)
            if target.username is not None:
                client.login(target.username, password)
            refused = client.send_message(mail, target.sender, target.recipients)
            # The reply is not awaited: the server has the mail, so nothing may fail any more.
            with suppress(smtplib.SMTPException, OSError):
                client.putcmd("quit")
            return refused
        finally:
            client.close()


class _Client(smtplib.SMTP):
    """Speaks over a connected socket, at once with TLS if a context is given."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext | None):
        self._connected = connected
        self._context = context
        super().__init__(local_hostname=socket.gethostname())  # the default asks the DNS

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        self._host = host  # `starttls` checks the certificate's name against it
        if self._context is None:
            return self._connected
        return self._context.wrap_socket(self._connected, server_hostname=host)


def _forms(username: str, password: str) -> tuple[str, ...]:
    """The password as it is, and as the ways to log in send it (RFC 4616)."""
    plain = (password, f"\0{username}\0{password}")
    return (password, *(b64encode(form.encode()).decode() for form in plain)) if password else ()


def build_mail(message: AlertMessage, target: EmailTarget, now: datetime) -> EmailMessage:
    """The mail of a message. Mails about one alert form a thread; a repeated one has the same id,
    by which mail programs recognise it.
    """
    subject, text = (_storable(part) for part in (build_subject(message), build_text(message)))
    mail = EmailMessage(policy=SMTP)
    mail["Subject"] = subject
    mail["From"] = target.sender
    mail["To"] = ", ".join(target.recipients)
    mail["Date"] = format_datetime(now)
    domain = target.sender.rpartition("@")[2]
    mail["Message-ID"] = f"<{message.message_id}@{domain}>"
    if message.alert_id is not None:
        thread = f"<alert-{message.payload['data']['project']}-{message.alert_id}@{domain}>"
        mail["In-Reply-To"] = mail["References"] = thread
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office replies
    mail.set_content(text)
    mail.add_alternative(_render(subject, text, message.payload["data"]["link"]), subtype="html")
    return mail


def _render(subject: str, text: str, link: str | None) -> str:
    shown = html.escape(text)
    if link is not None and link.startswith(("http://", "https://")):
        escaped = html.escape(link)
        shown = shown.replace(escaped, f'<a href="{escaped}">{escaped}</a>')
    return (
        f"<!doctype html><html><head><title>{html.escape(subject)}</title></head>"
        f'<body><pre style="white-space: pre-wrap; font-family: sans-serif">{shown}</pre>'
        "</body></html>"
    )


def _storable(text: str) -> str:
    """Replace lone surrogates, which no mail can carry."""
    return text.encode("utf-8", "replace").decode()

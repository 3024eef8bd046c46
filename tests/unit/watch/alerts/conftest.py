"""A store, a clock that is set by hand, an alert, and a certificate for localhost."""

import datetime as dt
import shutil
import ssl
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rlhf_pipeline.core.monitoring import Alert, AlertMessage, MessageKind
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts.messages import build_message

NOON = dt.datetime(2026, 1, 3, 12, tzinfo=dt.UTC)


class ManualClock:
    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> dt.datetime:
        return self.at

    def advance(self, **duration: float) -> None:
        self.at += dt.timedelta(**duration)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[Store]:
    path = tmp_path / "store.db"
    shutil.copy(migrated, path)
    with Store.open(f"sqlite:///{path}") as store:
        yield store


@pytest.fixture
def drift() -> Alert:
    return Alert(
        alert_id=7,
        rule="drift",
        subject="reward model 3",
        severity="critical",
        state="open",
        title="Drift of the error rate",
        detail="The taste of annotators changed.",
        progress="answered, not served",
        loop_action="It retrained the reward model.",
        next_step="Promote a policy.",
        value=0.31,
        threshold=0.05,
        evidence={"cause": "taste changed", "votes": 120},
        link="/drift",
        opened_at=NOON,
        seen_at=NOON,
    )


def message_about(
    alert: Alert, kind: MessageKind = "opened", target: str = "team", at: dt.datetime = NOON
) -> AlertMessage:
    return build_message(alert, kind, target, at, project="demo", web_url="http://127.0.0.1:8080/")


@pytest.fixture
def opened(drift: Alert) -> AlertMessage:
    return message_about(drift)


@pytest.fixture
def tell(store: Store, drift: Alert, clock: ManualClock) -> Callable[..., AlertMessage]:
    """Put a message about the alert into the outbox."""

    def add(
        target: str = "team", kind: MessageKind = "opened", alert: Alert = drift
    ) -> AlertMessage:
        message = message_about(alert, kind, target, clock.now())
        store.alert_messages.add([message])
        return message

    return add


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for localhost with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.2"))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "localhost.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context

"""Webhooks carry the signature that the reference library of Standard Webhooks computes."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from rlhf_pipeline.alerts.signature import parse_secrets, sign
from rlhf_pipeline.errors import ConfigurationError

OLD = "whsec_" + base64.b64encode(b"o" * 24).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 64).decode()


def test_the_signature_is_that_of_the_reference() -> None:
    at = datetime(2026, 1, 3, 12, tzinfo=UTC)
    expected = Webhook(NEW).sign("msg_1", at, '{"a":"é"}')
    assert sign(NEW, "msg_1", int(at.timestamp()), '{"a":"é"}'.encode()) == expected


def test_both_secrets_verify_while_they_are_rotated() -> None:
    now = int(datetime.now(UTC).timestamp())
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": sign(f"{NEW} {OLD}", "msg_1", now, b'{"a":1}'),
    }
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(b'{"a":1}', headers) == {"a": 1}


@pytest.mark.parametrize("secret", ["", "c2VjcmV0", "whsec_c2VjcmV0", "whsec_%%%", "whsec_é"])
def test_invalid_secrets_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_secrets(secret)
    assert not secret or secret not in str(refusal.value)

"""Signs webhooks as the Standard Webhooks specification prescribes (standardwebhooks.com)."""

import base64
import binascii
import hashlib
import hmac

from rlhf_pipeline.errors import ConfigurationError

PREFIX = "whsec_"
LEAST_BYTES = 24  # the specification's bounds
MOST_BYTES = 64


def sign(secrets: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature per secret, so that a receiver may know the new
    or the old one while they are rotated. Raises ConfigurationError for an invalid secret.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    return " ".join(
        f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
        for key in parse_secrets(secrets)
    )


def parse_secrets(secrets: str) -> list[bytes]:
    """Keys from secrets separated by blanks. The error repeats none of them.

    >>> parse_secrets("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
    [b'012345678901234567890123']
    """
    keys = []
    for secret in secrets.split():
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not secret.startswith(PREFIX) or not LEAST_BYTES <= len(key) <= MOST_BYTES:
            raise ConfigurationError(
                f"A webhook's secret must be {PREFIX} and {LEAST_BYTES} to {MOST_BYTES} random "
                f'bytes in base64. Make one: echo "{PREFIX}$(openssl rand -base64 32)".'
            )
        keys.append(key)
    if not keys:
        raise ConfigurationError("The webhook has no secret. Set secret or secret_file.")
    return keys

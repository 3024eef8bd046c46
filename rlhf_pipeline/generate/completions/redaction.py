"""Redacts API keys and URL credentials from messages."""

import html
import json
import re
from base64 import b64encode
from functools import cache
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from rlhf_pipeline.core.errors import ConfigurationError

TOLD = 300  # characters kept of what a server says
LEAST = 4  # characters; shorter secrets occur in every message and protect nothing
# Query parameters, in lower case without - and _, that select a function of the API and which its
# errors must name.
PLAIN = {
    "apiversion",
    "version",
    "v",
    "alt",
    "format",
    "region",
    "location",
    "deployment",
    "model",
    "stream",
    "timeout",
    "debug",
}


def check_address(base_url: str) -> str:
    """Return the address unchanged. Raises ConfigurationError, without any part of it, if a part
    of the password would be parsed as host or path: it would then be sent and shown.
    """
    try:
        parts = urlsplit(base_url)
        is_whole = not any("@" in part for part in (parts.path, parts.query, parts.fragment))
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ConfigurationError(
            "base_url (RLHF_BASE_URL) cannot be read: it has an @ after the host, or brackets "
            "that are not an IP address. Percent-encode user, password, path and query: / as %2F, "
            "# as "
            "%23, ? as %3F, @ as %40, [ as %5B, ] as %5D."
        )
    return base_url


@cache
def secrets_of(base_url: str) -> tuple[str, ...]:
    """The secrets of an address: user, password and query, decoded and as they are sent. Query
    parameters such as versions are not secret.

    >>> secrets_of("https://me:secret@api.example.org/v1?key=x%2Byz&api-version=2024-02-01")
    ('me:secret', 'bWU6c2VjcmV0', 'secret', 'x+yz')
    """
    parts = urlsplit(base_url)
    userinfo = unquote(parts.netloc.rpartition("@")[0])
    values = [
        value or name  # a key may be the whole query
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if re.sub("[-_]", "", name.lower()) not in PLAIN
    ]
    user, _, password = userinfo.partition(":")
    basic_auth = b64encode(f"{user}:{password}".encode()).decode() if userinfo else ""  # RFC 7617
    candidates = (userinfo, basic_auth, password or user, *values)
    return tuple(secret for secret in candidates if len(secret) >= LEAST)


def redact(message: object, *secrets: str) -> str:
    """Shorten a message of a server or client library to one line, without keys and other secrets,
    which some servers repeat: plain, or escaped as in a URL, HTML, Python or JSON.
    """
    line = " ".join(str(message).split())
    # Replaced before it is cut: half a key would no longer be found.
    forms = {
        form
        for secret in secrets
        if len(secret) >= LEAST
        for form in (
            secret,
            quote(secret, safe=""),
            html.escape(secret),
            repr(secret)[1:-1],
            json.dumps(secret)[1:-1],
        )
    }
    for form in sorted(forms, key=len, reverse=True):
        line = line.replace(form, "***")
    return line[:TOLD]


def provider_of(base_url: str) -> str:
    """Host and port of a URL, which identify the provider; without user, password, path and query.

    >>> provider_of("https://me:secret@api.openai.com/v1?key=x")
    'api.openai.com'
    >>> provider_of("http://127.0.0.1:8000/v1")
    '127.0.0.1:8000'
    """
    parts = urlsplit(base_url)
    return parts.netloc.rpartition("@")[2].lower() or base_url


def address_of(base_url: str) -> str:
    """A URL as messages show it: without user, password and query, which may be secrets.

    >>> address_of("https://me:secret@api.example.org/v1?key=x")
    'https://api.example.org/v1'
    """
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

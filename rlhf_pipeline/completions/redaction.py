"""Redacts API keys and URL credentials from messages."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit, urlunsplit

from rlhf_pipeline.errors import ConfigurationError

TOLD = 300  # characters kept of what a server says
LEAST = 4  # characters; shorter secrets occur in every message and protect nothing
# least characters of a secret of an address that is redacted anywhere in a message, not only after
# its name alone
SHORTEST_ALONE = 6
LONG = 16  # characters that no ordinary word contains
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


class WholeWordSecret(str):
    """A secret that may also be an ordinary word: it is redacted only as a whole word."""

    __slots__ = ()


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
    """The secrets of an address: user, password and query, as written, decoded and as they may be
    sent. A short one may be an ordinary word, so it counts only as written. Query parameters such
    as versions are not secret.

    >>> sorted(secrets_of("https://me:secret@api.example.org/v1?key=x%2Byz&api-version=2024-02-01"))
    ['bWU6c2VjcmV0', 'key=x%2Byz', 'key=x+yz', 'me%3Asecret@', 'me:secret@', 'secret', 'x%2Byz']
    """
    parts = urlsplit(base_url)
    userinfo = parts.netloc.rpartition("@")[0]
    user, _, password = userinfo.partition(":")
    found: list[str] = [form for form in _url_forms(password) if len(form) >= SHORTEST_ALONE]
    words = {user}
    if userinfo:
        found += [f"{form}@" for form in _url_forms(userinfo)]
        # as it is sent: RFC 7617
        found.append(b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())
    for part in parts.query.split("&"):
        name, is_named, value = part.partition("=")
        if is_named and re.sub("[-_]", "", unquote_plus(name).lower()) in PLAIN:
            continue
        if len(unquote_plus(value)) >= LEAST:
            found += [WholeWordSecret(f"{name}={form}") for form in _url_forms(value)]
        words.add(value if is_named else part)
    found += [
        WholeWordSecret(form)
        for word in words
        for form in _url_forms(word)
        if len(form) >= SHORTEST_ALONE
    ]
    return tuple(dict.fromkeys(found))


def _url_forms(written: str) -> set[str]:
    """The text as written, decoded, and percent-encoded again."""
    meant = {unquote(written), unquote_plus(written)}
    return (
        {written}
        | meant
        | {quote(one, safe="") for one in meant}
        | {quote_plus(one) for one in meant}
    )


def redact(said: object, *secrets: str) -> str:
    """Shorten a message of a server or client library to one line, without keys and other secrets,
    which some servers repeat.
    """
    line = " ".join(str(said).split())
    # Replaced before it is cut: half a key would no longer be found. White space in it is joined in
    # the line too, or was taken off.
    is_word: dict[str, bool] = {}
    for secret in secrets:
        for form in {secret, secret.strip(), " ".join(secret.split())}:
            if len(form) >= LEAST:
                for shown in _escaped_forms(form):
                    is_word[shown] = (
                        is_word.get(shown, True)
                        and isinstance(secret, WholeWordSecret)
                        and len(form) < LONG
                    )
    for shown in sorted(is_word, key=len, reverse=True):
        pattern = re.escape(shown)
        if is_word[shown]:
            # What stands before it may end in a letter that belongs to a sign: %3D is =, \n a new
            # line.
            pattern = (
                rf"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{{2}})|(?<=\\[nrt])){pattern}(?![A-Za-z0-9])"
            )
        # %2f is %2F
        line = re.sub(pattern, "***", line, flags=re.IGNORECASE if "%" in shown else 0)
    return line[:TOLD]


def _escaped_forms(form: str) -> Iterator[str]:
    """The text as it is, and as escaped in HTML, in a Python repr and in JSON."""
    yield form
    escaped = html.escape(form)
    yield from (escaped, escaped.replace("&#x27;", "&#39;"), html.escape(form, quote=False))
    # differs if the text contains both kinds of quotes
    beside_quotes = repr(form + "'\"")[1:-4]
    yield from (
        repr(form)[1:-1],
        beside_quotes,
        json.dumps(form)[1:-1],
        json.dumps(form, ensure_ascii=False)[1:-1],
    )


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

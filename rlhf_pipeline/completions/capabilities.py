"""What providers can do and how they want it said: a table, so that no backend asks who it is talking to. Knows names; asks nobody."""

from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit, urlunsplit

SHORTEST_SECRET = 6  # characters of what is taken out of a message wherever it stands


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one provider. `max_tokens` is the field that limits a completion, `seed` whether it takes one."""

    max_tokens: str = "max_tokens"
    seed: bool = True


# By host; a server of one's own (vLLM, Ollama, llama.cpp) is none of these and speaks plain OpenAI.
OWN_SERVER = Capabilities()
CAPABILITIES: dict[str, Capabilities] = {
    # max_tokens is deprecated there, and refused by its reasoning models
    "api.openai.com": Capabilities(max_tokens="max_completion_tokens"),
    "api.deepseek.com": Capabilities(seed=False),
}


def provider_of(base_url: str) -> str:
    """Host and port: whose limits and bill it is, and what a cache must tell apart. No user, password, path or question of the URL.

    >>> provider_of("https://me:secret@api.openai.com/v1?key=x"), provider_of("http://127.0.0.1:8000/v1")
    ('api.openai.com', '127.0.0.1:8000')
    """
    parts = urlsplit(base_url)
    return parts.netloc.rpartition("@")[2].lower() or base_url


def address_of(base_url: str) -> str:
    """What a message may say of an address: no user, password or question of it, each of which may be a secret.

    >>> address_of("https://me:secret@api.example.org/v1?key=x")
    'https://api.example.org/v1'
    """
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@cache
def secrets_of(base_url: str) -> tuple[str, ...]:
    """What of an address nobody is to read: user, password and question, as they stand in it, as they mean and as they may be sent.

    What is short is an ordinary word too: it counts only as it stands in the address.

    >>> sorted(secrets_of("https://me:secret@api.example.org/v1?key=x%2By"))
    ['bWU6c2VjcmV0', 'key=x%2By', 'key=x+y', 'me%3Asecret@', 'me:secret@', 'secret']
    """
    parts = urlsplit(base_url)
    userinfo = parts.netloc.rpartition("@")[0]
    user, _, password = userinfo.partition(":")
    values, found = {user, password}, set[str]()
    if userinfo:
        found |= {f"{form}@" for form in _forms(userinfo)}
        found.add(b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())  # as it is sent: RFC 7617
    for part in parts.query.split("&"):
        name, _, value = part.partition("=")
        found |= {f"{name}={form}" for form in _forms(value) if value}
        values.add(value if "=" in part else part)
    found |= {form for value in values for form in _forms(value) if len(form) >= SHORTEST_SECRET}
    return tuple(found)


def _forms(written: str) -> set[str]:
    """As it stands in an address, as it means, and as others would write it there."""
    meant = {unquote(written), unquote_plus(written)}
    return {written} | meant | {quote(one, safe="") for one in meant} | {quote_plus(one) for one in meant}


def capabilities_of(base_url: str) -> Capabilities:
    return CAPABILITIES.get(provider_of(base_url), OWN_SERVER)

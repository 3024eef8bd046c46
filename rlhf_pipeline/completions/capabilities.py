"""What providers can do and how they want it said: a table, so that no backend asks who it is
talking to. Knows names; asks nobody.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one provider. `max_tokens` is the field that limits a completion, `seed` whether it takes
    one.
    """

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
    """Host and port: whose limits and bill it is, and what a cache must tell apart. No user,
    password, path or question of the URL.

    >>> provider_of("https://me:secret@api.openai.com/v1?key=x")
    'api.openai.com'
    >>> provider_of("http://127.0.0.1:8000/v1")
    '127.0.0.1:8000'
    """
    parts = urlsplit(base_url)
    return parts.netloc.rpartition("@")[2].lower() or base_url


def address_of(base_url: str) -> str:
    """What a message may say of an address: no user, password or question of it, each of which may
    be a secret.

    >>> address_of("https://me:secret@api.example.org/v1?key=x")
    'https://api.example.org/v1'
    """
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def capabilities_of(base_url: str) -> Capabilities:
    return CAPABILITIES.get(provider_of(base_url), OWN_SERVER)

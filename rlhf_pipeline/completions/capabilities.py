"""What providers can do and how they want it said: a table, so that no backend asks who it is talking to. Knows names; asks nobody."""

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one provider. `max_tokens` is the field that limits a completion; `usage_in_stream` whether it takes `stream_options`."""

    max_tokens: str = "max_tokens"
    seed: bool = True
    usage_in_stream: bool = True
    keys_at: str = ""


# By host; a server of one's own (vLLM, Ollama, llama.cpp) is none of these and speaks plain OpenAI.
OWN_SERVER = Capabilities()
CAPABILITIES: dict[str, Capabilities] = {
    # max_tokens is deprecated there, and refused by its reasoning models
    "api.openai.com": Capabilities(max_tokens="max_completion_tokens", keys_at="platform.openai.com"),
    "api.deepseek.com": Capabilities(seed=False, keys_at="platform.deepseek.com"),
    "api.together.xyz": Capabilities(keys_at="api.together.xyz"),
    "api.anthropic.com": Capabilities(seed=False, keys_at="console.anthropic.com"),
}


def provider_of(base_url: str) -> str:
    """Host and port: whose limits and bill it is, and what a cache must tell apart. No user, password, path or question of the URL.

    >>> provider_of("https://me:secret@api.openai.com/v1?key=x"), provider_of("http://127.0.0.1:8000/v1")
    ('api.openai.com', '127.0.0.1:8000')
    """
    parts = urlsplit(base_url)
    return parts.netloc.rpartition("@")[2].lower() or base_url


def capabilities_of(base_url: str) -> Capabilities:
    return CAPABILITIES.get(provider_of(base_url), OWN_SERVER)

"""Completes by any server with OpenAI's chat completions API, through OpenAI's client."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.conversations import build_chat
from rlhf_pipeline.core.secret_files import provider_key
from rlhf_pipeline.generate.completions.answers import read_message
from rlhf_pipeline.generate.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    OnText,
    Reply,
)
from rlhf_pipeline.generate.completions.http_backend import HTTPBackend, find_error
from rlhf_pipeline.generate.completions.redaction import provider_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one provider accepts: `max_tokens` is the field that limits a completion, `seed` whether
    it takes a seed.
    """

    max_tokens: str = "max_tokens"
    seed: bool = True


PATH = "/chat/completions"
# Of servers that use other words than OpenAI.
REASONS = {"eos": "stop", "end_turn": "stop", "max_tokens": "length"}

# By host; other servers (vLLM, Ollama, llama.cpp) follow OpenAI's API.
OWN_SERVER = Capabilities()
CAPABILITIES: dict[str, Capabilities] = {
    # max_tokens is deprecated there and refused by reasoning models
    "api.openai.com": Capabilities(max_tokens="max_completion_tokens"),
    "api.deepseek.com": Capabilities(seed=False),
}


def capabilities_of(base_url: str) -> Capabilities:
    return CAPABILITIES.get(provider_of(base_url), OWN_SERVER)


class OpenAICompatibleBackend(HTTPBackend["AsyncOpenAI"]):
    """Completes by `POST {base_url}/chat/completions`: OpenAI, DeepSeek, Together, vLLM, Ollama,
    llama.cpp.
    """

    name = "openai_compatible"
    sdk = "openai"
    counts = ("prompt_tokens", "completion_tokens")

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        return cls(
            settings.api_model,
            settings.base_url,
            provider_key(settings),
            timeout_s=timeout_s,
            parameters=settings.request_parameters.get(settings.api_model),
        )

    def _make_client(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        return AsyncOpenAI(**self._client_options())

    def _build_body(self, request: CompletionRequest) -> dict[str, Any]:
        can = capabilities_of(self.base_url)
        system = [] if request.system is None else [{"role": "system", "content": request.system}]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, *build_chat(request.prompt)],
            "temperature": request.temperature,
            "top_p": request.top_p,
            can.max_tokens: request.max_tokens,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        return body | ({"seed": request.seed} if can.seed else {})

    async def _fetch_whole(self, request: CompletionRequest) -> Reply:
        import httpx2

        # `chat.completions.create` costs a third more CPU: it looks for types in each message,
        # though it changes and validates nothing.
        body = self._prepare(self._build_body(request))
        answer = await self.open_client().post(PATH, cast_to=httpx2.Response, body=body)
        return self._parse_response(answer.status_code, json.loads(answer.content))

    def _parse_response(self, status: int, body: dict[str, Any]) -> Reply:
        """The Reply to a whole answer. Raises an error of `error_types` for a malformed one."""
        if status >= 400:
            return self._build_refusal(body, status)
        if not body.get("choices") and find_error(body):  # behind a status of 200
            return self._build_refusal(body)
        [choice, *_] = body["choices"]
        message, reason = choice["message"], choice.get("finish_reason") or "stop"
        return self._read_choice(message, reason, choice.get("error"), body.get("usage"), status)

    def _read_choice(
        self,
        message: Mapping[str, Any],
        reason: str | None,
        error: object,
        usage: object,
        status: int = 200,
    ) -> Reply:
        """The Reply to a message; one that ends in an error keeps its part in the ledger."""
        answer = read_message(message)
        if error or reason == "error":
            body = {"error": error or "it ended its answer with an error"}
            return self._build_refusal(body, pieces=[answer.text] if answer.text else ())
        reason = reason and REASONS.get(reason.lower(), reason.lower())
        return self._build_reply(answer, message.get("refusal"), reason, usage, status)

    async def _stream(
        self, request: CompletionRequest, collect: OnText, pieces: Sequence[str]
    ) -> Reply:
        from openai import AsyncStream

        body = self._build_body(request)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        reason, refusal, usage, error, thoughts = None, "", None, None, ""
        calls: dict[int, dict[str, str]] = {}
        events = await self.open_client().post(
            PATH,
            cast_to=dict,
            body=self._prepare(body),
            stream=True,
            stream_cls=AsyncStream[dict[str, Any]],
        )
        async for event in events:
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                refusal += delta.get("refusal") or ""
                reason = choice.get("finish_reason") or reason
                error = choice.get("error") or error
                answer = read_message({**delta, "tool_calls": None, "function_call": None})
                thoughts += answer.reasoning or ""
                collect(answer.text)
                for call in delta.get("tool_calls") or ():
                    parts = calls.setdefault(call.get("index", 0), {"name": "", "arguments": ""})
                    for name, piece in call["function"].items():
                        parts[name] = parts.get(name, "") + (piece or "")
        message = {
            "content": "".join(pieces),
            "refusal": refusal,
            "reasoning": thoughts,
            "tool_calls": list(calls.values()),
        }
        return self._read_choice(message, reason, error, usage)

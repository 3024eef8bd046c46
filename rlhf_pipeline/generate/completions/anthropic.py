"""Completes by Anthropic's messages API."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.conversations import build_chat
from rlhf_pipeline.core.secret_files import provider_key
from rlhf_pipeline.generate.completions.answers import ModelAnswer, join_parts
from rlhf_pipeline.generate.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    OnText,
    Reply,
)
from rlhf_pipeline.generate.completions.http_backend import HTTPBackend, find_error

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

ADDRESS = "https://api.anthropic.com/v1"
ARGUMENTS = ("model", "messages", "max_tokens")  # that the SDK requires
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
}


class AnthropicBackend(HTTPBackend["AsyncAnthropic"]):
    """Completes by `POST {base_url}/messages`. The API has no seeds: samples differ by chance, and
    each is kept under its own index.

    top_p is sent only if it is below 1; newer models refuse it together with a temperature, which
    the error of the row reports.
    """

    name = "anthropic"
    sdk = "anthropic"
    counts = ("input_tokens", "output_tokens")

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        """Anthropic's own address is used unless the settings change the default base URL."""
        is_named = settings.base_url != Settings.model_fields["base_url"].default
        address = settings.base_url if is_named else ADDRESS
        return cls(
            settings.api_model,
            address,
            provider_key(settings),
            timeout_s=timeout_s,
            parameters=settings.request_parameters.get(settings.api_model),
        )

    def _make_client(self) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic

        options = self._client_options()
        # The SDK itself adds the version to the address.
        address = options.pop("base_url").rstrip("/").removesuffix("/v1")
        return AsyncAnthropic(base_url=address, **options)

    def _build_body(self, request: CompletionRequest) -> dict[str, Any]:
        # calls of tools need their definitions there, which a prompt lacks
        chat = build_chat(request.prompt, takes_tools=False)
        system = [turn["content"] for turn in chat if turn["role"] == "system"]
        if request.system is not None:
            system = [request.system, *system]
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": [turn for turn in chat if turn["role"] != "system"],
            "extra_body": {"temperature": request.temperature},
        }
        if request.top_p < 1:
            body["extra_body"]["top_p"] = request.top_p
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        if system:
            body["system"] = "\n\n".join(system)
        return body

    async def _fetch_whole(self, request: CompletionRequest) -> Reply:
        # The raw answer: the client's models are not validated, and cost a third of the call.
        messages = self.open_client().messages.with_raw_response
        answer = await messages.create(**self._build_arguments(request))
        body = json.loads(await answer.read())
        if find_error(body):  # behind a status of 200
            return self._build_refusal(body)
        answer = join_parts(body["content"])
        return self._build_message(answer, body.get("stop_reason"), body.get("usage"))

    def _build_arguments(self, request: CompletionRequest) -> dict[str, Any]:
        body = self._build_body(request)
        body = self._prepare(body | body.pop("extra_body"))
        arguments = {name: body.pop(name) for name in ARGUMENTS if name in body}
        return arguments | {"extra_body": body}

    def _build_message(self, answer: ModelAnswer, stop_reason: str | None, usage: object) -> Reply:
        is_refusal = stop_reason == "refusal"
        reason = None if stop_reason is None else REASONS.get(stop_reason, "stop")
        refusal = answer.text or "without a word" if is_refusal else None
        return self._build_reply(answer, refusal, reason, usage, 200)

    async def _stream(
        self, request: CompletionRequest, collect: OnText, pieces: Sequence[str]
    ) -> Reply:
        reason, usage, blocks = None, dict[str, Any](), list[dict[str, Any]]()
        messages = self.open_client().messages
        async for event in await messages.create(**self._build_arguments(request), stream=True):
            if event.type == "message_start":
                usage |= event.message.usage.model_dump()
            elif event.type == "message_delta":
                usage |= event.usage.model_dump(exclude_none=True)
                reason = event.delta.stop_reason or reason
            elif event.type == "content_block_start":
                blocks.append(event.content_block.model_dump() | {"input": ""})
            elif event.type == "content_block_delta":
                delta = event.delta
                if delta.type == "text_delta":
                    collect(delta.text)
                elif delta.type == "thinking_delta":
                    blocks[-1]["thinking"] += delta.thinking
                elif delta.type == "input_json_delta":
                    blocks[-1]["input"] += delta.partial_json
        others = [block for block in blocks if block["type"] != "text"]
        answer = join_parts([{"type": "text", "text": "".join(pieces)}, *others])
        return self._build_message(answer, reason, usage)

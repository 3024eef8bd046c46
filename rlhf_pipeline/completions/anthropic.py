"""Completes by Anthropic's messages API."""

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from rlhf_pipeline.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    OnText,
    Reply,
)
from rlhf_pipeline.completions.http_backend import HTTPBackend, find_error
from rlhf_pipeline.config import Settings
from rlhf_pipeline.secret_files import provider_key

if TYPE_CHECKING:
    import httpx2

ADDRESS = "https://api.anthropic.com/v1"
VERSION = "2023-06-01"  # of the API: https://docs.anthropic.com/en/api/versioning
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
}


class AnthropicBackend(HTTPBackend):
    """Completes by `POST {base_url}/messages`. The API has no seeds: samples differ by chance, and
    each is kept under its own index.

    top_p is sent only if it is below 1; newer models refuse it together with a temperature, which
    the error of the row reports.
    """

    name = "anthropic"
    counts = ("input_tokens", "output_tokens")
    _open: "tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None" = None

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        """Anthropic's own address is used unless the settings change the default base URL."""
        is_named = settings.base_url != Settings.model_fields["base_url"].default
        address = settings.base_url if is_named else ADDRESS
        return cls(settings.api_model, address, provider_key(settings), timeout_s=timeout_s)

    async def close(self) -> None:
        if self._open is not None:
            client, self._open = self._open[1], None
            await client.aclose()

    def _get_client(self) -> "httpx2.AsyncClient":
        """The client of this event loop: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            from httpx2 import AsyncClient

            headers = {"x-api-key": self._key, "anthropic-version": VERSION}
            self._open = (loop, AsyncClient(headers=headers, **self._client_options()))
        return self._open[1]

    def _build_body(self, request: CompletionRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": "user", "content": request.prompt}],
            "temperature": request.temperature,
        }
        if request.top_p < 1:
            body["top_p"] = request.top_p
        if request.system is not None:
            body["system"] = request.system
        return body

    @property
    def _messages_url(self) -> str:
        return f"{self._public_address.rstrip('/')}/messages"

    async def _fetch_whole(self, request: CompletionRequest) -> Reply:
        answer = await self._get_client().post(self._messages_url, json=self._build_body(request))
        if answer.status_code >= 300:
            return self._read_refusal(answer)
        found = json.loads(answer.content)
        if find_error(found):  # behind a status of 200
            return self._build_refusal(found)
        text = "".join(block["text"] for block in found["content"] if block["type"] == "text")
        return self._build_message(text, found.get("stop_reason"), found.get("usage"))

    def _read_refusal(self, answer: "httpx2.Response") -> Reply:
        try:
            found = answer.json()
        except ValueError:  # such as the page of a proxy
            found = answer.text
        return self._build_refusal(found, answer.status_code, answer.headers)

    def _build_message(self, text: str, stop_reason: str | None, usage: object) -> Reply:
        is_refusal = stop_reason == "refusal"
        reason = None if stop_reason is None else REASONS.get(stop_reason, "stop")
        refusal = text or "without a word" if is_refusal else None
        return self._build_reply(text, refusal, reason, usage, 200)

    async def _stream(
        self, request: CompletionRequest, collect: OnText, pieces: Sequence[str]
    ) -> Reply:
        reason, usage = None, dict[str, Any]()
        body = self._build_body(request) | {"stream": True}
        async with self._get_client().stream("POST", self._messages_url, json=body) as answer:
            if answer.status_code >= 300:
                await answer.aread()
                return self._read_refusal(answer)
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                event = json.loads(line.removeprefix("data:"))
                if find_error(event):  # within a stream whose status was 200
                    return self._build_refusal(event, pieces=pieces)
                usage |= event.get("message", {}).get("usage") or event.get("usage") or {}
                delta = event.get("delta", {})
                reason = delta.get("stop_reason") or reason
                collect(delta["text"] if delta.get("type") == "text_delta" else "")
        return self._build_message("".join(pieces), reason, usage)

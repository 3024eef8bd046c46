"""Completes by Anthropic's messages API."""

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rlhf_pipeline.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    OnText,
    Reply,
)
from rlhf_pipeline.completions.faults import (
    fault,
    status_of,
)
from rlhf_pipeline.completions.http_backend import HTTPBackend
from rlhf_pipeline.completions.redaction import (
    redact,
)
from rlhf_pipeline.completions.responses import (
    TextCollector,
    UnreadableResponse,
    error_billing_fields,
    find_error,
    get_object,
    get_text,
    open_client,
    parse_events,
    partial_reply_fields,
    read_remaining,
)
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
    "refusal": "refusal",
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
            headers = {
                "x-api-key": self._key,
                "anthropic-version": VERSION,
                "content-type": "application/json",
            }
            self._open = (loop, open_client(self.base_url, self.timeout_s, headers))
        return self._open[1]

    def _encode_request(self, request: CompletionRequest, *, stream: bool) -> bytes:
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
        return json.dumps(body | ({"stream": True} if stream else {})).encode()

    @property
    def _messages_url(self) -> str:
        return f"{self._public_address.rstrip('/')}/messages"

    async def _fetch_whole(self, request: CompletionRequest) -> Reply:
        answer = await self._get_client().post(
            self._messages_url, content=self._encode_request(request, stream=False)
        )
        if answer.status_code >= 300:
            return self._parse_refusal(answer.status_code, answer.headers, answer.content)
        return self._parse_whole(answer.content, answer.status_code, answer.headers)

    def _parse_message(
        self, found: dict[str, Any], status: int, headers: Mapping[str, str]
    ) -> Reply:
        if error := find_error(found):  # behind a status of 200
            billing = error_billing_fields(found.get("usage"), self.counts)
            return self._build_failure(status_of(error), headers, error, **billing)
        blocks = found.get("content")
        if not isinstance(blocks, list) or any(not isinstance(block, dict) for block in blocks):
            return fault(
                "garbled",
                f"{self._public_address} sent no message but {redact(found, *self._secrets)!r}",
                status=status,
            )
        self.has_answered = True
        text = "".join(
            str(block.get("text") or "") for block in blocks if block.get("type") == "text"
        )
        return self._build_message(
            text, found.get("stop_reason"), found.get("usage"), status, headers
        )

    def _build_message(
        self, text: str, stop_reason: object, usage: object, status: int, headers: Mapping[str, str]
    ) -> Reply:
        reason, refusal = REASONS.get(str(stop_reason), "stop"), None
        if reason == "refusal":
            refusal = redact(text, *self._secrets) or "without a word"
        return self._build_reply(text, refusal, reason, usage, status, headers)

    async def _stream(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
        reason: object = None
        usage: dict[str, Any] = {}
        has_begun = is_counted = False
        collector = TextCollector(on_text, partial)
        async with self._get_client().stream(
            "POST", self._messages_url, content=self._encode_request(request, stream=True)
        ) as answer:
            if answer.status_code >= 300:
                return self._parse_refusal(
                    answer.status_code, answer.headers, await read_remaining(answer)
                )
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                return self._parse_whole(await answer.aread(), answer.status_code, answer.headers)
            async for event in parse_events(answer.aiter_bytes(), self._secrets):
                if error := find_error(event):  # within a stream whose status was 200
                    # The count at the start of a stream covers almost none of its text: only a
                    # newer count is one.
                    newest = event.get("usage")
                    last = (
                        usage | newest
                        if isinstance(newest, dict) and newest
                        else usage
                        if is_counted
                        else {}
                    )
                    so_far = (
                        partial_reply_fields(partial, last, self.counts)
                        if has_begun
                        else error_billing_fields(newest, self.counts)
                    )
                    return self._build_failure(status_of(error), answer.headers, error, **so_far)
                has_begun, is_counted = True, bool(get_object(event, "usage"))
                usage |= get_object(get_object(event, "message"), "usage") or get_object(
                    event, "usage"
                )
                delta = get_object(event, "delta")
                if delta.get("type") == "text_delta":
                    if "text" not in delta:
                        raise UnreadableResponse("garbled", "streamed a text event without text")
                    collector(get_text(delta, "text"))
                reason = delta.get("stop_reason") or reason
        text = "".join(partial)
        if reason is None:
            return fault(
                "cut",
                f"{self._public_address} ended its stream without a stop reason",
                partial=text or None,
            )
        self.has_answered = True
        return self._build_message(text, reason, usage, answer.status_code, answer.headers)

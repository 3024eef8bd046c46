"""Completes by Anthropic's messages API."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, SecretStr

from rlhf_pipeline.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    OnText,
    Reply,
)
from rlhf_pipeline.completions.faults import (
    fault,
    provider_fault,
    seconds_until_quota_resets,
    status_of,
)
from rlhf_pipeline.completions.keys import clean_key, provider_key
from rlhf_pipeline.completions.redaction import (
    address_of,
    check_address,
    provider_of,
    redact,
    secrets_of,
)
from rlhf_pipeline.completions.responses import (
    TextCollector,
    UnreadableResponse,
    billing_of,
    build_reply,
    error_billing_fields,
    find_error,
    get_object,
    get_text,
    open_client,
    parse_answer,
    parse_count,
    parse_events,
    partial_reply_fields,
    read_remaining,
    transport_errors,
    transport_fault,
)
from rlhf_pipeline.config import Settings
from rlhf_pipeline.plugins import NoParams
from rlhf_pipeline.records import utc_now

if TYPE_CHECKING:
    import httpx2

ADDRESS = "https://api.anthropic.com/v1"
VERSION = "2023-06-01"  # of the API: https://docs.anthropic.com/en/api/versioning
COUNTS = ("input_tokens", "output_tokens")
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "refusal": "refusal",
}


class AnthropicBackend:
    """Completes by `POST {base_url}/messages`. The API has no seeds: samples differ by chance, and
    each is kept under its own index.

    top_p is sent only if it is below 1; newer models refuse it together with a temperature, which
    the error of the row reports.
    """

    name = "anthropic"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(
        self,
        model: str,
        base_url: str = ADDRESS,
        api_key: SecretStr | None = None,
        *,
        model_version: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.model = model
        self.base_url = check_address(base_url)
        self.api_key = clean_key(api_key)
        self.model_version = model_version or model
        self.timeout_s = timeout_s
        self.has_answered = False
        self._open: tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        """Anthropic's own address is used unless the settings change the default base URL."""
        is_named = settings.base_url != Settings.model_fields["base_url"].default
        address = settings.base_url if is_named else ADDRESS
        return cls(settings.api_model, address, provider_key(settings), timeout_s=timeout_s)

    def __repr__(self) -> str:
        return f"AnthropicBackend({self.model!r}, {provider_of(self.base_url)!r})"

    @property
    def provider(self) -> str:
        return provider_of(self.base_url)

    @property
    def _public_address(self) -> str:
        return address_of(self.base_url)

    async def call(self, request: CompletionRequest, on_text: OnText | None = None) -> Reply:
        errors: tuple[type[Exception], ...] = (ValueError, *transport_errors())
        partial: list[str] = []
        try:
            return await (
                self._fetch_whole(request)
                if on_text is None
                else self._stream(request, on_text, partial)
            )
        except errors as cause:
            return transport_fault(
                cause,
                self._public_address,
                self._secrets,
                partial="".join(partial) if partial else None,
            )

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
        found = parse_answer(
            answer.content,
            answer.headers.get("content-type", ""),
            self._public_address,
            self._secrets,
        )
        return (
            found
            if isinstance(found, Reply)
            else self._parse_message(found, answer.status_code, answer.headers)
        )

    def _parse_message(
        self, found: dict[str, Any], status: int, headers: Mapping[str, str]
    ) -> Reply:
        if error := find_error(found):  # behind a status of 200
            return self._build_failure(
                status_of(error), headers, error, **error_billing_fields(found.get("usage"), COUNTS)
            )
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
        return self._build_reply(
            text, found.get("stop_reason"), found.get("usage"), status, headers
        )

    def _build_reply(
        self, text: str, stop_reason: object, usage: object, status: int, headers: Mapping[str, str]
    ) -> Reply:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (parse_count(counted.get(name)) for name in COUNTS)
        reason = REASONS.get(str(stop_reason), "stop")
        if reason == "refusal":
            said = redact(text, *self._secrets) or "without a word"
            reply = fault(
                "refusal",
                f"{self.model} refused: {said}",
                n_prompt_tokens=n_prompt,
                n_tokens=n,
                status=status,
                billing=billing_of(usage),
            )
        else:
            reply = build_reply(
                text, reason, n_prompt, n, status, self.model, is_told=bool(counted)
            )
        wait_s = seconds_until_quota_resets(headers, utc_now())
        return reply if wait_s is None else replace(reply, wait_s=wait_s)

    async def _stream(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
        """Read the stream; `partial` keeps the received pieces even if an error ends it. A stream
        without a stop reason is incomplete.
        """
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
            kind = answer.headers.get("content-type", "")
            if "text/event-stream" not in kind:
                found = parse_answer(
                    await answer.aread(), kind, self._public_address, self._secrets
                )
                return (
                    found
                    if isinstance(found, Reply)
                    else self._parse_message(found, answer.status_code, answer.headers)
                )
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
                        partial_reply_fields(partial, last, COUNTS)
                        if has_begun
                        else error_billing_fields(newest, COUNTS)
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
        return self._build_reply(text, reason, usage, answer.status_code, answer.headers)

    def _parse_refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> Reply:
        found = parse_answer(content, "", self._public_address, self._secrets)
        return self._build_failure(
            status, headers, find_error(found) or {"message": content.decode("utf-8", "replace")}
        )

    def _build_failure(
        self, status: int, headers: Mapping[str, str], error: Mapping[str, Any], **begun: Any
    ) -> Reply:
        return provider_fault(
            self.model, self._public_address, status, headers, error, self._secrets, **begun
        )

    @property
    def _key(self) -> str:
        return self.api_key.get_secret_value() if self.api_key else ""

    @property
    def _secrets(self) -> Sequence[str]:
        return (self._key, *secrets_of(self.base_url))

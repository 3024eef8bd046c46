"""The backend for Anthropic's messages API, spoken natively. Knows httpx2; knows no frame and no
cache.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from rlhf_pipeline.completions.base import CompletionRequest, CompletionResult, OnText, Reply
from rlhf_pipeline.completions.capabilities import address_of, provider_of
from rlhf_pipeline.completions.faults import exhausted_for, fault, refused_by, status_of
from rlhf_pipeline.completions.keys import one_key
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.results import answers
from rlhf_pipeline.completions.secrecy import one_address, secrets_of, told
from rlhf_pipeline.completions.wire import (
    Heard,
    Unreadable,
    begun,
    billed_as,
    billing_of,
    completed,
    count_of,
    error_of,
    events,
    lost,
    opened,
    parsed,
    part_of,
    rest_of,
    text_of,
    transport_errors,
)
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

    top_p is sent where it is below 1 only: newer models refuse it beside a temperature, and say so
    in the row's error.
    """

    name = "anthropic"

    def __init__(
        self,
        model: str,
        base_url: str = ADDRESS,
        api_key: SecretStr | None = None,
        *,
        model_version: str | None = None,
        max_retries: int = 5,
        timeout_s: float = 60.0,
        concurrency: int = 16,
    ) -> None:
        self.model = model
        self.base_url = one_address(base_url)
        self.api_key = one_key(api_key)
        self.model_version = model_version or model
        self.max_retries = max_retries
        self.timeout_s = timeout_s
        self.concurrency = concurrency
        self.has_answered = False
        self._open: tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None = None

    def __repr__(self) -> str:
        return f"AnthropicBackend({self.model!r}, {provider_of(self.base_url)!r})"

    @property
    def provider(self) -> str:
        return provider_of(self.base_url)

    @property
    def _where(self) -> str:
        return address_of(self.base_url)

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        return answers(
            self,
            requests,
            CallParams(max_attempts=self.max_retries + 1, concurrency=self.concurrency),
        )

    async def call(self, request: CompletionRequest, on_text: OnText | None = None) -> Reply:
        errors: tuple[type[Exception], ...] = (ValueError, *transport_errors())
        partial: list[str] = []
        try:
            return await (
                self._whole(request)
                if on_text is None
                else self._streamed(request, on_text, partial)
            )
        except errors as cause:
            return lost(
                cause, self._where, self._secrets, partial="".join(partial) if partial else None
            )

    async def close(self) -> None:
        if self._open is not None:
            client, self._open = self._open[1], None
            await client.aclose()

    def _client(self) -> "httpx2.AsyncClient":
        """Of this event loop: connections belong to the loop they were made in."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            headers = {
                "x-api-key": self._key,
                "anthropic-version": VERSION,
                "content-type": "application/json",
            }
            self._open = (loop, opened(self.base_url, self.timeout_s, headers))
        return self._open[1]

    def _content(self, request: CompletionRequest, *, stream: bool) -> bytes:
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
    def _address(self) -> str:
        return f"{self._where.rstrip('/')}/messages"

    async def _whole(self, request: CompletionRequest) -> Reply:
        answer = await self._client().post(
            self._address, content=self._content(request, stream=False)
        )
        if answer.status_code >= 300:
            return self._refused(answer.status_code, answer.headers, answer.content)
        found = parsed(
            answer.content, answer.headers.get("content-type", ""), self._where, self._secrets
        )
        return (
            found
            if isinstance(found, Reply)
            else self._read(found, answer.status_code, answer.headers)
        )

    def _read(self, found: dict[str, Any], status: int, headers: Mapping[str, str]) -> Reply:
        if error := error_of(found):  # behind a status of 200
            return self._failed(
                status_of(error), headers, error, **billed_as(found.get("usage"), COUNTS)
            )
        blocks = found.get("content")
        if not isinstance(blocks, list) or any(not isinstance(block, dict) for block in blocks):
            return fault(
                "garbled",
                f"{self._where} did not send a message but {told(found, *self._secrets)!r}",
                status=status,
            )
        self.has_answered = True
        text = "".join(
            str(block.get("text") or "") for block in blocks if block.get("type") == "text"
        )
        return self._judged(text, found.get("stop_reason"), found.get("usage"), status, headers)

    def _judged(
        self, text: str, stop_reason: object, usage: object, status: int, headers: Mapping[str, str]
    ) -> Reply:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (count_of(counted.get(name)) for name in COUNTS)
        reason = REASONS.get(str(stop_reason), "stop")
        if reason == "refusal":
            said = told(text, *self._secrets) or "without a word"
            reply = fault(
                "refusal",
                f"{self.model} refused: {said}",
                n_prompt_tokens=n_prompt,
                n_tokens=n,
                status=status,
                billing=billing_of(usage),
            )
        else:
            reply = completed(text, reason, n_prompt, n, status, self.model, is_told=bool(counted))
        wait_s = exhausted_for(headers, utc_now())
        return reply if wait_s is None else replace(reply, wait_s=wait_s)

    async def _streamed(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
        """Piece by piece; `partial` holds what came, also when this ends in an error. Nothing
        counts without a stop reason.
        """
        reason: object = None
        usage: dict[str, Any] = {}
        has_begun = is_counted = False
        heard = Heard(on_text, partial)
        async with self._client().stream(
            "POST", self._address, content=self._content(request, stream=True)
        ) as answer:
            if answer.status_code >= 300:
                return self._refused(answer.status_code, answer.headers, await rest_of(answer))
            kind = answer.headers.get("content-type", "")
            if "text/event-stream" not in kind:
                found = parsed(await answer.aread(), kind, self._where, self._secrets)
                return (
                    found
                    if isinstance(found, Reply)
                    else self._read(found, answer.status_code, answer.headers)
                )
            async for event in events(answer.aiter_bytes(), self._secrets):
                if error := error_of(event):  # within a stream whose status was 200
                    # What a stream begins with counts next to nothing of its text: only a newer
                    # count is one.
                    newest = event.get("usage")
                    last = (
                        usage | newest
                        if isinstance(newest, dict) and newest
                        else usage
                        if is_counted
                        else {}
                    )
                    so_far = (
                        begun(partial, last, COUNTS) if has_begun else billed_as(newest, COUNTS)
                    )
                    return self._failed(status_of(error), answer.headers, error, **so_far)
                has_begun, is_counted = True, bool(part_of(event, "usage"))
                usage |= part_of(part_of(event, "message"), "usage") or part_of(event, "usage")
                delta = part_of(event, "delta")
                if delta.get("type") == "text_delta":
                    if "text" not in delta:
                        raise Unreadable("garbled", "streamed a piece of text without text")
                    heard(text_of(delta, "text"))
                reason = delta.get("stop_reason") or reason
        text = "".join(partial)
        if reason is None:
            return fault(
                "cut", f"{self._where} ended its stream without a stop reason", partial=text or None
            )
        self.has_answered = True
        return self._judged(text, reason, usage, answer.status_code, answer.headers)

    def _refused(self, status: int, headers: Mapping[str, str], content: bytes) -> Reply:
        found = parsed(content, "", self._where, self._secrets)
        return self._failed(
            status, headers, error_of(found) or {"message": content.decode("utf-8", "replace")}
        )

    def _failed(
        self, status: int, headers: Mapping[str, str], error: Mapping[str, Any], **begun: Any
    ) -> Reply:
        return refused_by(self.model, self._where, status, headers, error, self._secrets, **begun)

    @property
    def _key(self) -> str:
        return self.api_key.get_secret_value() if self.api_key else ""

    @property
    def _secrets(self) -> Sequence[str]:
        return (self._key, *secrets_of(self.base_url))

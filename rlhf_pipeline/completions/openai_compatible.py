"""The backend for any server that speaks OpenAI's chat completions. Knows the `openai` client;
knows no frame and no cache.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from rlhf_pipeline.completions.base import CompletionRequest, CompletionResult, OnText, Reply
from rlhf_pipeline.completions.capabilities import address_of, capabilities_of, provider_of
from rlhf_pipeline.completions.faults import exhausted_for, fault, refused_by, status_of
from rlhf_pipeline.completions.keys import one_key
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.openai_batches import OpenAIBatches
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
    from openai import AsyncOpenAI

COUNTS = ("prompt_tokens", "completion_tokens")


class OpenAICompatibleBackend:
    """Completes by `POST {base_url}/chat/completions`: OpenAI, DeepSeek, Together, vLLM, Ollama,
    llama.cpp.

    One call is one request: the client below repeats nothing. `complete` repeats what may pass up
    to `max_retries` times, waiting as long as the server says, else at random up to 0.5 s,
    doubling. What fails after that, is refused or comes without text is the error of its own row.
    Credentials refused, an unknown model or address, and a server that never answered make the
    backend unavailable. The key stands in no error and no `repr`.
    """

    name = "openai_compatible"

    def __init__(
        self,
        model: str,
        base_url: str,
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
        self._open: tuple[asyncio.AbstractEventLoop, AsyncOpenAI] | None = None

    def __repr__(self) -> str:
        return f"OpenAICompatibleBackend({self.model!r}, {provider_of(self.base_url)!r})"

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
        partial: list[str] = []
        try:
            return await (
                self._whole(request)
                if on_text is None
                else self._streamed(request, on_text, partial)
            )
        except self.errors() as cause:
            return await self.told(cause, partial)

    def errors(self) -> tuple[type[Exception], ...]:
        """What asking this provider can end in; `told` says what it comes to."""
        from openai import APIError

        return (APIError, ValueError, *transport_errors())

    async def told(self, cause: Exception, partial: Sequence[str] = ()) -> Reply:
        from openai import APIStatusError

        if isinstance(cause, APIStatusError):
            return self._refused(
                cause.status_code, cause.response.headers, await rest_of(cause.response)
            )
        return lost(
            cause.__cause__ or cause,
            self._where,
            self._secrets,
            partial="".join(partial) if partial else None,
        )

    def batches(self) -> OpenAIBatches:
        """The Batch API of this provider, where it has one; within the event loop that asks."""
        return OpenAIBatches(self._client(), self._body, self._of_batch, self._where, self._secrets)

    def _of_batch(self, status: int, body: Mapping[str, Any]) -> Reply:
        return (
            self._read(dict(body), status, {})
            if status < 400
            else self._refused(status, {}, json.dumps(body).encode())
        )

    async def close(self) -> None:
        if self._open is not None:
            client, self._open = self._open[1], None
            await client.close()

    def _client(self) -> "AsyncOpenAI":
        """Of this event loop: connections belong to the loop they were made in."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            from openai import AsyncOpenAI

            # Servers without authentication take any key; the client insists on one.
            key = self.api_key.get_secret_value() if self.api_key else "none"
            transport = opened(self.base_url, self.timeout_s)
            client = AsyncOpenAI(
                base_url=self._where,
                api_key=key,
                max_retries=0,
                timeout=self.timeout_s,
                http_client=transport,
            )
            self._open = (loop, client)
        return self._open[1]

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        can = capabilities_of(self.base_url)
        system = [] if request.system is None else [{"role": "system", "content": request.system}]
        body = {
            "model": self.model,
            "messages": [*system, {"role": "user", "content": request.prompt}],
            "temperature": request.temperature,
            "top_p": request.top_p,
            can.max_tokens: request.max_tokens,
        }
        return body | ({"seed": request.seed} if can.seed else {})

    async def _whole(self, request: CompletionRequest) -> Reply:
        import httpx2

        # The bytes themselves: the client does not check what it makes models of, and making them
        # costs a third of the call.
        answer = await self._client().post(
            "/chat/completions", cast_to=httpx2.Response, body=self._body(request)
        )
        found = parsed(
            answer.content, answer.headers.get("content-type", ""), self._where, self._secrets
        )
        if isinstance(found, Reply):
            return found
        return self._read(found, answer.status_code, answer.headers)

    def _read(self, found: dict[str, Any], status: int, headers: Mapping[str, str]) -> Reply:
        if not found.get("choices") and (error := error_of(found)):  # behind a status of 200
            return self._failed(
                status_of(error), headers, error, **billed_as(found.get("usage"), COUNTS)
            )
        choices = found.get("choices")
        if not isinstance(choices, list) or any(not isinstance(choice, dict) for choice in choices):
            return fault(
                "garbled",
                f"{self._where} did not send a chat completion but {told(found, *self._secrets)!r}",
                status=status,
            )
        self.has_answered = True
        usage = found.get("usage")
        if not choices:
            return self._empty(f"{self.model} sent no choice.", usage, status)
        message, reason = choices[0].get("message"), str(choices[0].get("finish_reason") or "stop")
        message = message if isinstance(message, dict) else {}
        return self._judged(
            message.get("content"), message.get("refusal"), reason, usage, status, headers
        )

    def _judged(
        self,
        text: object,
        refusal: object,
        reason: str,
        usage: object,
        status: int,
        headers: Mapping[str, str],
    ) -> Reply:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (count_of(counted.get(name)) for name in COUNTS)
        if refusal:
            said = f"{self.model} refused: {told(refusal, *self._secrets)}"
            reply = fault(
                "refusal",
                said,
                n_prompt_tokens=n_prompt,
                n_tokens=n,
                status=status,
                billing=billing_of(usage),
            )
        else:
            plain = text if isinstance(text, str) else ""
            reply = completed(plain, reason, n_prompt, n, status, self.model, is_told=bool(counted))
        wait_s = exhausted_for(headers, utc_now())
        return reply if wait_s is None else replace(reply, wait_s=wait_s)

    def _empty(self, error: str, usage: object, status: int) -> Reply:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (count_of(counted.get(name)) for name in COUNTS)
        return fault(
            "empty",
            error,
            n_prompt_tokens=n_prompt,
            n_tokens=n,
            status=status,
            billing=billing_of(usage),
        )

    async def _streamed(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
        """Piece by piece; `partial` holds what came, also when this ends in an error. Nothing
        counts without a finish reason.
        """
        body = self._body(request) | {"stream": True, "stream_options": {"include_usage": True}}
        heard = Heard(on_text, partial)
        reason: str | None = None
        refusal: list[str] = []
        usage: object = None
        last: object = None  # of the last event
        has_begun = False
        async with self._client().chat.completions.with_streaming_response.create(**body) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                found = parsed(
                    await answer.read(),
                    answer.headers.get("content-type", ""),
                    self._where,
                    self._secrets,
                )
                return (
                    found
                    if isinstance(found, Reply)
                    else self._read(found, answer.status_code, answer.headers)
                )
            async for event in events(answer.iter_bytes(), self._secrets):
                newest = event.get("usage")
                if error := error_of(event):  # within a stream whose status was 200
                    # A count that more came after is not what is billed.
                    so_far = (
                        begun(partial, newest or last, COUNTS)
                        if has_begun
                        else billed_as(newest, COUNTS)
                    )
                    return self._failed(status_of(error), answer.headers, error, **so_far)
                has_begun, last = True, newest
                usage = newest or usage
                choices = event.get("choices") or ()
                if not isinstance(choices, list | tuple) or any(
                    not isinstance(choice, dict) for choice in choices
                ):
                    raise Unreadable(
                        "garbled",
                        f"streamed choices that are none: {told(choices, *self._secrets)!r}",
                    )
                for choice in choices:
                    delta = part_of(choice, "delta")
                    if piece := text_of(delta, "content"):
                        heard(piece)
                    if piece := text_of(delta, "refusal"):
                        refusal.append(piece)
                    reason = text_of(choice, "finish_reason") or reason
        text = "".join(partial)
        if reason is None:
            return fault(
                "cut",
                f"{self._where} ended its stream without a finish reason",
                partial=text or None,
            )
        self.has_answered = True
        return self._judged(
            text, "".join(refusal), reason, usage, answer.status_code, answer.headers
        )

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
    def _secrets(self) -> Sequence[str]:
        return (self.api_key.get_secret_value() if self.api_key else "", *secrets_of(self.base_url))

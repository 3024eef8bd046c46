"""Completes by any server with OpenAI's chat completions API."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from rlhf_pipeline.completions.openai_batches import OpenAIBatches
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
    from openai import AsyncOpenAI

COUNTS = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one provider accepts: `max_tokens` is the field that limits a completion, `seed` whether
    it takes a seed.
    """

    max_tokens: str = "max_tokens"
    seed: bool = True


# By host; other servers (vLLM, Ollama, llama.cpp) follow OpenAI's API.
OWN_SERVER = Capabilities()
CAPABILITIES: dict[str, Capabilities] = {
    # max_tokens is deprecated there and refused by reasoning models
    "api.openai.com": Capabilities(max_tokens="max_completion_tokens"),
    "api.deepseek.com": Capabilities(seed=False),
}


def capabilities_of(base_url: str) -> Capabilities:
    return CAPABILITIES.get(provider_of(base_url), OWN_SERVER)


class OpenAICompatibleBackend:
    """Completes by `POST {base_url}/chat/completions`: OpenAI, DeepSeek, Together, vLLM, Ollama,
    llama.cpp.

    One call is one request: the client does not retry. The key appears in no error and no `repr`.
    """

    name = "openai_compatible"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(
        self,
        model: str,
        base_url: str,
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
        self._open: tuple[asyncio.AbstractEventLoop, AsyncOpenAI] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        return cls(
            settings.api_model, settings.base_url, provider_key(settings), timeout_s=timeout_s
        )

    def __repr__(self) -> str:
        return f"OpenAICompatibleBackend({self.model!r}, {provider_of(self.base_url)!r})"

    @property
    def provider(self) -> str:
        return provider_of(self.base_url)

    @property
    def _public_address(self) -> str:
        return address_of(self.base_url)

    async def call(self, request: CompletionRequest, on_text: OnText | None = None) -> Reply:
        partial: list[str] = []
        try:
            return await (
                self._fetch_whole(request)
                if on_text is None
                else self._stream(request, on_text, partial)
            )
        except self.error_types() as cause:
            return await self.classify_error(cause, partial)

    def error_types(self) -> tuple[type[Exception], ...]:
        """Errors that a call to this provider can raise; see `classify_error`."""
        from openai import APIError

        return (APIError, ValueError, *transport_errors())

    async def classify_error(self, cause: Exception, partial: Sequence[str] = ()) -> Reply:
        from openai import APIStatusError

        if isinstance(cause, APIStatusError):
            return self._parse_refusal(
                cause.status_code, cause.response.headers, await read_remaining(cause.response)
            )
        return transport_fault(
            cause.__cause__ or cause,
            self._public_address,
            self._secrets,
            partial="".join(partial) if partial else None,
        )

    def batches(self) -> OpenAIBatches:
        """The Batch API of this provider, within the calling event loop."""
        return OpenAIBatches(
            self._get_client(),
            self._build_body,
            self._parse_batch_response,
            self._public_address,
            self._secrets,
        )

    def _parse_batch_response(self, status: int, body: Mapping[str, Any]) -> Reply:
        return (
            self._parse_completion(dict(body), status, {})
            if status < 400
            else self._parse_refusal(status, {}, json.dumps(body).encode())
        )

    async def close(self) -> None:
        if self._open is not None:
            client, self._open = self._open[1], None
            await client.close()

    def _get_client(self) -> "AsyncOpenAI":
        """The client of this event loop: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            from openai import AsyncOpenAI

            # Servers without authentication take any key; the client insists on one.
            key = self.api_key.get_secret_value() if self.api_key else "none"
            transport = open_client(self.base_url, self.timeout_s)
            client = AsyncOpenAI(
                base_url=self._public_address,
                api_key=key,
                max_retries=0,
                timeout=self.timeout_s,
                http_client=transport,
            )
            self._open = (loop, client)
        return self._open[1]

    def _build_body(self, request: CompletionRequest) -> dict[str, Any]:
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

    async def _fetch_whole(self, request: CompletionRequest) -> Reply:
        import httpx2

        # The raw bytes: the client does not validate its models, and building them
        # costs a third of the call.
        answer = await self._get_client().post(
            "/chat/completions", cast_to=httpx2.Response, body=self._build_body(request)
        )
        found = parse_answer(
            answer.content,
            answer.headers.get("content-type", ""),
            self._public_address,
            self._secrets,
        )
        if isinstance(found, Reply):
            return found
        return self._parse_completion(found, answer.status_code, answer.headers)

    def _parse_completion(
        self, found: dict[str, Any], status: int, headers: Mapping[str, str]
    ) -> Reply:
        if not found.get("choices") and (error := find_error(found)):  # behind a status of 200
            return self._build_failure(
                status_of(error), headers, error, **error_billing_fields(found.get("usage"), COUNTS)
            )
        choices = found.get("choices")
        if not isinstance(choices, list) or any(not isinstance(choice, dict) for choice in choices):
            return fault(
                "garbled",
                f"{self._public_address} sent no chat completion but "
                f"{redact(found, *self._secrets)!r}",
                status=status,
            )
        self.has_answered = True
        usage = found.get("usage")
        if not choices:
            return self._build_empty_reply(f"{self.model} sent no choice.", usage, status)
        message, reason = choices[0].get("message"), str(choices[0].get("finish_reason") or "stop")
        message = message if isinstance(message, dict) else {}
        return self._build_reply(
            message.get("content"), message.get("refusal"), reason, usage, status, headers
        )

    def _build_reply(
        self,
        text: object,
        refusal: object,
        reason: str,
        usage: object,
        status: int,
        headers: Mapping[str, str],
    ) -> Reply:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (parse_count(counted.get(name)) for name in COUNTS)
        if refusal:
            said = f"{self.model} refused: {redact(refusal, *self._secrets)}"
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
            reply = build_reply(
                plain, reason, n_prompt, n, status, self.model, is_told=bool(counted)
            )
        wait_s = seconds_until_quota_resets(headers, utc_now())
        return reply if wait_s is None else replace(reply, wait_s=wait_s)

    def _build_empty_reply(self, error: str, usage: object, status: int) -> Reply:
        counted = usage if isinstance(usage, dict) else {}
        n_prompt, n = (parse_count(counted.get(name)) for name in COUNTS)
        return fault(
            "empty",
            error,
            n_prompt_tokens=n_prompt,
            n_tokens=n,
            status=status,
            billing=billing_of(usage),
        )

    async def _stream(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
        """Read the stream; `partial` keeps the received pieces even if an error ends it. A stream
        without a finish reason is incomplete.
        """
        body = self._build_body(request) | {
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        collector = TextCollector(on_text, partial)
        reason: str | None = None
        refusal: list[str] = []
        usage: object = None
        last: object = None  # of the last event
        has_begun = False
        async with self._get_client().chat.completions.with_streaming_response.create(
            **body
        ) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                found = parse_answer(
                    await answer.read(),
                    answer.headers.get("content-type", ""),
                    self._public_address,
                    self._secrets,
                )
                return (
                    found
                    if isinstance(found, Reply)
                    else self._parse_completion(found, answer.status_code, answer.headers)
                )
            async for event in parse_events(answer.iter_bytes(), self._secrets):
                newest = event.get("usage")
                if error := find_error(event):  # within a stream whose status was 200
                    # A count followed by more text is not the billed one.
                    so_far = (
                        partial_reply_fields(partial, newest or last, COUNTS)
                        if has_begun
                        else error_billing_fields(newest, COUNTS)
                    )
                    return self._build_failure(status_of(error), answer.headers, error, **so_far)
                has_begun, last = True, newest
                usage = newest or usage
                choices = event.get("choices") or ()
                if not isinstance(choices, list | tuple) or any(
                    not isinstance(choice, dict) for choice in choices
                ):
                    raise UnreadableResponse(
                        "garbled",
                        f"streamed invalid choices: {redact(choices, *self._secrets)!r}",
                    )
                for choice in choices:
                    delta = get_object(choice, "delta")
                    if piece := get_text(delta, "content"):
                        collector(piece)
                    if piece := get_text(delta, "refusal"):
                        refusal.append(piece)
                    reason = get_text(choice, "finish_reason") or reason
        text = "".join(partial)
        if reason is None:
            return fault(
                "cut",
                f"{self._public_address} ended its stream without a finish reason",
                partial=text or None,
            )
        self.has_answered = True
        return self._build_reply(
            text, "".join(refusal), reason, usage, answer.status_code, answer.headers
        )

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
    def _secrets(self) -> Sequence[str]:
        return (self.api_key.get_secret_value() if self.api_key else "", *secrets_of(self.base_url))

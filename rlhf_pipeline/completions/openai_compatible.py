"""Completes by any server with OpenAI's chat completions API."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from rlhf_pipeline.completions.openai_batches import OpenAIBatches
from rlhf_pipeline.completions.redaction import (
    provider_of,
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
    from openai import AsyncOpenAI


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


class OpenAICompatibleBackend(HTTPBackend):
    """Completes by `POST {base_url}/chat/completions`: OpenAI, DeepSeek, Together, vLLM, Ollama,
    llama.cpp.
    """

    name = "openai_compatible"
    counts = ("prompt_tokens", "completion_tokens")
    _open: "tuple[asyncio.AbstractEventLoop, AsyncOpenAI] | None" = None

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        return cls(
            settings.api_model, settings.base_url, provider_key(settings), timeout_s=timeout_s
        )

    def error_types(self) -> tuple[type[Exception], ...]:
        from openai import APIError

        return (APIError, *super().error_types())

    async def classify_error(self, cause: BaseException, partial: Sequence[str] = ()) -> Reply:
        from openai import APIStatusError

        if isinstance(cause, APIStatusError):
            return self._parse_refusal(
                cause.status_code, cause.response.headers, await read_remaining(cause.response)
            )
        return await super().classify_error(cause.__cause__ or cause, partial)

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
            self._parse_message(dict(body), status, {})
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
        return self._parse_whole(answer.content, answer.status_code, answer.headers)

    def _parse_message(
        self, found: dict[str, Any], status: int, headers: Mapping[str, str]
    ) -> Reply:
        if not found.get("choices") and (error := find_error(found)):  # behind a status of 200
            billing = error_billing_fields(found.get("usage"), self.counts)
            return self._build_failure(status_of(error), headers, error, **billing)
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
            said = f"{self.model} sent no choice."
            return fault("empty", said, status=status, **self._usage_fields(usage))
        message, reason = choices[0].get("message"), str(choices[0].get("finish_reason") or "stop")
        message = message if isinstance(message, dict) else {}
        return self._build_completion(
            message.get("content"), message.get("refusal"), reason, usage, status, headers
        )

    def _build_completion(
        self,
        text: object,
        refusal: object,
        reason: str,
        usage: object,
        status: int,
        headers: Mapping[str, str],
    ) -> Reply:
        refused = redact(refusal, *self._secrets) if refusal else None
        plain = text if isinstance(text, str) else ""
        return self._build_reply(plain, refused, reason, usage, status, headers)

    async def _stream(
        self, request: CompletionRequest, on_text: OnText, partial: list[str]
    ) -> Reply:
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
                return self._parse_whole(await answer.read(), answer.status_code, answer.headers)
            async for event in parse_events(answer.iter_bytes(), self._secrets):
                newest = event.get("usage")
                if error := find_error(event):  # within a stream whose status was 200
                    # A count followed by more text is not the billed one.
                    so_far = (
                        partial_reply_fields(partial, newest or last, self.counts)
                        if has_begun
                        else error_billing_fields(newest, self.counts)
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
        return self._build_completion(
            text, "".join(refusal), reason, usage, answer.status_code, answer.headers
        )

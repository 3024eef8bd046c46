"""What backends of providers share: the SDK's client, and answers turned into replies."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, SecretStr

from rlhf_pipeline.core.config import RequestParameters
from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.core.secret_files import clean_key
from rlhf_pipeline.generate.completions.answers import (
    AnswerStream,
    ModelAnswer,
    NotTextError,
    split_reasoning,
)
from rlhf_pipeline.generate.completions.base import CompletionRequest, OnText, Reply
from rlhf_pipeline.generate.completions.faults import (
    describe_empty,
    fault,
    http_fault,
    refused_parameter,
    status_of,
)
from rlhf_pipeline.generate.completions.redaction import (
    address_of,
    check_address,
    provider_of,
    redact,
    secrets_of,
)

C = TypeVar("C", bound="SDKClient")
# Servers by uvicorn, such as vLLM, close idle connections after 5 s; a request that is sent just
# then is lost.
IDLE_S = 2.0


class SDKClient(Protocol):
    """A client of OpenAI's or Anthropic's SDK."""

    async def close(self) -> None: ...


class HTTPBackend(ABC, Generic[C]):
    """One call is one request by the provider's SDK, which retries nothing. The key appears in no
    error and no `repr`.

    A subclass makes the client, encodes requests and parses messages; it satisfies HostedBackend.
    """

    Params: ClassVar[type[BaseModel]] = NoParams
    sdk: ClassVar[str]  # name of the module, whose errors both SDKs name alike
    # names of the tokens of the prompt and of the completion in the provider's `usage`
    counts: ClassVar[tuple[str, str]]

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: SecretStr | None = None,
        *,
        model_version: str | None = None,
        timeout_s: float = 60.0,
        parameters: RequestParameters | None = None,
    ) -> None:
        self.parameters = parameters
        self.model = model
        self.base_url = check_address(base_url)
        self.api_key = clean_key(api_key)
        self.model_version = model_version or model
        self.timeout_s = timeout_s
        self.has_answered = False
        self._open: tuple[asyncio.AbstractEventLoop, C] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, {self.provider!r})"

    @property
    def provider(self) -> str:
        return provider_of(self.base_url)

    async def call(self, request: CompletionRequest, on_text: OnText | None = None) -> Reply:
        pieces: list[str] = []  # of a stream, also if an error ends it
        try:
            if on_text is None:
                return await self._fetch_whole(request)
            return await self._stream(request, AnswerStream(pieces, on_text), pieces)
        except self.error_types() as cause:
            return self.classify_error(cause, pieces)

    def error_types(self) -> tuple[type[Exception], ...]:
        """Errors that a call to this provider can raise; see `classify_error`."""
        import httpx2

        malformed = (ValueError, LookupError, TypeError, AttributeError)
        errors = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, *malformed)
        return (import_module(self.sdk).APIError, *errors)

    def classify_error(self, cause: BaseException, pieces: Sequence[str] = ()) -> Reply:
        """The Reply that such an error means. `pieces`: the texts that were received before."""
        import httpx2

        sdk = import_module(self.sdk)
        if isinstance(cause, sdk.APIError) and not isinstance(cause, sdk.APIConnectionError):
            body = cause.body if find_error(cause.body) else {"error": cause.body or str(cause)}
            answer = getattr(cause, "response", None)
            if answer is None or answer.status_code < 300:  # within a stream
                return self._build_refusal(body, pieces=pieces)
            return self._build_refusal(body, answer.status_code, answer.headers)
        cause = cause.__cause__ or cause
        where = self._public_address
        message = self.redact(f"{type(cause).__name__}: {cause}")
        if isinstance(cause, NotTextError):
            return fault("not_text", f"{self.model} sent {cause}. Ask it for text alone.")
        if isinstance(
            cause,
            httpx2.ConnectError
            | httpx2.ConnectTimeout
            | httpx2.PoolTimeout
            | httpx2.UnsupportedProtocol
            | httpx2.ProxyError,
        ):
            return fault("unreachable", f"{where} cannot be reached ({message})")
        if pieces:
            return fault(
                "cut", f"{where} broke off its answer ({message})", partial="".join(pieces)
            )
        if isinstance(cause, httpx2.TimeoutException):
            return fault("timeout", f"{where} gave no answer in time ({message})")
        if isinstance(cause, httpx2.TransportError | OSError):
            return fault("dropped", f"{where} ended the connection before it answered ({message})")
        return fault("garbled", f"{where} sent what is no completion ({message})")

    def open_client(self) -> C:
        """The client of this event loop: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open[0] is not loop:
            self._open = (loop, self._make_client())
        return self._open[1]

    async def close(self) -> None:
        if self._open is not None:
            client, self._open = self._open[1], None
            await client.close()

    @abstractmethod
    def _make_client(self) -> C: ...

    def redact(self, message: object) -> str:
        """A message of the provider, shortened and without secrets."""
        return redact(message, *self._secrets)

    @abstractmethod
    async def _fetch_whole(self, request: CompletionRequest) -> Reply: ...

    @abstractmethod
    async def _stream(
        self, request: CompletionRequest, collect: OnText, pieces: Sequence[str]
    ) -> Reply:
        """Read the stream; each event's text, perhaps empty, goes to `collect`, which keeps it in
        `pieces`. A stream without a reason for its end is incomplete.
        """

    def _prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a request with the parameters that the settings change for this model."""
        return self.parameters.apply(body) if self.parameters else body

    def _build_reply(
        self, answer: ModelAnswer, refusal: object, reason: str | None, usage: object, status: int
    ) -> Reply:
        """The completion, or why its text cannot be kept."""
        text, inline = split_reasoning(answer.text)
        reasoning = inline if answer.reasoning is None else answer.reasoning
        if reason is None:
            message = f"{self._public_address} ended its answer without a finish reason"
            return fault("cut", message, status=status, partial=text or None)
        self.has_answered = True
        counts = usage if isinstance(usage, dict) else {}
        n_prompt_tokens, n_tokens = (_parse_count(counts.get(name)) for name in self.counts)
        fields: dict[str, Any] = {
            "finish_reason": reason,
            "n_prompt_tokens": n_prompt_tokens,
            "n_tokens": n_tokens,
            "status": status,
            # Without a token count the bill is unknown.
            "billing": "metered" if counts else "unknown",
        }
        if refusal:
            message = f"{self.model} refused: {self.redact(refusal)}"
            return fault("refusal", message, **(fields | {"finish_reason": "error"}))
        if reason == "content_filter":
            return fault("content_filter", f"{self.model} stopped by its content filter.", **fields)
        if not text.strip():
            message = describe_empty(self.model, reason, reasoning)
            return fault("empty", message, **(fields | {"finish_reason": "error"}))
        if "\x00" in text or text != text.encode("utf-8", "replace").decode():
            message = (
                f"{self.model} sent a text with NUL or a lone surrogate, which databases refuse."
            )
            return fault("unstorable", message, **(fields | {"finish_reason": "error"}))
        return Reply(
            outcome="succeeded", kind="succeeded", text=text, reasoning=reasoning, **fields
        )

    def _build_refusal(
        self,
        body: object,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        pieces: Sequence[str] = (),
    ) -> Reply:
        """The Reply to an error object, of this status or of the one that its words mean. It is
        free unless a part of an answer came before it.
        """
        error = find_error(body) or {"message": str(body)}
        message = self.redact(error.get("message") or error)
        if refused := refused_parameter(error):
            parameters = self.parameters or RequestParameters()
            message = f"{message.rstrip('.')}. {parameters.describe_cure(self.model, *refused)}"
        more = {"billing": "unknown", "partial": "".join(pieces) or None} if pieces else {}
        # `code` is more specific than `type` if it is a word.
        words = [word for word in (error.get("code"), error.get("type")) if isinstance(word, str)]
        return http_fault(
            status_of(error) if status is None else status,
            f"{self._public_address}: {message}",
            next(filter(None, words), None),
            headers or {},
            self.model,
            **more,
        )

    def _client_options(self) -> dict[str, Any]:
        """Of the SDK's client. User, password and query of the URL are sent with every request and
        never logged.
        """
        import httpx2

        url = httpx2.URL(self.base_url)
        for logger in ("httpx2", f"{self.sdk}._base_client"):
            # added only once, however often this runs
            logging.getLogger(logger).addFilter(_strip_query)
        return {
            "base_url": self._public_address,
            # Servers without authentication take any key; the client insists on one.
            "api_key": self._key or "none",
            "max_retries": 0,
            "timeout": self.timeout_s,
            "http_client": httpx2.AsyncClient(
                auth=(url.username, url.password) if url.userinfo else None,
                params=url.params,
                timeout=self.timeout_s,
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S
                ),
                follow_redirects=False,
            ),
        }

    @property
    def _public_address(self) -> str:
        return address_of(self.base_url)

    @property
    def _key(self) -> str:
        return self.api_key.get_secret_value() if self.api_key else ""

    @property
    def _secrets(self) -> Sequence[str]:
        return (self._key, *secrets_of(self.base_url))


def find_error(body: object) -> dict[str, Any] | None:
    """The error object of an answer or event, in either of the common forms; None if it is not an
    error.

    >>> find_error({"error": "no"}), find_error({"object": "error", "message": "no"})["message"]
    ({'message': 'no'}, 'no')
    >>> print(find_error({"error": None, "choices": []}))
    None
    """
    if not isinstance(body, dict):
        return None
    error = body if body.get("object") == "error" else body.get("error")
    return {"message": error} if error and not isinstance(error, dict) else error or None


def _parse_count(value: object) -> int:
    """A number of tokens as reported; 0 for anything else."""
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def _strip_query(record: logging.LogRecord) -> bool:
    """Remove the query from logged addresses: httpx2 and SDKs log each address, and some providers
    take their key in the query.
    """
    import httpx2

    if isinstance(record.args, tuple):
        record.args = tuple(
            address_of(str(arg)) if isinstance(arg, httpx2.URL) else arg for arg in record.args
        )
    return True

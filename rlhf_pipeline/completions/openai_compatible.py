"""The backend for any server that speaks OpenAI's chat completions. Knows the `openai` client; knows no frame and no cache."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import SecretStr

from rlhf_pipeline.completions.base import CompletionRequest, CompletionResult
from rlhf_pipeline.errors import BackendUnavailable

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionMessage

TOLD = 300  # characters kept of what a server says
CREDENTIALS_REFUSED = (401, 403)


class OpenAICompatibleBackend:
    """Completes by `POST {base_url}/chat/completions`, several requests at once.

    The client repeats what may pass (429, 408, 409, 5xx, lost connections) up to `max_retries` times, waiting as long
    as the server's Retry-After says, else 0.5 s doubling up to 8 s. What fails after that, is refused or comes
    without text is the error of its own row. Credentials refused, an unknown model or address, and a server that
    never answered make the backend unavailable. The key stands in no error and no `repr`.
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
        self.base_url = base_url
        self.api_key = api_key
        self.model_version = model_version or model
        self.max_retries = max_retries
        self.timeout_s = timeout_s
        self.concurrency = concurrency
        self._has_answered = False

    def __repr__(self) -> str:
        return f"OpenAICompatibleBackend({self.model!r}, {self.base_url!r})"

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="completions")
        try:
            yield from pool.map(self._complete, requests)
        finally:
            # Also when a caller stops early or the backend turns out unavailable: nothing more is asked, or paid for.
            pool.shutdown(cancel_futures=True)

    @cached_property
    def _client(self) -> "OpenAI":
        from openai import OpenAI

        # Servers without authentication take any key; the client insists on one.
        key = self.api_key.get_secret_value() if self.api_key else "none"
        return OpenAI(base_url=self.base_url, api_key=key, max_retries=self.max_retries, timeout=self.timeout_s)

    def _complete(self, request: CompletionRequest) -> CompletionResult:
        started = time.perf_counter()
        outcome = self._attempt(request)
        if isinstance(outcome, BackendUnavailable):
            raise outcome  # here, not where it was found: the client's own error holds the request, and with it the key
        return outcome.model_copy(update={"latency_ms": (time.perf_counter() - started) * 1000})

    def _attempt(self, request: CompletionRequest) -> CompletionResult | BackendUnavailable:
        from openai import APIConnectionError, APIError, APIStatusError

        try:
            return self._read(self._ask(request))
        except APIStatusError as cause:
            error = f"HTTP {cause.status_code} from {self.base_url}: {self._told(cause)}"
            cure = self._cure(cause)
            return BackendUnavailable(f"{error}. {cure}.") if cure else CompletionResult.failed(error)
        except APIConnectionError as cause:
            return self._unanswered(f"{self.base_url} gave no answer in {self.max_retries + 1} attempts ({self._told(cause)})")
        except (APIError, ValueError) as cause:  # ValueError: JSON cut off half-way
            return self._unanswered(f"{self.base_url} sent no readable answer ({self._told(cause)})")

    def _ask(self, request: CompletionRequest) -> "ChatCompletion":
        return self._client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": request.prompt}],
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            max_tokens=request.max_tokens,
        )

    def _read(self, answer: object) -> CompletionResult | BackendUnavailable:
        """The completion in `answer`, which the client does not check: a web page comes as `str`, a foreign JSON as anything."""
        choices = getattr(answer, "choices", None)
        if not isinstance(choices, list):
            return self._unanswered(f"{self.base_url} did not send a chat completion but {self._told(answer)!r}")
        self._has_answered = True
        if not choices:
            return CompletionResult.failed(f"{self.model} sent no choice.")
        message, reason = choices[0].message, choices[0].finish_reason or "stop"
        usage = getattr(answer, "usage", None)
        error = self._fault(message, reason)
        return CompletionResult(
            text=message.content if error is None else None,
            n_prompt_tokens=getattr(usage, "prompt_tokens", None) or 0,
            n_tokens=getattr(usage, "completion_tokens", None) or 0,
            finish_reason=reason,
            error=error,
        )

    def _fault(self, message: "ChatCompletionMessage", reason: str) -> str | None:
        """Why there is no text to keep, or None."""
        if reason == "content_filter":
            return f"{self.model} stopped by its content filter."
        if message.refusal:
            return f"{self.model} refused: {self._told(message.refusal)}"
        if not isinstance(message.content, str) or not message.content.strip():
            return f"{self.model} sent an empty completion (finish reason {reason})."
        return None

    def _unanswered(self, error: str) -> CompletionResult | BackendUnavailable:
        """The row's error once the server has answered anything; before that, the address is wrong or nobody is there."""
        if self._has_answered:
            return CompletionResult.failed(error)
        return BackendUnavailable(f"{error}. Start the server or mend the setting base_url (RLHF_BASE_URL), which usually ends in /v1.")

    def _cure(self, cause: "APIStatusError") -> str | None:
        """What to mend where every further request would be refused too."""
        if cause.status_code in CREDENTIALS_REFUSED:
            return "Set api_key (RLHF_API_KEY) to a key that may use this model"
        if cause.status_code == 404:
            return f"Mend the setting api_model (RLHF_API_MODEL), now {self.model!r}, or base_url (RLHF_BASE_URL)"
        if cause.code == "insufficient_quota":
            return "The account of api_key (RLHF_API_KEY) has no credit left: top it up or use another"
        return None

    def _told(self, said: object) -> str:
        """What a server or the client said, on one line, short, and without the key, which some servers repeat."""
        line = " ".join(str(said).split())
        secret = self.api_key.get_secret_value() if self.api_key else ""
        return (line.replace(secret, "***") if secret else line)[:TOLD]

"""Requests, results, replies and the protocols of completion backends."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, Field

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.protocols import Billing, Outcome
from rlhf_pipeline.core.records import Record


class CompletionRequest(Record):
    """A request for one completion. `seed` belongs to this sample alone; no two requests of one
    call share `(prompt_id, sample_index)`.
    """

    prompt_id: str
    prompt: str
    temperature: float = Field(
        ge=0, description="0 asks for the most likely completion, whatever the seed"
    )
    top_p: float = Field(gt=0, le=1)
    sample_index: int = Field(ge=0)
    seed: int = Field(
        ge=0, lt=2**63, description="below 2**31 for a provider; torch on this machine accepts more"
    )
    max_tokens: int = Field(ge=1)
    system: str | None = Field(default=None, description="system message sent before the prompt")
    stop: tuple[str, ...] = Field(default=(), description="texts before which the completion ends")


class CompletionResult(Record):
    """The result of one request: `text`, or `error` with the reason. The cache stores it as
    JSON.
    """

    text: str | None = None
    reasoning: str | None = Field(default=None, description="what the model wrote before the text")
    n_prompt_tokens: int = Field(default=0, ge=0)
    n_tokens: int = Field(default=0, ge=0)
    latency_ms: float = Field(
        default=0.0, ge=0, description="wall time of the call, or this row's share of a batch"
    )
    finish_reason: str = Field(default="stop", description="stop, length, content_filter or error")
    error: str | None = None

    @classmethod
    def failed(
        cls, error: str, *, latency_ms: float = 0.0, finish_reason: str = "error"
    ) -> "CompletionResult":
        return cls(error=error, latency_ms=latency_ms, finish_reason=finish_reason)


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of one call to a provider, without retries; `kind` classifies it (see
    `faults.KINDS`). `wait_s` is the waiting time that the provider asked for; with `closes` every
    further request would be refused too.
    """

    outcome: Outcome
    kind: str
    billing: Billing
    text: str | None = None
    reasoning: str | None = None
    finish_reason: str = "error"
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    status: int | None = None
    error: str | None = None
    partial: str | None = None
    wait_s: float | None = None
    is_fault: bool = True
    closes: bool = False


OnText = Callable[[str], None]  # receives each piece of a streamed text


class DirectBackend(Protocol):
    """A backend on this machine; the engine hands it requests in batches.

    Attributes:
        name: the backend's name in `BACKENDS` and in the frame's `backend` column.
        model_version: what made the text, as `name@version` of the registry or the provider's name
            of the model. It is part of the completion's id and of the cache key, so two different
            models must never share it.

    A constructor stores its arguments and is cheap; models and clients are loaded when they are
    first needed. To add a backend: a file in this folder, one class, one line in `BACKENDS`.

    >>> class Echo:
    ...     name, model_version = "echo", "echo-1"
    ...     def complete(self, requests):
    ...         for request in requests:
    ...             n_tokens = len(request.prompt.split())
    ...             yield CompletionResult(text=request.prompt, n_tokens=n_tokens)
    >>> drawn = dict(temperature=1, top_p=1, sample_index=0, seed=1, max_tokens=8)
    >>> request = CompletionRequest(prompt_id="p", prompt="Hi", **drawn)
    >>> [result.text for result in Echo().complete([request])]
    ['Hi']
    """

    name: str
    model_version: str

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        """Yield one result per request, in the order of the requests, each as soon as it is ready.

        The same request gives the same text, whatever else is in `requests`. A request that cannot
        be completed is `CompletionResult.failed` with the reason; it does not stop the others.

        Raises:
            BackendUnavailable: nothing can be completed at all, for example because the model is
                missing. The message names the setting to change.
        """


@runtime_checkable
class HostedBackend(Protocol):
    """A backend whose model is behind a network, limits and a bill. The engine makes one call at a
    time; retries, limits and budgets are the engine's.

    Attributes:
        name, model_version: as of a `DirectBackend`.
        provider: host and port of the address; its models share limits and a bill.
        model: the provider's name of the model; with `provider` it names what shares a limit.
        has_answered: whether any completion has arrived; before that, the address may be wrong.
    """

    name: str
    model_version: str
    model: str
    has_answered: bool

    @property
    def provider(self) -> str: ...

    async def call(self, request: CompletionRequest, on_text: OnText | None = None) -> Reply:
        """Make one call without a retry: everything the provider does becomes a Reply, never an
        error, and contains no secret. With `on_text` the answer is streamed to it.
        """
        ...

    async def close(self) -> None:
        """Close the connections of this event loop."""
        ...


CompletionBackend = DirectBackend | HostedBackend
ChampionPolicy = Callable[[], tuple[Path, str]]  # its folder and `name@version`


class ConfiguredBackend(Protocol):
    """Members of a class in `BACKENDS` in addition to those of a direct or hosted backend."""

    Params: ClassVar[type[BaseModel]]

    @classmethod
    def from_settings(
        cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float
    ) -> CompletionBackend:
        """The backend that the settings describe. `policy` finds the champion
        policy, for backends that complete with it. Raises ConfigurationError, naming the setting to
        change.
        """

"""Plans the requests to backends: parameters, and each request and item, built when needed."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeVar, overload

import pandas as pd
from pydantic import Field, field_validator

from rlhf_pipeline.completions.base import CompletionBackend, CompletionRequest, HostedBackend
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.protocols import Lane, WorkItem
from rlhf_pipeline.records import content_hash

SEEDS = 2**31  # upper bound of seeds for both providers and torch
KEY_BYTES = 32
KEY_VERSION = 2  # of what a cache key is made of

T = TypeVar("T")


class CompletionParams(Parameters):
    """Number of completions per prompt, and their sampling."""

    k: int = Field(default=4, ge=1, le=64, description="Completions per prompt and model")
    temperatures: list[float] = Field(
        default=[0.7, 1.0], min_length=1, description="Sampling temperatures, 0 to 2; 0 is greedy"
    )
    top_ps: list[float] = Field(
        default=[1.0, 0.9], min_length=1, description="Top-p values, above 0 and up to 1"
    )
    max_new_tokens: int = Field(
        default=48, ge=1, le=32768, description="Tokens after which a completion is cut off"
    )
    seed: int = Field(
        default=0,
        ge=0,
        description="Every sample's own seed is derived from it, the day and the prompt",
    )
    batch_size: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Requests per batch of a backend on this machine",
    )
    system: str | None = Field(
        default=None, description="System prompt, for providers; empty = none"
    )
    least_per_prompt: int = Field(
        default=1,
        ge=1,
        le=64,
        description="If fewer completions of a prompt than this can still succeed, the others "
        "are not requested; a pair needs 2",
    )

    @field_validator("temperatures")
    @classmethod
    def _check_temperatures(cls, values: list[float]) -> list[float]:
        if not all(0 <= value <= 2 for value in values):
            raise ValueError("temperatures go from 0 to 2")
        return values

    @field_validator("top_ps")
    @classmethod
    def _check_top_ps(cls, values: list[float]) -> list[float]:
        if not all(0 < value <= 1 for value in values):
            raise ValueError("top_ps go from above 0 to 1")
        return values


def parameter_grid(params: CompletionParams) -> list[tuple[float, float]]:
    """(temperature, top_p) of samples 0 to k-1."""
    grid = list(product(params.temperatures, params.top_ps))
    return [grid[i % len(grid)] for i in range(params.k)]


def cache_key(backend: CompletionBackend, request: CompletionRequest) -> str:
    """Hash of everything that determines the text, and of nothing else."""
    whose = (
        backend.name,
        getattr(backend, "provider", ""),
        getattr(backend, "model", ""),
        backend.model_version,
    )
    sampling = (
        request.temperature,
        request.top_p,
        request.seed,
        request.sample_index,
        request.max_tokens,
    )
    return content_hash("completion", KEY_VERSION, whose, request.system, request.prompt, sampling)


def build_item(
    backend: CompletionBackend,
    request: CompletionRequest,
    calls: CallParams,
    *,
    item_no: int,
    position: int,
    key: str,
) -> WorkItem:
    """The ledger's item of a request."""
    provider, model = lane_of(backend)
    is_hosted = isinstance(backend, HostedBackend)
    return WorkItem(
        item_no=item_no,
        position=position,
        prompt_id=request.prompt_id,
        provider=provider,
        model=model,
        sample_index=request.sample_index,
        params=encode_sampling(request),
        cache_key=key,
        reserve=calls.max_cost(request) if is_hosted else 0,
        is_metered=is_hosted,
    )


def encode_sampling(request: CompletionRequest) -> str:
    """The sampling parameters as the ledger stores them."""
    return json.dumps(
        {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "max_tokens": request.max_tokens,
        }
    )


class RequestPlan:
    """All requests by item number. Items are made from the prompts when needed: those of a
    hundred thousand prompts would fill a gigabyte.
    """

    def __init__(
        self,
        prompts: pd.DataFrame,
        backends: Sequence[CompletionBackend],
        params: CompletionParams,
        calls: CallParams,
    ) -> None:
        if not backends:
            raise ConfigurationError("No completion backend was given: name one at least.")
        self._days, self._ids, self._texts = (
            prompts[name].array for name in ("day", "prompt_id", "text")
        )
        self._grid = parameter_grid(params)
        self.backends = backends
        self.params = params
        self.batch_size = params.batch_size
        self._calls = calls
        serving = Counter((backend.name, backend.model_version) for backend in backends)
        # The same text from two providers of one model still makes two completions.
        self._makers = [
            f"{b.name} at {lane_of(b)[0]}" if serving[b.name, b.model_version] > 1 else b.name
            for b in backends
        ]
        self.n_of_prompt = len(self._grid) * len(backends)  # items, side by side
        self.least = min(params.least_per_prompt, self.n_of_prompt)
        self.requests = _LazySequence(len(self._ids) * self.n_of_prompt, self._request)
        made = (
            cache_key(self.backend(item_no), request)
            for item_no, request in enumerate(self.requests)
        )
        self._keys = b"".join(map(bytes.fromhex, made))  # a third of the texts' size
        self.keys = _LazySequence(
            len(self.requests), lambda n: self._keys[n * KEY_BYTES : (n + 1) * KEY_BYTES].hex()
        )
        self.items = _LazySequence(len(self.requests), self._item)

    def day(self, item_no: int) -> str:
        return str(self._days[self._place(item_no)[0]])

    def backend(self, item_no: int) -> CompletionBackend:
        return self.backends[self._place(item_no)[2]]

    def maker(self, item_no: int) -> str:
        """The backend's name in a completion's id."""
        return self._makers[self._place(item_no)[2]]

    def _place(self, item_no: int) -> tuple[int, int, int]:
        """Prompt, sample and backend of an item."""
        of_sample, which = divmod(item_no, len(self.backends))
        return *divmod(of_sample, len(self._grid)), which

    def _request(self, item_no: int) -> CompletionRequest:
        row, index, _ = self._place(item_no)
        # The day too: a prompt that returns on another day gets other completions, with ids of
        # their own.
        first_seed = int(
            content_hash("seed", self.params.seed, self._days[row], self._ids[row])[:12], 16
        )
        temperature, top_p = self._grid[index]
        return CompletionRequest(
            prompt_id=self._ids[row],
            prompt=self._texts[row],
            temperature=temperature,
            top_p=top_p,
            sample_index=index,
            seed=(first_seed + index) % SEEDS,
            max_tokens=self.params.max_new_tokens,
            system=self.params.system,
        )

    def _item(self, item_no: int) -> WorkItem:
        backend, request = self.backend(item_no), self._request(item_no)
        position = self._position(item_no, backend, request)
        return build_item(
            backend,
            request,
            self._calls,
            item_no=item_no,
            position=position,
            key=self.keys[item_no],
        )

    def _position(
        self, item_no: int, backend: CompletionBackend, request: CompletionRequest
    ) -> int:
        if getattr(backend, "likes_equal_lengths", False):
            return len(request.prompt)  # rows of similar length share a batch, which saves padding
        # first samples first: their outcome decides which others are requested
        if self.least > 1:
            return request.sample_index * len(self._ids) + self._place(item_no)[0]
        return item_no


class RequestList:
    """Requests to one backend by item number, as `RequestPlan` offers them; no prompt is known."""

    n_of_prompt = least = 1
    batch_size = 64  # requests per batch of a backend on this machine

    def __init__(
        self, backend: CompletionBackend, requests: Sequence[CompletionRequest], calls: CallParams
    ) -> None:
        self.backends = [backend]
        self.requests = requests
        self.keys = [cache_key(backend, request) for request in requests]
        by_length = getattr(backend, "likes_equal_lengths", False)
        self.items = [
            build_item(
                backend,
                request,
                calls,
                item_no=i,
                position=len(request.prompt) if by_length else i,
                key=self.keys[i],
            )
            for i, request in enumerate(requests)
        ]

    def backend(self, item_no: int) -> CompletionBackend:
        return self.backends[0]


class _LazySequence(Sequence[T]):
    """A sequence whose elements are made on access."""

    def __init__(self, n: int, make: Callable[[int], T]) -> None:
        self._n = n
        self._make = make

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> list[T]: ...

    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._make(i) for i in range(*at.indices(self._n))]
        if not -self._n <= at < self._n:
            raise IndexError(at)
        return self._make(at % self._n)


def lane_of(backend: CompletionBackend) -> Lane:
    """The provider and model whose limits a backend's calls share."""
    return (
        (backend.provider, backend.model)
        if isinstance(backend, HostedBackend)
        else (backend.name, backend.model_version)
    )

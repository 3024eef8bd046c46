"""Plans the requests to backends: parameters, and each request and item, built when needed."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import product
from typing import Annotated

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.protocols import Lane, WorkItem
from rlhf_pipeline.core.records import canonical_json, content_hash
from rlhf_pipeline.generate.completions.answers import ReasoningUse
from rlhf_pipeline.generate.completions.base import (
    CompletionBackend,
    CompletionRequest,
    HostedBackend,
)
from rlhf_pipeline.generate.completions.limits import CallParams

SEEDS = 2**31  # upper bound of seeds for both providers and torch
KEY_VERSION = 2  # of what a cache key is made of


class CompletionParams(Parameters):
    """Number of completions per prompt, and their sampling."""

    k: int = Field(default=4, ge=1, le=64, description="Completions per prompt and model")
    temperatures: list[Annotated[float, Field(ge=0, le=2)]] = Field(
        default=[0.7, 1.0], min_length=1, description="Sampling temperatures, 0 to 2; 0 is greedy"
    )
    top_ps: list[Annotated[float, Field(gt=0, le=1)]] = Field(
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
    reasoning: ReasoningUse = Field(
        default="drop",
        description="What a model reasons before its answer: drop it, show it to annotators, or "
        "show it and train policies on it",
    )
    least_per_prompt: int = Field(
        default=1,
        ge=1,
        le=64,
        description="If fewer completions of a prompt than this can still succeed, the others "
        "are not requested; a pair needs 2",
    )


def parameter_grid(params: CompletionParams) -> list[tuple[float, float]]:
    """(temperature, top_p) of samples 0 to k-1."""
    grid = list(product(params.temperatures, params.top_ps))
    return [grid[i % len(grid)] for i in range(params.k)]


def cache_key(backend: CompletionBackend, request: CompletionRequest) -> str:
    """Hash of everything that determines the text, and of nothing else."""
    whose: tuple[str, ...] = (
        backend.name,
        getattr(backend, "provider", ""),
        getattr(backend, "model", ""),
        backend.model_version,
    )
    if parameters := getattr(backend, "parameters", None):
        whose = (*whose, canonical_json(parameters.model_dump()))
    sampling = (
        request.temperature,
        request.top_p,
        request.seed,
        request.sample_index,
        request.max_tokens,
        *request.stop,
    )
    return content_hash("completion", KEY_VERSION, whose, request.system, request.prompt, sampling)


class Plan(Sequence[WorkItem], ABC):
    """The ledger items of requests by number. They are made when needed: those of a hundred
    thousand prompts would fill a gigabyte.
    """

    keys: Sequence[str]  # of the cache
    n_of_prompt = 1  # items of one prompt, side by side
    least = 1  # items of a prompt that must succeed
    batch_size = 64  # requests per batch of a backend on this machine

    def __init__(self, backend: CompletionBackend, calls: CallParams) -> None:
        self.backend = backend
        self._calls = calls

    @abstractmethod
    def request(self, item_no: int) -> CompletionRequest: ...

    def position(self, item_no: int, request: CompletionRequest) -> int:
        """The place of an item in the order of calls."""
        return item_no

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, item_no: int) -> WorkItem:  # type: ignore[override]  # without slices
        request = self.request(item_no)
        provider, model = lane_of(self.backend)
        is_hosted = isinstance(self.backend, HostedBackend)
        # Rows of similar length share a batch, which saves padding.
        is_sorted = getattr(self.backend, "likes_equal_lengths", False)
        sampling = ("temperature", "top_p", "seed", "max_tokens")
        return WorkItem(
            item_no=item_no,
            position=len(request.prompt) if is_sorted else self.position(item_no, request),
            prompt_id=request.prompt_id,
            provider=provider,
            model=model,
            sample_index=request.sample_index,
            params=json.dumps({name: getattr(request, name) for name in sampling}),
            cache_key=self.keys[item_no],
            reserve=self._calls.max_cost(request) if is_hosted else 0,
            is_metered=is_hosted,
        )


class RequestPlan(Plan):
    """The requests of prompts: k samples of each."""

    def __init__(
        self,
        prompts: pd.DataFrame,
        backend: CompletionBackend,
        params: CompletionParams,
        calls: CallParams,
    ) -> None:
        super().__init__(backend, calls)
        self._days, self._ids, self._texts = (
            prompts[name].array for name in ("day", "prompt_id", "text")
        )
        self._grid = parameter_grid(params)
        self._params = params
        self.batch_size = params.batch_size
        self.n_of_prompt = len(self._grid)
        self.least = min(params.least_per_prompt, self.n_of_prompt)
        self.keys = [
            cache_key(backend, self.request(item_no))
            for item_no in range(len(self._ids) * self.n_of_prompt)
        ]

    def day(self, item_no: int) -> str:
        return str(self._days[item_no // self.n_of_prompt])

    def request(self, item_no: int) -> CompletionRequest:
        row, index = divmod(item_no, self.n_of_prompt)
        # The day too: a prompt that returns on another day gets other completions, with ids of
        # their own.
        first_seed = int(
            content_hash("seed", self._params.seed, self._days[row], self._ids[row])[:12], 16
        )
        temperature, top_p = self._grid[index]
        return CompletionRequest(
            prompt_id=self._ids[row],
            prompt=self._texts[row],
            temperature=temperature,
            top_p=top_p,
            sample_index=index,
            seed=(first_seed + index) % SEEDS,
            max_tokens=self._params.max_new_tokens,
            system=self._params.system,
        )

    def position(self, item_no: int, request: CompletionRequest) -> int:
        # first samples first: their outcome decides which others are requested
        is_first = self.least > 1
        row = item_no // self.n_of_prompt
        return request.sample_index * len(self._ids) + row if is_first else item_no


class RequestList(Plan):
    """Requests of which no prompt is known."""

    def __init__(
        self, backend: CompletionBackend, requests: Sequence[CompletionRequest], calls: CallParams
    ) -> None:
        super().__init__(backend, calls)
        self._requests = requests
        self.keys = [cache_key(backend, request) for request in requests]

    def request(self, item_no: int) -> CompletionRequest:
        return self._requests[item_no]


def lane_of(backend: CompletionBackend) -> Lane:
    """The provider and model whose limits a backend's calls share."""
    return (
        (backend.provider, backend.model)
        if isinstance(backend, HostedBackend)
        else (backend.name, backend.model_version)
    )

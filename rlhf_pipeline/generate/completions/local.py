"""Completes by any transformers causal LM on this machine."""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import BackendUnavailable, ModelNotFound
from rlhf_pipeline.core.parameters import Device, Dtype
from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.generate.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    CompletionResult,
)
from rlhf_pipeline.generate.policy.causal_lm import Policy, load_policy


class LocalBackend:
    """Completes on this machine, offline, in batches; every request has its own seed, so a batch of
    one equals a batch of eight.
    """

    name = "local"
    Params: ClassVar[type[BaseModel]] = NoParams
    # Shorter rows of a batch are padded, and the padding is computed too.
    likes_equal_lengths = True

    def __init__(
        self,
        policy: str | Path | Policy,
        model_version: str,
        *,
        device: Device = "cpu",
        dtype: Dtype = "float32",
    ) -> None:
        self.policy = policy  # a loaded policy, or its folder or hub id
        self.model_version = model_version
        self.device = device
        self.dtype: Dtype = dtype

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        """The champion policy."""
        return cls(*policy(), device=settings.device, dtype=settings.dtype)

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        policy = self._policy
        # One call of the policy has one limit of tokens.
        for max_tokens, same in groupby(requests, key=attrgetter("max_tokens")):
            yield from _complete(policy, list(same), max_tokens)

    @cached_property
    def _policy(self) -> Policy:
        if isinstance(self.policy, Policy):
            return self.policy
        try:
            return load_policy(self.policy, device=self.device, dtype=self.dtype)
        except ModelNotFound as cause:
            raise BackendUnavailable(
                f"The local backend has no policy to complete with: {cause}"
            ) from cause


def _complete(
    policy: Policy, requests: Sequence[CompletionRequest], max_tokens: int
) -> Iterator[CompletionResult]:
    room = policy.context_length - max_tokens
    lengths = [policy.count_prompt_tokens(r.prompt) for r in requests]
    # A prompt that does not fit must not fail its batch.
    fitting_requests = [r for r, length in zip(requests, lengths, strict=True) if length <= room]
    started = time.perf_counter()
    generations = iter(
        policy.generate(
            [r.prompt for r in fitting_requests],
            temperature=[r.temperature for r in fitting_requests],
            top_p=[r.top_p for r in fitting_requests],
            seeds=[r.seed for r in fitting_requests],
            max_new_tokens=max_tokens,
            batch_size=max(1, len(fitting_requests)),
        )
    )
    share = (time.perf_counter() - started) * 1000 / max(len(fitting_requests), 1)
    for length in lengths:
        if length > room:
            yield CompletionResult.failed(
                f"The prompt has {length} tokens; with {max_tokens} new ones that is more than the "
                f"{policy.context_length} of {policy.name}. Shorten the prompt or lower "
                f"max_new_tokens."
            )
            continue
        generation = next(generations)
        yield CompletionResult(
            text=generation.text,
            n_prompt_tokens=generation.n_prompt_tokens,
            n_tokens=generation.n_tokens,
            latency_ms=share,
            finish_reason=generation.finish_reason,
        )

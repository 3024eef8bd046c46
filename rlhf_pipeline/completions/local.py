"""Completes by any transformers causal LM on this machine."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel

from rlhf_pipeline.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    CompletionResult,
)
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import BackendUnavailable, ModelNotFound
from rlhf_pipeline.parameters import Device, Dtype
from rlhf_pipeline.plugins import NoParams
from rlhf_pipeline.policy.causal_lm import Policy, load_policy

OnRow = Callable[[int, str], None]  # receives pieces of one request's text


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
        yield from self.stream(requests, None)

    def stream(
        self, requests: Sequence[CompletionRequest], on_text: OnRow | None
    ) -> Iterator[CompletionResult]:
        """`complete`; `on_text` receives the number of a request and each piece of its text."""
        policy = self._policy
        # One call of the policy has one limit of tokens.
        for max_tokens, same in groupby(
            enumerate(requests), key=lambda numbered: numbered[1].max_tokens
        ):
            yield from _complete(policy, list(same), max_tokens, on_text)

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
    policy: Policy,
    numbered: Sequence[tuple[int, CompletionRequest]],
    max_tokens: int,
    on_text: OnRow | None,
) -> Iterator[CompletionResult]:
    room = policy.context_length - max_tokens
    lengths = [policy.count_prompt_tokens(r.prompt) for _, r in numbered]
    # A prompt that does not fit must not fail its batch.
    fitting = [one for one, length in zip(numbered, lengths, strict=True) if length <= room]
    numbers = [number for number, _ in fitting]
    asked = [request for _, request in fitting]
    started = time.perf_counter()
    made = iter(
        policy.generate(
            [r.prompt for r in asked],
            temperature=[r.temperature for r in asked],
            top_p=[r.top_p for r in asked],
            seeds=[r.seed for r in asked],
            max_new_tokens=max_tokens,
            batch_size=max(1, len(asked)),
            on_text=on_text and (lambda row, piece: on_text(numbers[row], piece)),
        )
    )
    share = (time.perf_counter() - started) * 1000 / max(len(fitting), 1)
    for length in lengths:
        if length > room:
            yield CompletionResult.failed(
                f"The prompt has {length} tokens; with {max_tokens} new ones that is more than the "
                f"{policy.context_length} of {policy.name}. Shorten the prompt or lower "
                f"max_new_tokens."
            )
            continue
        one = next(made)
        yield CompletionResult(
            text=one.text,
            n_prompt_tokens=one.n_prompt_tokens,
            n_tokens=one.n_tokens,
            latency_ms=share,
            finish_reason=one.finish_reason,
        )

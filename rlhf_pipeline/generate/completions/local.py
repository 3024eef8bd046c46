"""Completes by any transformers causal LM on this machine."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import BackendUnavailable, CompletionError, ModelNotFound
from rlhf_pipeline.core.parameters import Device, Dtype
from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.generate.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    CompletionResult,
    OnText,
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
        policy = self.loaded_policy
        # One call of the policy has one limit of tokens.
        for max_tokens, same in groupby(requests, key=attrgetter("max_tokens")):
            yield from _complete(policy, list(same), max_tokens)

    def stream(
        self,
        request: CompletionRequest,
        on_text: OnText,
        is_cancelled: Callable[[], bool],
        *,
        is_fitted: bool = False,
    ) -> CompletionResult:
        """The same completion as by `complete`, passed on in pieces while it is made; ends at the
        next token once `is_cancelled`. With `is_fitted` it ends where the context is full, if that
        is before its `max_tokens`.
        """
        policy = self.loaded_policy
        text = TextStream(policy.decode_text, on_text, request.stop, is_cancelled)
        started = time.perf_counter()
        try:
            room = policy.context_length - policy.count_prompt_tokens(request.prompt)
            fitting = min(request.max_tokens, max(room, 1))
            generated = policy.stream(
                request.prompt,
                text.follow,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                max_new_tokens=fitting if is_fitted else request.max_tokens,
            )
        except CompletionError as cause:
            return CompletionResult.failed(str(cause))
        return CompletionResult(
            text=text.finish(generated.text),
            n_prompt_tokens=generated.n_prompt_tokens,
            n_tokens=generated.n_tokens,
            latency_ms=(time.perf_counter() - started) * 1000,
            finish_reason="stop" if text.is_stopped else generated.finish_reason,
        )

    @cached_property
    def loaded_policy(self) -> Policy:
        if isinstance(self.policy, Policy):
            return self.policy
        try:
            return load_policy(self.policy, device=self.device, dtype=self.dtype)
        except ModelNotFound as cause:
            raise BackendUnavailable(
                f"The local backend has no policy to complete with: {cause}"
            ) from cause


class TextStream:
    """Passes on a text while its tokens come, and ends it before the first of the texts `stop`."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        on_text: OnText,
        stop: Sequence[str],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.is_stopped = False
        self._decode = decode
        self._on_text = on_text
        self._stop = stop
        self._is_cancelled = is_cancelled
        self._sent = ""

    def follow(self, tokens: Sequence[int]) -> bool:
        """Take all tokens so far; returns whether the text ends here."""
        text = self._cut(self._decode(tokens))
        if not self.is_stopped:
            # the next token may complete a character or a stop text
            n_held = max((len(end) - 1 for end in self._stop), default=0)
            text = text[: len(text) - n_held].rstrip("\ufffd")
        self._send(text)
        return self.is_stopped or self._is_cancelled()

    def finish(self, text: str) -> str:
        """Pass on the rest of the whole text; returns it as far as it is wanted."""
        text = self._cut(text)
        self._send(text)
        return text

    def _cut(self, text: str) -> str:
        cut = cut_before(text, self._stop)
        self.is_stopped = self.is_stopped or len(cut) < len(text)
        return cut

    def _send(self, text: str) -> None:
        if len(text) > len(self._sent) and text.startswith(self._sent):
            self._on_text(text[len(self._sent) :])
            self._sent = text


def cut_before(text: str, stop: Sequence[str]) -> str:
    """The text before the first of the texts `stop` in it.

    >>> cut_before("one, two; three", [";", ","])
    'one'
    """
    return text[: min((i for end in stop if (i := text.find(end)) >= 0), default=len(text))]


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

"""Fills in sentences without a model: the null backend."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import ClassVar, Self

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.generate.completions.base import (
    ChampionPolicy,
    CompletionRequest,
    CompletionResult,
)

OPENINGS = (
    "You asked:",
    "The question is:",
    "This is about:",
    "Here is what was asked:",
    "In short, you want to know:",
)
CLOSINGS = (
    "I have no model behind me, so I cannot say more.",
    "A model would continue from here.",
    "There is nothing to add without a model.",
    "Please ask a real policy for the rest.",
    "This text was filled in from a template.",
)
LONGEST_QUOTE = 200  # characters of the prompt that are quoted


class TemplateBackend:
    """Completes offline, instantly and deterministically, so that the loop can run without a
    policy.
    """

    name = "template"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(self, model_version: str = "template-1") -> None:
        self.model_version = model_version

    @classmethod
    def from_settings(cls, settings: Settings, policy: ChampionPolicy, *, timeout_s: float) -> Self:
        return cls()

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        for request in requests:
            yield _fill_template(request)


def _fill_template(request: CompletionRequest) -> CompletionResult:
    variants = list(product(OPENINGS, CLOSINGS))
    # Temperature 0 is greedy: the first variant, whatever the seed.
    variant = (
        int(np.random.default_rng(request.seed).integers(len(variants)))
        if request.temperature > 0
        else 0
    )
    opening, closing = variants[variant]
    words = f"{opening} {render_transcript(request.prompt)[:LONGEST_QUOTE]} {closing}".split()
    completion = words[: request.max_tokens]
    return CompletionResult(
        text=" ".join(completion),
        n_prompt_tokens=len(request.prompt.split()),
        n_tokens=len(completion),
        finish_reason="stop" if len(completion) == len(words) else "length",
    )

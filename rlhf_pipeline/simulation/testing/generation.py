"""Checks prompt generators and completion backends: exact quotas, repeatable days and texts."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from rlhf_pipeline.core.conversations import prompt_id
from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.core.records import Category, Difficulty
from rlhf_pipeline.generate.completions import (
    CompletionBackend,
    CompletionRequest,
    CompletionResult,
    HostedBackend,
)
from rlhf_pipeline.generate.prompts import PromptParams, generate_with, quotas
from rlhf_pipeline.generate.prompts.base import PromptGenerator
from rlhf_pipeline.simulation.testing.members import check_member

DAY, NEXT_DAY = "2026-01-01", "2026-01-02"
MAX_TOKENS = 12


def check_generator(
    make: Callable[[], PromptGenerator],
    *,
    categories: Iterable[str] = tuple(Category),
    has_difficulties: bool = True,
) -> None:
    """Check a generator against its protocol. `make` returns a new one: a class, or a function.

    `categories` are the generator's categories; it needs about 60 prompts, ten of each. Pass
    `has_difficulties=False` if all its prompts are equally difficult. Raises AssertionError with
    the promise and the actual result.
    """
    name = make().name
    check_member(type(make()))
    shares = dict.fromkeys(categories, 1.0)
    params = PromptParams(n=50, categories=shares, seed=3)
    first = generate_with(make(), params, day=DAY)
    _check_frame(name, first, quotas(50, shares))
    repeated = generate_with(make(), params, day=DAY)
    assert repeated.equals(first), f"{name}: the same params and day give other prompts."
    other = generate_with(make(), params, day=NEXT_DAY)
    assert other["seed"].iloc[0] != first["seed"].iloc[0], f"{name}: two days share a seed."
    if has_difficulties:
        _check_difficulties(name, make, shares)


def _check_frame(name: str, frame: pd.DataFrame, expected_counts: dict[str, int]) -> None:
    assert check_frame(frame, PROMPTS).equals(frame), f"{name}: the frame breaks its schema."
    counts = frame["category"].value_counts().to_dict()
    assert counts == expected_counts, (
        f"{name}: {counts} prompts by category, not {expected_counts}."
    )
    sources = sorted(set(frame["source"]))
    assert sources == [name], f"{name}: the column `source` has {sources}."
    assert frame["seed"].nunique() == 1, f"{name}: one day has several seeds."
    assert frame["prompt_id"].is_unique, f"{name}: a prompt comes twice."
    for text, reference, stored in frame[["text", "reference", "prompt_id"]].itertuples(
        index=False
    ):
        expected = prompt_id(text, None if pd.isna(reference) else reference)
        assert stored == expected, f"{name}: {text!r} has another id than its text and reference."


def _check_difficulties(
    name: str, make: Callable[[], PromptGenerator], shares: dict[str, float]
) -> None:
    equally = dict.fromkeys(Difficulty, 1.0)
    params = PromptParams(n=6 * len(shares), categories=shares, difficulties=equally)
    frame = generate_with(make(), params, day=DAY)
    counts = frame.groupby(["category", "difficulty"]).size()
    assert set(counts) == {2}, f"{name}: difficulties are not shared equally:\n{counts}"


def check_backend(make: Callable[[], CompletionBackend], *, secret: str | None = None) -> None:
    """Check a backend against its protocol. `make` returns a new one: a class, or a function.

    Sends it about 40 short requests; give a provider's backend the address of a test server.
    `secret` is the backend's API key, which must never appear in output. Raises AssertionError with
    the broken promise.
    """
    backend = make()
    name = backend.name
    assert name, f"{type(backend).__name__}.name is {name!r}, not the name it is registered by."
    assert backend.model_version, (
        f"{name}: model_version is {backend.model_version!r}. It is part of a completion's id, so "
        "it must name the model."
    )
    requests = [
        build_request(prompt, seed=seed, sample_index=seed)
        for prompt in ("Why?", "Name three rivers of Europe.")
        for seed in range(4)
    ]
    results = complete(backend, requests)
    _check_results(name, requests, results)
    texts = [result.text for result in results]
    alone = [complete(backend, [request])[0].text for request in requests]
    assert alone == texts, f"{name}: a request alone gets another text than in a batch."
    backward = [result.text for result in complete(backend, requests[::-1])]
    assert backward[::-1] == texts, f"{name}: results do not follow the order of the requests."
    repeated = [result.text for result in complete(make(), requests)]
    assert repeated == texts, f"{name}: a new backend gives other texts for the same requests."
    greedy = [build_request(temperature=0.0, seed=seed) for seed in range(3)]
    assert len({result.text for result in complete(backend, greedy)}) == 1, (
        f"{name}: at temperature 0 the text depends on the seed."
    )
    assert complete(backend, []) == [], f"{name}: no requests give results."
    if secret is not None:
        assert secret not in repr(backend) + str(backend), f"{name}: repr shows the key."


def build_request(prompt: str = "Why?", **changes: Any) -> CompletionRequest:
    values = {
        "prompt_id": "p",
        "prompt": prompt,
        "temperature": 1.0,
        "top_p": 0.9,
        "sample_index": 0,
        "seed": 7,
        "max_tokens": MAX_TOKENS,
    }
    return CompletionRequest(**(values | changes))


def complete(
    backend: CompletionBackend, requests: Sequence[CompletionRequest]
) -> list[CompletionResult]:
    """Return a result for each request, with single calls if the backend is hosted."""
    if isinstance(backend, HostedBackend):
        return asyncio.run(_call_each(backend, requests))
    return list(backend.complete(requests))


async def _call_each(
    backend: HostedBackend, requests: Sequence[CompletionRequest]
) -> list[CompletionResult]:
    replies = [await backend.call(request) for request in requests]
    await backend.close()
    return [
        CompletionResult(
            text=reply.text,
            n_prompt_tokens=reply.n_prompt_tokens,
            n_tokens=reply.n_tokens,
            finish_reason=reply.finish_reason,
            error=reply.error,
        )
        for reply in replies
    ]


def _check_results(
    name: str, requests: Sequence[CompletionRequest], results: Sequence[CompletionResult]
) -> None:
    assert len(results) == len(requests), (
        f"{name}: {len(results)} results for {len(requests)} requests."
    )
    for result in results:
        assert result.error is None, f"{name}: a request failed: {result.error}"
        assert result.finish_reason in ("stop", "length"), (
            f"{name}: the finish reason is {result.finish_reason!r}, not stop or length."
        )
        assert result.n_prompt_tokens > 0, f"{name}: the prompt is counted as 0 tokens."
        assert 0 < result.n_tokens <= MAX_TOKENS, (
            f"{name}: the completion has {result.n_tokens} tokens; max_tokens is {MAX_TOKENS}."
        )
    assert len({result.text for result in results}) > 1, (
        f"{name}: other prompts and seeds give the same text."
    )

"""k completions of every prompt over a grid of parameters. Knows backends and the cache by protocol; knows no model and no store."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.completions.base import CompletionBackend, CompletionRequest, CompletionResult
from rlhf_pipeline.errors import CompletionError, ConfigurationError
from rlhf_pipeline.frames import COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.protocols import CompletionCache, Progress, silent
from rlhf_pipeline.records import content_hash, content_id

SEEDS = 2**31  # what providers and torch both take


class CompletionParams(BaseModel):
    """How many completions of a prompt, sampled how."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(default=4, ge=1, le=64, description="Completions per prompt")
    temperatures: list[float] = Field(default=[0.7, 1.0], min_length=1, description="Sampling temperatures, 0 to 2; 0 is greedy")
    top_ps: list[float] = Field(default=[1.0, 0.9], min_length=1, description="Nucleus masses, above 0 and up to 1")
    max_new_tokens: int = Field(default=48, ge=1, le=32768, description="Tokens after which a completion is cut off")
    seed: int = Field(default=0, ge=0, description="Every sample's own seed is derived from it, the day and the prompt")
    batch_size: int = Field(default=64, ge=1, le=4096, description="Requests handed to the backend at once")


def complete_prompts(
    prompts: pd.DataFrame,
    backend: CompletionBackend,
    params: CompletionParams,
    *,
    cache: CompletionCache | None = None,
    progress: Progress = silent,
) -> pd.DataFrame:
    """`params.k` completions of each row of `prompts` (PROMPTS), as COMPLETIONS in the order of the prompts.

    The grid temperatures x top_ps is cycled over the k samples, each with a seed of its own that depends on neither
    the batch nor the order of the prompts. What `cache` holds is not generated again, and each finished batch goes
    there at once. A request that failed is a row with an empty text and its `error`.

    Raises ConfigurationError for parameters out of range, BackendUnavailable when the backend cannot work at all,
    CompletionError when every single request failed.
    """
    prompts = check_frame(prompts, PROMPTS)
    requests = list(_requests(prompts, params))
    results: list[CompletionResult] = []
    for start in range(0, len(requests), params.batch_size):
        results += _complete_batch(requests[start : start + params.batch_size], backend, cache)
        n_failed = sum(r.error is not None for r in results)
        progress(len(results), len(requests), f"{n_failed} failed" if n_failed else "")
    if results and all(r.error is not None for r in results):
        raise CompletionError(
            f"All {len(results)} completions by {backend.name} ({backend.model_version}) failed; the first: {results[0].error}"
        )
    days = [day for day in prompts["day"] for _ in range(params.k)]
    rows = [_row(day, request, result, backend) for day, request, result in zip(days, requests, results, strict=True)]
    return check_frame(pd.DataFrame(rows, columns=list(COMPLETIONS.columns)), COMPLETIONS)


def parameter_grid(params: CompletionParams) -> list[tuple[float, float]]:
    """(temperature, top_p) of samples 0 to k-1."""
    bad = [t for t in params.temperatures if not 0 <= t <= 2] + [p for p in params.top_ps if not 0 < p <= 1]
    if bad:
        raise ConfigurationError(f"{bad} cannot be sampled with. Temperatures go from 0 to 2, top_ps from above 0 to 1.")
    grid = list(product(params.temperatures, params.top_ps))
    return [grid[i % len(grid)] for i in range(params.k)]


def cache_key(backend: CompletionBackend, request: CompletionRequest) -> str:
    """What decides the text, and nothing else: neither the prompt's id nor the batch."""
    sampling = (request.temperature, request.top_p, request.seed, request.sample_index, request.max_tokens)
    return content_id("completion", backend.name, backend.model_version, request.prompt, *sampling)


def _requests(prompts: pd.DataFrame, params: CompletionParams) -> Iterator[CompletionRequest]:
    grid = parameter_grid(params)
    for day, prompt_id, text in zip(prompts["day"], prompts["prompt_id"], prompts["text"], strict=True):
        # By day too: a prompt that comes again another day gets other completions, with ids of their own.
        first_seed = int(content_hash("seed", params.seed, day, prompt_id)[:12], 16)
        for index, (temperature, top_p) in enumerate(grid):
            yield CompletionRequest(
                prompt_id=prompt_id,
                prompt=text,
                temperature=temperature,
                top_p=top_p,
                sample_index=index,
                seed=(first_seed + index) % SEEDS,
                max_tokens=params.max_new_tokens,
            )


def _complete_batch(
    requests: Sequence[CompletionRequest], backend: CompletionBackend, cache: CompletionCache | None
) -> list[CompletionResult]:
    keys = [cache_key(backend, r) for r in requests]
    known = {key: CompletionResult.from_json(text) for key, text in (cache.get_many(keys) if cache else {}).items()}
    missing = {key: r for key, r in zip(keys, requests, strict=True) if key not in known}
    made: dict[str, CompletionResult] = {}
    try:
        if missing:
            _ask(backend, missing, made)
    finally:
        # Also when the backend gave up half-way: what is paid for is kept. Failures are asked for again next time.
        if cache:
            cache.put_many({key: result.model_dump_json() for key, result in made.items() if result.error is None})
    return [made[key] if key in made else known[key] for key in keys]


def _ask(backend: CompletionBackend, missing: Mapping[str, CompletionRequest], made: dict[str, CompletionResult]) -> None:
    """Puts the result of each missing request into `made` as it comes."""
    results = backend.complete(list(missing.values()))
    for key, result in zip(missing, results, strict=False):
        made[key] = _judged(result)
    if len(made) < len(missing) or next(results, None) is not None:
        raise CompletionError(f"Backend {backend.name} did not give one result for each of {len(missing)} requests. Mend its complete().")


def _judged(result: CompletionResult) -> CompletionResult:
    """Nothing to read is a failure: nobody could judge it."""
    if result.error is None and not (result.text or "").strip():
        return result.model_copy(update={"error": f"The completion is empty (finish reason {result.finish_reason})."})
    return result


def _row(day: str, request: CompletionRequest, result: CompletionResult, backend: CompletionBackend) -> dict[str, object]:
    text = (result.text or "") if result.error is None else ""
    sampling = (request.temperature, request.top_p, request.seed, request.max_tokens)
    return {
        "day": day,
        "completion_id": content_id(request.prompt_id, backend.model_version, backend.name, sampling, request.sample_index, text),
        "prompt_id": request.prompt_id,
        "text": text,
        "backend": backend.name,
        "model_version": backend.model_version,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "sample_index": request.sample_index,
        "seed": request.seed,
        "n_prompt_tokens": result.n_prompt_tokens,
        "n_tokens": result.n_tokens,
        "latency_ms": result.latency_ms,
        "finish_reason": result.finish_reason,
        "error": result.error,
    }

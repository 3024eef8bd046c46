"""The local backend on a tiny random policy."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.generate.completions import (
    CompletionParams,
    CompletionRequest,
    LocalBackend,
)
from tests.ledgers import complete_frame


def request(prompt: str, max_tokens: int = 8) -> CompletionRequest:
    return CompletionRequest(
        prompt_id="p",
        prompt=prompt,
        temperature=1,
        top_p=1,
        sample_index=0,
        seed=3,
        max_tokens=max_tokens,
    )


def test_too_long_prompt_fails_alone(tiny_policy: Path) -> None:
    results = list(
        LocalBackend(tiny_policy, "v").complete(
            [request("short"), request("long " * 100), request("brief")]
        )
    )
    assert [r.error is None for r in results] == [True, False, True]
    assert "128" in str(results[1].error)


def test_each_request_keeps_its_own_limit(tiny_policy: Path) -> None:
    results = list(
        LocalBackend(tiny_policy, "v").complete([request("a", 2), request("a", 5), request("a", 2)])
    )
    assert [r.n_tokens for r in results] == [2, 5, 2]


def test_the_whole_stage_is_reproducible(prompts: pd.DataFrame, tiny_policy: Path) -> None:
    runs = [
        complete_frame(
            prompts,
            LocalBackend(tiny_policy, "v"),
            CompletionParams(max_new_tokens=6, batch_size=b),
        )
        for b in (3, 64)
    ]
    pd.testing.assert_frame_equal(*(run.drop(columns="latency_ms") for run in runs))

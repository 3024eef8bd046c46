"""The local backend on a tiny random policy."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.generate.completions import (
    CompletionParams,
    CompletionRequest,
    CompletionResult,
    LocalBackend,
)
from rlhf_pipeline.generate.completions.local import TextStream
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY
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


def stream(backend: LocalBackend, sample: CompletionRequest) -> tuple[CompletionResult, list[str]]:
    pieces: list[str] = []
    return backend.stream(sample, pieces.append, lambda: False), pieces


def test_streamed_pieces_are_the_completion_that_is_sampled() -> None:
    backend = LocalBackend(EMBEDDED_POLICY, "v")
    longer = request("Write a calm line about the moon in the city.", 24)
    [whole] = backend.complete([longer])
    streamed, pieces = stream(backend, longer)
    assert len(pieces) > 3
    assert "".join(pieces) == streamed.text == whole.text
    same = ("n_prompt_tokens", "n_tokens", "finish_reason")
    assert [getattr(streamed, n) for n in same] == [getattr(whole, n) for n in same]
    end = str(whole.text)[4:8]
    stopped, pieces = stream(backend, longer.model_copy(update={"stop": (end,)}))
    assert "".join(pieces) == stopped.text == str(whole.text).partition(end)[0]
    assert stopped.finish_reason == "stop"
    assert stopped.n_tokens < whole.n_tokens


def test_cancelled_stream_ends_at_the_next_token(tiny_policy: Path) -> None:
    backend = LocalBackend(tiny_policy, "v")
    assert backend.stream(request("a", 50), lambda _: None, lambda: True).n_tokens == 1


def test_split_character_is_passed_on_whole() -> None:
    pieces: list[str] = []
    text = TextStream(lambda ids: bytes(ids).decode(errors="replace"), pieces.append, (), bool)
    for n in range(1, len("é!".encode()) + 1):
        text.follow(list("é!".encode()[:n]))
    assert pieces == ["é", "!"]

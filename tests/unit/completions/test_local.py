"""The local backend on a tiny random policy."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.completions import (
    CompletionParams,
    CompletionRequest,
    LocalBackend,
    TemplateBackend,
    generate,
)
from tests.ledgers import complete_frame, temporary_ledger


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


def test_a_prompt_that_does_not_fit_fails_alone(tiny_policy: Path) -> None:
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


def test_texts_are_told_while_they_are_made_and_joined_they_are_the_completions(
    prompts: pd.DataFrame, tiny_policy: Path
) -> None:
    heard: dict[int, list[str]] = {}
    order: list[int] = []

    def listen(item_no: int, piece: str) -> None:
        heard.setdefault(item_no, []).append(piece)
        order.append(item_no)

    params = CompletionParams(k=2, max_new_tokens=12, batch_size=64)
    made = generate(
        prompts, [LocalBackend(tiny_policy, "v")], params, ledger=temporary_ledger(), on_text=listen
    )
    unwatched = generate(
        prompts, [LocalBackend(tiny_policy, "v")], params, ledger=temporary_ledger()
    )
    assert made.frame["text"].tolist() == unwatched.frame["text"].tolist()
    rows = made.frame[made.frame["error"].isna()]
    assert len(rows) >= 8
    assert ["".join(heard[i]) for i in rows.index] == rows["text"].tolist()
    assert len(set(order[: len(rows)])) > len(rows) // 2, (
        "all of a batch are heard side by side, none only once it is whole"
    )
    assert max(len(pieces) for pieces in heard.values()) > 4


def test_a_backend_that_cannot_be_watched_is_heard_once_a_text_is_there(
    prompts: pd.DataFrame,
) -> None:
    heard: list[tuple[int, str]] = []
    made = generate(
        prompts,
        [TemplateBackend()],
        CompletionParams(k=1),
        ledger=temporary_ledger(),
        on_text=lambda *told: heard.append(told),
    )
    assert heard == list(enumerate(made.frame["text"]))

"""The deployed policy by day: what counts as a refusal, and what a day comes to."""

from collections.abc import Sequence

import pandas as pd
import pytest

from rlhf_pipeline.watch.drift.policy import (
    PromptMean,
    find_refusals,
    summarise_policy_day,
)

POLICY, MODEL = "demo.policy@1", "demo.reward_model@2"


def completions(texts: Sequence[str | None], **more: object) -> pd.DataFrame:
    n = len(texts)
    return pd.DataFrame(
        {
            "completion_id": [f"x{i}" for i in range(n)],
            "prompt_id": [f"p{i // 2}" for i in range(n)],
            "text": list(texts),
            "model_version": POLICY,
            "finish_reason": "stop",
            "error": None,
        }
    ).assign(**more)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "I'm sorry, but I can't help with that.",
        "I can\N{RIGHT SINGLE QUOTATION MARK}t assist with this request.",
        "Sorry. I am unable to provide instructions for that.",
        "As an AI language model, I cannot have opinions.",
    ],
)
def test_empty_texts_and_sentences_of_refusal_are_refusals(text):
    assert find_refusals(completions([text])).tolist() == [True]


@pytest.mark.parametrize(
    "text",
    [
        "I can't wait to see you!",
        "Sorry for the delay; the meeting is on Friday.",
        "I cannot recommend this film enough.",
        "x" * 400 + " I can't help with that.",
        "0",
    ],
)
def test_other_texts_are_not_refusals(text):
    assert find_refusals(completions([text])).tolist() == [False]


def test_a_failed_call_is_a_refusal_only_if_the_model_refused():
    errors = [
        "gpt-x refused: no",
        "gpt-x sent an empty completion (finish reason stop).",
        "gpt-x did not answer within 60 s.",
        "401: the key was refused: check it",
    ]
    failed = completions([None] * 4, finish_reason="error", error=errors)
    assert find_refusals(failed).tolist() == [True, True, False, False]
    filtered = completions([None], finish_reason="content_filter", error="stopped")
    assert find_refusals(filtered).tolist() == [True]


def test_a_day_is_summarised_over_its_prompts():
    frame = completions(["four", "", "eighteen", "eighteen", "lost", "other"])
    frame.loc[4, ["text", "error", "finish_reason"]] = [None, "did not answer", "error"]
    frame.loc[5, "model_version"] = "demo.policy@2"
    comparisons = pd.DataFrame(
        {
            "comparison_id": ["c0", "c1"],
            "prompt_id": ["p0", "p1"],
            "completion_a_id": ["x0", "x2"],
            "completion_b_id": ["x1", "y"],
            "model_version_a": [POLICY, POLICY],
            "model_version_b": [POLICY, "demo.policy@2"],
        }
    )
    predictions = pd.DataFrame(
        {
            "comparison_id": ["c0", "c1", "c1"],
            "reward_model": [MODEL, MODEL, "another@1"],
            "score_a": [1.0, 4.0, 100.0],
            "score_b": [2.0, 9.0, 100.0],
        }
    )
    day = summarise_policy_day("2026-01-01", frame, comparisons, predictions)
    assert day is not None
    assert (day.policy, day.n_completions, day.reward_model) == (POLICY, 4, MODEL)
    assert day.refused == PromptMean(n=2, mean=0.25, variance=0.125)
    assert day.length.mean == 5
    assert day.reward is not None
    assert day.reward.mean == 2.75  # of prompts: 1.5 and 4
    unscored = summarise_policy_day("2026-01-01", frame, comparisons, predictions.iloc[:0])
    assert unscored is not None
    assert unscored.reward is None
    failed = completions(["x"], error="did not answer")
    assert summarise_policy_day("2026-01-01", failed, comparisons, predictions) is None

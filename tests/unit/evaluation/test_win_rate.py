import numpy as np
import pandas as pd

from rlhf_pipeline.evaluation.win_rate import (
    compare_checkable_answers,
    grade_answers,
    score_wins,
    win_rate,
)


def samples(candidate, champion, prompts=None):
    n = len(candidate)
    return pd.DataFrame(
        {
            "prompt_id": prompts or [f"p{i}" for i in range(n)],
            "score_candidate": candidate,
            "score_champion": champion,
        },
        dtype=object,
    ).astype({"score_candidate": float, "score_champion": float})


def test_a_higher_score_wins_and_an_equal_one_is_half_a_win():
    assert score_wins(np.array([2.0, 1.0, 1.0]), np.array([1.0, 2.0, 1.0])).tolist() == [
        1.0,
        0.0,
        0.5,
    ]


def test_the_win_rate_does_not_depend_on_row_order():
    rng = np.random.default_rng(2)
    frame = samples(rng.normal(size=40), rng.normal(size=40))
    assert win_rate(frame, seed=0) == win_rate(frame.sample(frac=1, random_state=1), seed=0)


def test_a_clearly_better_candidate_is_told_from_an_equal_one():
    rng = np.random.default_rng(5)
    champion = rng.normal(size=300)
    assert win_rate(samples(champion + rng.normal(0.8, 1, size=300), champion), seed=0).low > 0.5
    equal = win_rate(samples(champion + rng.normal(0, 1, size=300), champion), seed=0)
    assert equal.low < 0.5 < equal.high


def test_only_prompts_with_a_reference_are_checked():
    right = grade_answers(
        pd.Series(["7", None, "Paris"]), pd.Series(["It is 7.", "Hello.", "It is Rome."])
    )
    assert right[[0, 2]].tolist() == [1.0, 0.0]
    assert np.isnan(right[1])


def test_the_difference_is_paired_by_prompt():
    frame = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(60)],
            "right_candidate": [1.0, 0.0] * 30,
            "right_champion": [1.0, 0.0] * 30,
        }
    )
    result = compare_checkable_answers(frame, seed=0)
    assert result.candidate.low < 0.5 < result.candidate.high
    assert (result.difference.low, result.difference.high) == (0.0, 0.0)


def test_without_checkable_prompts_nothing_is_said():
    frame = pd.DataFrame(
        {"prompt_id": ["p"], "right_candidate": [np.nan], "right_champion": [np.nan]}
    )
    assert compare_checkable_answers(frame, seed=0) is None

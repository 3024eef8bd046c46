import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.evaluation.checkable_answers import compare_checkable_answers, grade_answers
from rlhf_pipeline.evaluation.intervals import bootstrap_mean, mean_over_prompts
from rlhf_pipeline.evaluation.win_rate import score_wins, win_rate


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


def test_the_interval_covers_a_known_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = [
        interval.low <= 0.6 <= interval.high
        for interval in (
            bootstrap_mean(rng.binomial(1, 0.6, size=200), seed=i, n_resamples=300)
            for i in range(200)
        )
    ]
    assert 0.9 <= np.mean(covered) <= 0.99


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_a_bootstrap_in_parts_is_as_wide_as_one_in_a_piece():
    parts, whole = (
        bootstrap_mean(np.arange(30.0), seed=0, n_resamples=1000, max_draws=draws)
        for draws in (100, 10**6)
    )
    assert parts.value == whole.value == 14.5
    assert parts.low == pytest.approx(whole.low, abs=0.6)
    assert parts.high == pytest.approx(whole.high, abs=0.6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named_by_row(bad):
    with pytest.raises(InvalidScores, match="first in row 1"):
        bootstrap_mean([1.0, bad], seed=0)


def test_no_rows_have_no_mean():
    with pytest.raises(NotEnoughData):
        bootstrap_mean([], seed=0)


def test_samples_of_one_prompt_count_as_one_observation():
    frame = pd.DataFrame({"prompt_id": ["a"] * 10 + ["b"], "x": [1.0] * 10 + [0.0]})
    interval = mean_over_prompts(frame, "x", seed=0)
    assert (interval.value, interval.n) == (0.5, 2)


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

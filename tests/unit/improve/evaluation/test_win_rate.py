import numpy as np
import pandas as pd

from rlhf_pipeline.improve.evaluation.win_rate import (
    compare_by_category,
    compare_checkable_answers,
    grade_answers,
    length_controlled_win_rate,
    score_wins,
    win_rate,
)

NO_MEMBERS = np.zeros((0, 0))  # a judge whose error is unknown


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


def test_the_interval_contains_the_judges_error():
    """Judges of eight weights, each known within a sampling error as large as its members'."""
    rng = np.random.default_rng(0)
    coverage = {"prompts alone": 0, "with the judge's error": 0}
    for _ in range(200):
        true = rng.normal(size=8) / 3
        fitted = true + rng.normal(size=8) * 0.15
        members = fitted + rng.normal(size=(4, 8)) * 0.15
        gaps = rng.normal(0.1, 1, size=(300, 8))
        truth = np.mean(rng.normal(0.1, 1, size=(20_000, 8)) @ true > 0)
        frame = samples(gaps @ members.mean(axis=0), np.zeros(300))
        wins = score_wins(members @ gaps.T, np.zeros(300))
        for name, judge_errors in zip(coverage, (None, wins), strict=True):
            rate = win_rate(frame, judge_errors, seed=0, n_resamples=200)
            coverage[name] += rate.low <= truth <= rate.high
    assert coverage["prompts alone"] < 180
    assert coverage["with the judge's error"] >= 186


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


def make_samples(lengths_candidate, lengths_champion, win, samples_per_prompt=1):
    return pd.DataFrame(
        {
            "prompt_id": [f"p{i // samples_per_prompt}" for i in range(len(win))],
            "completion_candidate": ["x" * int(n) for n in lengths_candidate],
            "completion_champion": ["x" * int(n) for n in lengths_champion],
            "win": win,
            "score_candidate": np.asarray(win, dtype=float),
            "score_champion": 0.5,
        }
    )


def longer_texts(gain, liking_of_length, n=1200, seed=0):
    """Wins by quality, and by length; the candidate writes longer texts."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(60, 140, n), rng.integers(20, 120, n)
    difference = lengths[0] - lengths[1]
    log_odds = gain + liking_of_length * np.tanh(difference / difference.std())
    win = (rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(float)
    return make_samples(*lengths, win)


def test_win_by_length_alone_vanishes_at_equal_length():
    frame = longer_texts(gain=0.0, liking_of_length=3.0)
    assert win_rate(frame, seed=0).value > 0.7
    controlled = length_controlled_win_rate(frame, NO_MEMBERS, seed=0, n_resamples=300)
    assert controlled.low < 0.5 < controlled.high
    assert controlled.high - controlled.low < 0.15


def test_always_longer_candidate_is_unproven_at_equal_length():
    lengths = np.random.default_rng(0).integers(20, 120, 300)
    for win in (np.ones(300), (np.arange(300) % 10 > 0).astype(float)):
        frame = make_samples(2 * lengths + 1, lengths, win)
        controlled = length_controlled_win_rate(frame, NO_MEMBERS, seed=0, n_resamples=300)
        assert controlled.low < 0.5 < controlled.high


def test_a_win_by_quality_stays_at_equal_length():
    controlled = length_controlled_win_rate(
        longer_texts(gain=1.0, liking_of_length=0.0), NO_MEMBERS, seed=0, n_resamples=300
    )
    assert controlled.low < 1 / (1 + np.exp(-1.0)) < controlled.high
    assert controlled.low > 0.6


def test_equal_length_interval_has_nominal_coverage():
    n_covering = 0
    for seed in range(60):
        frame = longer_texts(gain=0.5, liking_of_length=1.0, n=200, seed=seed)
        rate = length_controlled_win_rate(frame, NO_MEMBERS, seed=0, n_resamples=200)
        n_covering += rate.low < 1 / (1 + np.exp(-0.5)) < rate.high
    assert n_covering >= 52


def test_small_categories_are_left_out_and_the_largest_is_first():
    frame = make_samples([3] * 60, [4] * 60, [1.0, 0.0, 1.0] * 20).assign(
        category=["maths"] * 35 + ["advice"] * 20 + ["rare"] * 5,
        right_candidate=[1.0] * 35 + [np.nan] * 25,
        right_champion=[0.0] * 35 + [np.nan] * 25,
    )
    maths, advice = compare_by_category(frame, min_prompts=10, seed=0, n_resamples=200)
    assert (maths.category, maths.win_rate.n, advice.category) == ("maths", 35, "advice")
    assert maths.checkable_difference.value == 1.0
    assert advice.checkable_difference is None
    assert abs(maths.reward_difference.value - (maths.win_rate.value - 0.5)) < 1e-9

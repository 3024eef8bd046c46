"""Tests of experiments hold their level at every look, find what is planted, and count sessions."""

import numpy as np
import pytest

from rlhf_pipeline.improve.experiments.effects import (
    Sessions,
    estimate_mean_effect,
    estimate_share_effect,
    find_harm_p_value,
    find_split_p_value,
    score_effects,
    score_preferences,
    trace_share,
)

RAMP = np.repeat([0.1, 0.5, 1.0], [400, 800, 300])


def draw(seed, rates=(0.6, 0.6), splits=RAMP, trend=0.0):
    """Sessions of 0 and 1; the chance of 1 grows by `trend` from the first to the last."""
    rng = np.random.default_rng(seed)
    treated = rng.random(len(splits)) < splits
    chance = np.where(treated, rates[1], rates[0]) + np.linspace(0, trend, len(splits))
    return Sessions((rng.random(len(splits)) < chance).astype(float), treated, splits)


def test_scores_are_unbiased_and_bounded_through_ramp_and_trend():
    worlds = [draw(seed, (0.4, 0.5), trend=0.3) for seed in range(300)]
    scores = [score_effects(sessions) for sessions in worlds]
    assert {len(score.outcomes) for score in scores} == {1200}  # none where all are treated
    assert np.mean([score.outcomes.mean() for score in scores]) == pytest.approx(0.1, abs=0.01)
    naive = [w.values[w.is_treated].mean() - w.values[~w.is_treated].mean() for w in worlds]
    assert np.mean(naive) > 0.13
    for score in scores[:20]:
        assert ((score.lows <= score.outcomes) & (score.outcomes <= score.highs)).all()


def test_interval_contains_the_effect_at_every_look():
    missed = 0
    for seed in range(60):
        _, low, high = trace_share(score_effects(draw(seed, (0.55, 0.65))))
        assert (np.diff(low) >= 0).all()
        assert (np.diff(high) <= 0).all()
        missed += not ((low <= 0.1) & (high >= 0.1)).all()
    assert missed <= 4


def test_effect_names_the_arm_it_favours():
    splits = np.full(3000, 0.5)
    better = estimate_share_effect(score_effects(draw(1, (0.5, 0.6), splits)))
    worse = estimate_share_effect(score_effects(draw(1, (0.6, 0.5), splits)))
    assert (better.sign, worse.sign) == (1, -1)
    assert better.interval.low > 0 > worse.interval.high
    assert max(better.p_value, worse.p_value) < 0.05
    empty = estimate_share_effect(score_effects(draw(1, splits=splits[:0])))
    assert (empty.sign, empty.p_value, empty.interval.low, empty.interval.high) == (0, 1, -1, 1)


def test_planted_preference_is_found_and_an_equal_one_is_not():
    rng = np.random.default_rng(5)

    def estimate(shares, n=600):
        return estimate_share_effect(score_preferences(rng.choice([0, 0.5, 1], n, p=shares)))

    equal = [estimate((0.35, 0.3, 0.35)) for _ in range(200)]
    assert sum(effect.sign != 0 for effect in equal) <= 10
    planted = [estimate((0.25, 0.3, 0.45)) for _ in range(50)]
    assert sum(effect.sign == 1 for effect in planted) >= 45
    assert sum(e.interval.low <= 0.2 <= e.interval.high for e in planted) >= 46


def test_seconds_have_an_interval_after_enough_sessions():
    rng = np.random.default_rng(3)
    treated = rng.random(2000) < 0.5
    seconds = rng.lognormal(0, 0.5, 2000) * np.where(treated, 0.8, 1.0)
    sessions = Sessions(seconds, treated, np.full(2000, 0.5))
    effect = estimate_mean_effect(sessions)
    assert effect is not None
    assert effect.interval.low < -0.2 * np.exp(0.125) < effect.interval.high < 0
    assert (effect.sign, effect.p_value < 0.01) == (-1, True)
    few = Sessions(seconds[:40], treated[:40], np.full(40, 0.5))
    assert estimate_mean_effect(few) is None


def test_split_is_broken_only_if_sessions_are_lost():
    assert find_split_p_value([110, 498], [890, 502], [0.1, 0.5]) > 0.2
    assert find_split_p_value([110, 400], [890, 600], [0.1, 0.5]) < 0.001
    assert find_split_p_value([500], [0], [1.0]) == 1


def test_harm_is_more_than_the_tolerated_ratio():
    assert find_harm_p_value([18], [18], [0.1], 1.5) < 0.01
    assert find_harm_p_value([14], [100], [0.1], 1.5) > 0.5
    assert find_harm_p_value([20], [2], [0.5], 1.5) < 0.01
    assert find_harm_p_value([20], [2], [1.0], 1.5) == 1

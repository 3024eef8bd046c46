"""Chances of judgements against their definition, slopes against differences of chances."""

import itertools

import numpy as np
import pytest
from scipy.special import expit

from rlhf_pipeline.feedback.votes.graded_response import level_probabilities, slopes

FELT = np.array([-3.0, -0.4, 0.0, 0.7, 5.0])
ENDS = [(0.3, np.inf), (-0.3, 0.3), (0.3, 1.1), (-np.inf, -0.3), (0.3, 800.0)]


def log_chance(low: float, high: float, felt: np.ndarray = FELT) -> np.ndarray:
    """Of each feeling as a judgement of its own."""
    return level_probabilities(
        felt[:, None], np.full(len(felt), low), np.full(len(felt), high)
    ).log[:, 0]


@pytest.mark.parametrize(("low", "high"), ENDS)
def test_probability_is_that_of_the_interval(low: float, high: float):
    assert np.exp(log_chance(low, high)) == pytest.approx(expit(high - FELT) - expit(low - FELT))


def test_every_utility_difference_lies_in_one_interval():
    cuts = [-np.inf, -1.3, -0.3, 0.3, 1.3, np.inf]
    assert np.sum(
        [np.exp(log_chance(low, high)) for low, high in itertools.pairwise(cuts)], axis=0
    ) == pytest.approx(1.0)


@pytest.mark.parametrize(("low", "high"), ENDS)
def test_slopes_are_those_of_the_probability(low: float, high: float):
    step, n = 1e-5, len(FELT)
    probabilities = level_probabilities(FELT[:, None], np.full(n, low), np.full(n, high))
    by, tight = (
        slopes(probabilities, np.ones((n, 1)), np.ones((1, 1))),
        probabilities.odds * (1 + probabilities.odds),
    )

    def second(of_low: float, of_high: float) -> np.ndarray:
        above = log_chance(low + of_low, high + of_high)
        below = log_chance(low - of_low, high - of_high)
        return (above - 2 * log_chance(low, high) + below) / step**2

    if np.isfinite(high):
        by_high = (log_chance(low, high + step) - log_chance(low, high - step)) / (2 * step)
        assert by.above[:, 0] + probabilities.odds == pytest.approx(by_high, rel=1e-4, abs=1e-6)
        assert by.curve_above[:, 0] + tight == pytest.approx(-second(0, step), rel=1e-2, abs=1e-4)
    else:
        assert not by.above.any()
        assert not probabilities.odds.any()
    if np.isfinite(low):
        by_low = (log_chance(low + step, high) - log_chance(low - step, high)) / (2 * step)
        assert -(by.below[:, 0] + probabilities.odds) == pytest.approx(by_low, rel=1e-4, abs=1e-6)
        assert by.curve_below[:, 0] + tight == pytest.approx(-second(step, 0), rel=1e-2, abs=1e-4)
    # Both ends moved is the feeling moved the other way.
    by_felt = (log_chance(low, high, FELT + step) - log_chance(low, high, FELT - step)) / (2 * step)
    assert (by.below - by.above)[:, 0] == pytest.approx(by_felt, rel=1e-4, abs=1e-6)
    assert (by.curve_below + by.curve_above)[:, 0] == pytest.approx(
        -second(step, step), rel=1e-2, abs=1e-4
    )

"""Chances of judgements against their definition, slopes against differences of chances."""

import itertools

import numpy as np
import pytest
from scipy.special import expit

from rlhf_pipeline.votes.graded import log_chance, slopes

FELT = np.array([-3.0, -0.4, 0.0, 0.7, 5.0])
ENDS = [(0.3, np.inf), (-0.3, 0.3), (0.3, 1.1), (-np.inf, -0.3)]


@pytest.mark.parametrize(("low", "high"), ENDS)
def test_the_chance_is_that_of_the_interval(low: float, high: float):
    assert np.exp(log_chance(FELT, np.array(low), np.array(high))) == pytest.approx(expit(high - FELT) - expit(low - FELT))


def test_every_feeling_lies_in_one_interval():
    cuts = np.array([-np.inf, -1.3, -0.3, 0.3, 1.3, np.inf])
    chances = [np.exp(log_chance(FELT, low, high)) for low, high in itertools.pairwise(cuts)]
    assert np.sum(chances, axis=0) == pytest.approx(1.0)


def test_a_chance_too_small_for_a_difference_is_no_zero():
    assert log_chance(np.array(-800.0), np.array(0.3), np.array(0.4)) == pytest.approx(-802.6, abs=0.5)


@pytest.mark.parametrize(("low", "high"), ENDS)
def test_slopes_are_those_of_the_chance(low: float, high: float):
    step = 1e-5
    by = slopes(FELT, np.array(low), np.array(high))

    def chance(of_low: float = 0.0, of_high: float = 0.0):
        return log_chance(FELT, np.array(low + of_low), np.array(high + of_high))

    if np.isfinite(high):
        assert by.by_high == pytest.approx((chance(0, step) - chance(0, -step)) / (2 * step), rel=1e-4, abs=1e-6)
        assert by.high_high == pytest.approx(-(chance(0, step) - 2 * chance() + chance(0, -step)) / step**2, rel=1e-2, abs=1e-4)
    else:
        assert not by.by_high.any()
    if np.isfinite(low):
        assert by.by_low == pytest.approx((chance(step) - chance(-step)) / (2 * step), rel=1e-4, abs=1e-6)
    felt = (log_chance(FELT + step, np.array(low), np.array(high)) - log_chance(FELT - step, np.array(low), np.array(high))) / (2 * step)
    assert -(by.by_high + by.by_low) == pytest.approx(felt, rel=1e-4, abs=1e-6)

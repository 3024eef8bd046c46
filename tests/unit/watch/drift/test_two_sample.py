"""Two-sample tests: equal to references, right under no change, finding a change."""

from functools import partial

import numpy as np
import pytest

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.watch.drift.two_sample import (
    error_rate_rise,
    kolmogorov_smirnov,
    maximum_mean_discrepancy,
    population_stability,
    share_difference,
)


def directions(rng: np.random.Generator, n: int, centre: float = 0.0, d: int = 64) -> np.ndarray:
    points = rng.normal(size=(n, d))
    points[:, 0] += centre
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize(("n", "m"), [(40, 25), (25, 60)])
def test_mmd_equals_frouros(n, m):
    from frouros.detectors.data_drift import MMD
    from frouros.utils.kernels import rbf_kernel

    rng = np.random.default_rng(1)
    reference, current = rng.normal(size=(n, 5)), rng.normal(0.7, 1, size=(m, 5))
    pooled = np.concatenate([reference, current])
    distances = np.sum((pooled[:, None] - pooled[None]) ** 2, axis=2)[np.triu_indices(n + m, k=1)]
    theirs = MMD(kernel=partial(rbf_kernel, sigma=float(np.sqrt(np.median(distances)))))
    theirs.fit(X=reference)
    expected = theirs.compare(X=current)[0].distance
    assert maximum_mean_discrepancy(
        reference, current, n_permutations=199
    ).statistic == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("test", [kolmogorov_smirnov, population_stability, error_rate_rise])
def test_p_values_have_their_nominal_level(test):
    rng = np.random.default_rng(3)
    draw = (
        (lambda n: (rng.random(n) < 0.25).astype(float))
        if test is error_rate_rise
        else (lambda n: rng.gamma(4, 30, size=n))
    )
    p = np.array([test(draw(80), draw(120)).p_value for _ in range(1000)])
    assert np.mean(p <= 0.05) <= 0.07
    assert np.mean(p <= 0.01) <= 0.02


@pytest.mark.parametrize("test", [kolmogorov_smirnov, population_stability])
def test_a_shifted_distribution_is_found(test):
    rng = np.random.default_rng(5)
    result = test(rng.normal(size=150), rng.normal(1, 1, size=150))
    assert result.p_value < 1e-4
    assert result.effect > 0.2


def test_mmd_finds_a_new_topic_in_384_dimensions():
    rng = np.random.default_rng(6)
    result = maximum_mean_discrepancy(directions(rng, 80, 0, 384), directions(rng, 80, 12, 384))
    assert result.p_value == 1 / 1000
    assert result.effect > 0.02


def test_falling_error_rate_is_not_a_rise():
    assert error_rate_rise(np.repeat([0.0, 1.0], 100), np.repeat([0.0, 0.0, 1.0], 60)).p_value > 0.5
    assert error_rate_rise(np.zeros(60), np.zeros(60)).p_value == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("test", [kolmogorov_smirnov, population_stability, error_rate_rise])
def test_nan_and_infinity_are_refused_with_their_row(test, bad):
    values = np.linspace(0, 1, 50)
    with pytest.raises(InvalidScores, match="current sample is not finite at row 3"):
        test(values, np.where(np.arange(50) == 3, bad, values))


def test_equal_shares_of_labels_differ_at_the_stated_rate():
    rng = np.random.default_rng(9)
    p_values = []
    for _ in range(1000):
        share = rng.dirichlet(np.ones(12))
        sides = [dict(enumerate(rng.multinomial(n, share).tolist())) for n in (400, 60)]
        named = [{str(label): n for label, n in side.items()} for side in sides]
        p_values.append(share_difference(*named).p_value)
    assert np.mean(np.array(p_values) < 0.05) <= 0.065
    assert np.mean(np.array(p_values) < 0.01) <= 0.02


def test_label_shift_is_measured_by_distance():
    result = share_difference({"a": 500, "b": 500}, {"a": 150, "b": 350})
    assert result.statistic == pytest.approx(0.2)
    assert result.p_value < 1e-6
    assert share_difference({"a": 90}, {"a": 50}).p_value == 1
    assert share_difference({"a": 90}, {"b": 50}).statistic == 1

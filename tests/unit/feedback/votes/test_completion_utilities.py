"""The Gaussian over completions against one written out as a single matrix."""

import numpy as np
import pytest

from rlhf_pipeline.feedback.votes.completion_utilities import Utilities


def written_out(a, b, precision, weighted):
    n = max(a.max(), b.max()) + 1
    matrix, known = 2.0 * np.eye(n), np.zeros(n)
    for i, j, p, w in zip(a, b, precision, weighted, strict=True):
        edge = np.zeros(n)
        edge[i], edge[j] = 1.0, -1.0
        matrix += p * np.outer(edge, edge)
        known += w * edge
    covariance = np.linalg.inv(matrix)
    mean = covariance @ known
    edges = np.eye(n)[a] - np.eye(n)[b]
    return mean[a] - mean[b], np.einsum("ij,jk,ik->i", edges, covariance, edges)


def test_posterior_is_the_gaussian_of_all_factors():
    rng = np.random.default_rng(1)
    # A pair alone, two triangles, the same pair compared twice, a chain of five, and one more pair
    # alone.
    a = np.array([0, 2, 3, 4, 5, 6, 7, 8, 8, 10, 11, 12, 13, 15])
    b = np.array([1, 3, 4, 2, 6, 7, 5, 9, 9, 11, 12, 13, 14, 16])
    precision, weighted = rng.uniform(0, 3, len(a)), rng.normal(size=len(a))
    mean, variance = Utilities(a, b).differences(precision, weighted)
    expected_mean, expected_variance = written_out(a, b, precision, weighted)
    assert mean == pytest.approx(expected_mean)
    assert variance == pytest.approx(expected_variance)


def test_without_votes_differences_have_the_prior():
    mean, variance = Utilities(np.array([0, 1, 5]), np.array([1, 2, 6])).differences(
        np.zeros(3), np.zeros(3)
    )
    assert mean == pytest.approx(0.0)
    assert variance == pytest.approx(1.0)


def test_no_comparisons_give_no_differences():
    none = np.empty(0, dtype=np.int64)
    mean, variance = Utilities(none, none).differences(np.empty(0), np.empty(0))
    assert len(mean) == len(variance) == 0

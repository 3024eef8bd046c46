"""One pass of the joint model against the chance of the votes as it is defined, vote by vote and
node by node.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from rlhf_pipeline.feedback.votes.expectation import ExpectationStep
from rlhf_pipeline.feedback.votes.judgements import JudgementArrays
from tests.unit.feedback.votes.simulated import simulate

N_NODES, STEPS = 7, np.array([0.8, 1.1, 0.9])


@pytest.fixture
def world() -> tuple[JudgementArrays, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Votes of every kind, on cards with sides drawn, by annotators who are nothing alike, on
    comparisons known more or less.
    """
    truth = simulate(12, n_annotators=5, votes_each=4, strengths=True)
    rng = np.random.default_rng(0)
    votes = JudgementArrays(
        truth.votes.assign(is_swapped=pd.array(rng.random(len(truth.votes)) < 0.5, dtype="boolean"))
    )
    theta = np.array([1.5, 0.0, -0.8, 0.0]) + 0.4 * rng.normal(size=(5, 4))
    return votes, theta, (0.5 * rng.normal(size=12), 0.3 + rng.random(12))


def chance(
    votes: JudgementArrays,
    vote: int,
    d: float,
    theta: np.ndarray,
    steps: np.ndarray,
    *,
    of_low: float = 0.0,
    of_high: float = 0.0,
) -> float:
    """Of one judgement at one difference; its ends moved by so much."""
    discrimination, bias, width, scale = theta[votes.annotator[vote]]
    side, strength = votes.side[vote], votes.strength[vote]
    toward = -1 if side < 0 else 1
    felt = toward * (discrimination * d + bias * votes.display_side[vote])
    low, high = np.exp(width), np.inf
    if side == 0:
        low, high = -np.exp(width), np.exp(width)
    elif strength:
        far = np.array([0.0, *np.cumsum(steps), np.inf])
        low, high = np.exp(width) + np.exp(scale) * far[[strength - 1, strength]]
    return float(expit(high + of_high - felt) - expit(low + of_low - felt))


def log_likelihood(
    votes: JudgementArrays,
    theta: np.ndarray,
    steps: np.ndarray,
    cavity: tuple[np.ndarray, np.ndarray],
) -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    of_comparisons = []
    for c in range(len(votes.ids)):
        at = cavity[0][c] + np.sqrt(cavity[1][c]) * nodes
        of_votes = [
            [chance(votes, vote, d, theta, steps) for d in at]
            for vote in np.flatnonzero(votes.comparison == c)
        ]
        of_comparisons.append(np.log(np.prod(of_votes, axis=0) @ weights / weights.sum()))
    return float(np.sum(of_comparisons))


def test_e_step_gives_likelihood_and_posterior_of_each_comparison(world):
    votes, theta, cavity = world
    sums = ExpectationStep(votes, N_NODES).compute_sums(theta, STEPS, cavity)
    assert sums.log_likelihood == pytest.approx(log_likelihood(votes, theta, STEPS, cavity))
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    for c in range(len(votes.ids)):
        at = cavity[0][c] + np.sqrt(cavity[1][c]) * nodes
        of_votes = [
            [chance(votes, vote, d, theta, STEPS) for d in at]
            for vote in np.flatnonzero(votes.comparison == c)
        ]
        posterior = weights * np.prod(of_votes, axis=0)
        posterior /= posterior.sum()
        assert sums.mean[c] == pytest.approx(posterior @ at)
        assert sums.variance[c] == pytest.approx(posterior @ (at - posterior @ at) ** 2)


def test_slopes_are_those_of_the_joint_likelihood(world):
    """Fisher's identity: the expected slope of what was not seen is the slope of the chance of what
    was.
    """
    votes, theta, cavity = world
    sums, step = ExpectationStep(votes, N_NODES).compute_sums(theta, STEPS, cavity), 1e-5
    for place in np.ndindex(theta.shape):
        moved = np.zeros_like(theta)
        moved[place] = step
        likelihoods = [
            log_likelihood(votes, theta + sign * moved, STEPS, cavity) for sign in (1, -1)
        ]
        assert sums.slope[place] == pytest.approx(
            (likelihoods[0] - likelihoods[1]) / (2 * step), rel=1e-4, abs=1e-6
        )
    # slopes are by where a step ends, which is where the next begins
    for boundary in range(len(STEPS)):
        moved = np.diff(step * (np.arange(len(STEPS)) == boundary), prepend=0.0)
        likelihoods = [
            log_likelihood(votes, theta, STEPS + sign * moved, cavity) for sign in (1, -1)
        ]
        assert sums.step_slope[boundary] == pytest.approx(
            (likelihoods[0] - likelihoods[1]) / (2 * step), rel=1e-4, abs=1e-6
        )

"""Estimates a simulation's true parameters from votes: annotators' noise, bias, fatigue;
ceiling.
"""

from collections.abc import Mapping
from math import comb

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.errors import InvalidScores, NotEnoughVotes
from rlhf_pipeline.records import Choice, Record
from rlhf_pipeline.simulation.annotators import AnnotatorPool
from rlhf_pipeline.simulation.utilities import Taste, side_utilities

Floats = npt.NDArray[np.float64]
MIN_VOTES = 50


class RecoveredParameters(Record):
    """A pool's mean parameters, estimated from its votes."""

    noise: float
    position_bias: float
    fatigue: float
    tie_width: float
    n_votes: int


class Ceiling(Record):
    """Accuracy of a predictor that knows the true utilities, the upper limit for any predictor that
    does not know the votes.
    """

    one_vote: float
    majority: float
    n_pairs: int


def recover_pool(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    references: Mapping[str, str | None],
    taste: Taste,
) -> RecoveredParameters:
    """Estimate noise, position bias, fatigue and tie width by maximum likelihood, from VOTES of one
    taste.

    A vote's place in its annotator's day is its rank by voted_at. Raises NotEnoughVotes below 50
    votes.
    """
    cast = (
        votes.sort_values(["voted_at", "seq"], kind="stable")
        if "seq" in votes
        else votes.sort_values("voted_at", kind="stable")
    )
    n_earlier = cast.groupby(
        [cast["annotator_id"], pd.to_datetime(cast["voted_at"], utc=True).dt.date]
    ).cumcount()
    cast = cast.assign(n_earlier=n_earlier)[cast["choice"].ne(Choice.SKIP)]
    if len(cast) < MIN_VOTES:
        raise NotEnoughVotes(
            f"{len(cast)} votes; recovering annotators needs {MIN_VOTES}. Simulate more days."
        )
    u_a, u_b = side_utilities(comparisons, references, taste)
    differences = dict(zip(comparisons["comparison_id"], u_a - u_b, strict=True))
    delta = np.array([differences[c] for c in cast["comparison_id"]])
    sign = cast["choice"].map({Choice.A: 1, Choice.B: -1}).fillna(0).to_numpy(dtype=np.int64)
    return _maximum_likelihood(delta, sign, cast["n_earlier"].to_numpy(dtype=np.float64))


def true_ceiling(
    deltas: Floats, pool: AnnotatorPool, *, votes_per_comparison: int = 3, votes_per_day: float = 0
) -> Ceiling:
    """The best accuracy against one vote, and against the majority of `votes_per_comparison`; both
    exclude ties.

    `deltas` (n,) are true u_a - u_b; `votes_per_day` is the number of votes one annotator casts a
    day, and fatigue is averaged over them. The predictor knows the utilities but not the
    annotators: it predicts the better side.
    """
    if len(deltas) == 0 or not np.isfinite(deltas).all():
        raise InvalidScores(
            f"{len(deltas)} true margins, not all finite or none: no ceiling. Compute them by "
            "side_utilities."
        )
    p_a, p_b = _choice_probabilities(np.asarray(deltas, dtype=np.float64), pool, votes_per_day)
    # With equal utilities neither side is better, and the best accuracy is 0.5.
    right, wrong = np.where(deltas > 0, p_a, p_b), np.where(deltas > 0, p_b, p_a)
    right, wrong = (np.where(deltas == 0, (p_a + p_b) / 2, p) for p in (right, wrong))
    won, lost = _majority_probabilities(right, wrong, votes_per_comparison)
    return Ceiling(
        one_vote=float(right.sum() / (right + wrong).sum()),
        majority=float(won.sum() / (won + lost).sum()),
        n_pairs=len(deltas),
    )


def _choice_probabilities(
    deltas: Floats, pool: AnnotatorPool, votes_per_day: float
) -> tuple[Floats, Floats]:
    """P(a), P(b) (n,), averaged over the pool and its day."""
    people = [
        (a, n)
        for a in pool.annotators
        for n in np.linspace(0, votes_per_day, 5 if votes_per_day else 1)
    ]
    p_a = np.mean(
        [_sigmoid((deltas + a.position_bias - a.tie_width) / a.noise_after(n)) for a, n in people],
        axis=0,
    )
    p_b = np.mean(
        [_sigmoid((-deltas - a.position_bias - a.tie_width) / a.noise_after(n)) for a, n in people],
        axis=0,
    )
    return p_a, p_b


def _majority_probabilities(right: Floats, wrong: Floats, n: int) -> tuple[Floats, Floats]:
    """P(more right than wrong votes) and P(more wrong than right) of `n` votes, (n_pairs,) each."""
    neither = 1 - right - wrong
    won, lost = np.zeros_like(right), np.zeros_like(right)
    for k in range(n + 1):
        for j in range(n + 1 - k):
            p = comb(n, k) * comb(n - k, j) * right**k * wrong**j * neither ** (n - k - j)
            won, lost = won + p * (k > j), lost + p * (j > k)
    return won, lost


def _maximum_likelihood(
    delta: Floats, sign: npt.NDArray[np.int64], n_earlier: Floats
) -> RecoveredParameters:
    from scipy.optimize import minimize

    def negative_log_likelihood(x: Floats) -> float:
        log_noise, bias, fatigue, tie = x
        scale = np.exp(log_noise) * (1 + fatigue * n_earlier / 100)
        p_a, p_b = _sigmoid((delta + bias - tie) / scale), _sigmoid((-delta - bias - tie) / scale)
        p = np.select([sign == 1, sign == -1], [p_a, p_b], 1 - p_a - p_b)
        return float(-np.log(np.clip(p, 1e-12, None)).mean())

    fit = minimize(
        negative_log_likelihood,
        x0=np.array([0.0, 0.0, 0.1, 0.1]),
        method="L-BFGS-B",
        bounds=[(-5, 5), (-5, 5), (0, 10), (0, 5)],
    )
    log_noise, bias, fatigue, tie = (float(v) for v in fit.x)
    return RecoveredParameters(
        noise=float(np.exp(log_noise)),
        position_bias=bias,
        fatigue=fatigue,
        tie_width=tie,
        n_votes=len(delta),
    )


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), dtype=np.float64)

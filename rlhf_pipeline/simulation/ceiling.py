"""Computes the best accuracy that any predictor can reach on simulated votes."""

from math import comb

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.errors import InvalidScores
from rlhf_pipeline.records import Record
from rlhf_pipeline.simulation.annotators import AnnotatorPool

Floats = npt.NDArray[np.float64]


class Ceiling(Record):
    """Accuracy of a predictor that knows the true utilities, the upper limit for any predictor that
    does not know the votes.
    """

    one_vote: float
    majority: float
    n_pairs: int


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


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), dtype=np.float64)

"""Two quantities with a known error rate that say when calibration has failed. Knows arrays; knows no triggers.

Raw ECE is positive for a perfect model, the more so the fewer rows: it cannot be set against a threshold. Both
quantities here allow for noise, and for the votes of one prompt moving together.
"""

from typing import Any

import numpy as np

from rlhf_pipeline.calibration.metrics import N_BINS, Groups, Rows, equal_mass
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import Interval
from rlhf_pipeline.votes.intervals import group_sums

FARTHEST = 13.8  # logit of 1 - 1e-6: one certain prediction shall not outweigh all others


def calibration_slope(p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None, level: float = 0.95) -> Interval:
    """Slope of the outcome's log odds on the stated log odds, with a Wald interval: 1 is calibrated, below overconfident.

    Cox 1958, without intercept, since sides are interchangeable. The variance is the cluster-robust sandwich over
    `groups` (Liang and Zeger 1986). Raises NotEnoughData where all probabilities are 0.5 or fewer than 2 groups exist,
    InvalidScores as the metrics do.
    """
    from scipy.stats import norm

    rows = Rows.of(p, outcomes, weights=weights, groups=groups)
    x = np.minimum(np.log(rows.confidence) - np.log(np.maximum(1 - rows.confidence, 1e-300)), FARTHEST)
    if float(rows.weight @ x**2) <= 0 or rows.group.max() < 1:
        raise NotEnoughData("No slope of calibration: every probability is 0.5, or all rows are of one prompt. Collect more votes.")
    slope = _solve_slope(x, rows)
    q = 1 / (1 + np.exp(-slope * x))
    information = float(rows.weight @ (x**2 * q * (1 - q)))
    by_group = group_sums((rows.weight * x * (rows.right - q))[:, None], rows.group)[:, 0]
    n_groups = len(by_group)
    error = float(np.sqrt((by_group @ by_group) * n_groups / (n_groups - 1))) / max(information, 1e-12)
    half = float(norm.ppf(0.5 + level / 2)) * error
    return Interval(value=slope, low=slope - half, high=slope + half, n=len(x), level=level)


def ece_lower_bound(
    p: Any,
    outcomes: Any,
    *,
    weights: Any = None,
    groups: Groups = None,
    level: float = 0.975,
    n_bins: int | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> float:
    """A number the true equal-mass ECE exceeds with probability `level`; 0 or less where noise explains what is seen.

    ECE is at most the true one plus the noise of the bins' accuracies (triangle inequality). The `level` quantile of
    that noise, drawn by a wild bootstrap that flips the sign of each group's residuals (Cameron, Gelbach and Miller
    2008), is taken off. They are not centred on their bin, which would lose a degree of freedom a bin and fire too
    often on small ones. `n_bins` follows from the number of groups, 2 to 10, unless given. Raises as the metrics do.
    """
    rows = Rows.of(p, outcomes, weights=weights, groups=groups)
    n_groups = int(rows.group.max()) + 1
    # Below some 40 groups a bin the sign flips understate the tail, and the bound would be wrong too often.
    bins = equal_mass(rows, int(np.clip(n_groups // 40, 2, N_BINS)) if n_bins is None else n_bins)
    n_used = int(bins.max()) + 1
    mass = np.maximum(np.bincount(bins, weights=rows.weight, minlength=n_used), 1e-300)
    gap = np.bincount(bins, weights=rows.weight * (rows.right - rows.confidence), minlength=n_used) / mass
    residual = rows.weight * (rows.right - rows.confidence)
    cells = np.bincount(rows.group * n_used + bins, weights=residual, minlength=n_groups * n_used).reshape(n_groups, n_used)
    signs = np.random.default_rng([seed, n_groups]).choice([-1.0, 1.0], size=(n_resamples, n_groups))
    noise = np.abs(signs @ cells).sum(axis=1) / rows.weight.sum()
    return float(np.abs(gap) @ mass / rows.weight.sum() - np.quantile(noise, level))


def _solve_slope(x: Any, rows: Rows) -> float:
    """Newton's method on one convex dimension, kept within ±100: separable rows have no finite slope."""
    slope = 1.0
    for _ in range(100):
        q = 1 / (1 + np.exp(-np.clip(slope * x, -500, 500)))
        gradient = float(rows.weight @ (x * (rows.right - q)))
        curvature = float(rows.weight @ (x**2 * q * (1 - q))) + 1e-12
        step = float(np.clip(gradient / curvature, -1.0, 1.0))
        slope = float(np.clip(slope + step, -100.0, 100.0))
        if abs(step) < 1e-10:
            break
    return slope

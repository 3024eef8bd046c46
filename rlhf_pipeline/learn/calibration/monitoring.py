"""Tests with a known error rate whether calibration has failed.

The binned gap is positive even for a perfect model, and more so with fewer rows, so it has no
meaningful threshold. The quantities here allow for noise, and for the votes of one prompt moving
together.
"""

from typing import Any

import numpy as np

from rlhf_pipeline.learn.calibration.metrics import N_BINS, FoldedRows, Groups, equal_mass_bins
from rlhf_pipeline.learn.calibration.slope import all_agree, score_z, wald_error


def overconfidence_p_value(p: Any, outcomes: Any, *, groups: Groups = None) -> float:
    """One-sided Wald test that the calibration slope is below 1: the share of calibrated models
    with as low a slope.

    Errors are cluster-robust over `groups`. If all votes agree with the model or all disagree, it
    is the score test of slope 1. Raises NotEnoughData where every probability is 0.5 or fewer than
    2 groups exist, InvalidScores as the metrics do.
    """
    from scipy.stats import norm

    rows = FoldedRows.from_predictions(p, outcomes, groups=groups)
    if all_agree(rows):
        return float(norm.cdf(score_z(rows)))
    value, error = wald_error(rows)
    return float(norm.cdf((value - 1) / max(error, 1e-300)))


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
    """A number the true ECE exceeds with probability `level`; 0 or less where noise explains what
    is seen.

    The binned gap is at most the true ECE plus the noise of the bins' accuracies (triangle
    inequality). The `level` quantile of that noise, drawn by a wild bootstrap that flips the sign
    of each group's residuals (Cameron, Gelbach and Miller 2008), is subtracted. They are not
    centred on their bin, which would lose a degree of freedom a bin and fire too often on small
    ones. `n_bins` follows from the number of groups, 2 to 10, unless given. Raises as the metrics
    do.
    """
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights, groups=groups)
    n_groups = int(rows.group.max()) + 1
    # Below some 40 groups a bin the sign flips understate the tail, and the bound would be wrong
    # too often.
    bins = equal_mass_bins(
        rows, int(np.clip(n_groups // 40, 2, N_BINS)) if n_bins is None else n_bins
    )
    n_used = int(bins.max()) + 1
    mass = np.maximum(np.bincount(bins, weights=rows.weight, minlength=n_used), 1e-300)
    gap = (
        np.bincount(bins, weights=rows.weight * (rows.right - rows.confidence), minlength=n_used)
        / mass
    )
    residual = rows.weight * (rows.right - rows.confidence)
    cells = np.bincount(
        rows.group * n_used + bins, weights=residual, minlength=n_groups * n_used
    ).reshape(n_groups, n_used)
    signs = np.random.default_rng([seed, n_groups]).choice(
        [-1.0, 1.0], size=(n_resamples, n_groups)
    )
    noise = np.abs(signs @ cells).sum(axis=1) / rows.weight.sum()
    return float(np.abs(gap) @ mass / rows.weight.sum() - np.quantile(noise, level))

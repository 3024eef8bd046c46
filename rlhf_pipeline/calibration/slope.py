"""The slope of calibration: how much too strongly, or too weakly, a model states its preferences. Knows arrays; knows no triggers."""

from typing import Any

import numpy as np

from rlhf_pipeline.calibration.metrics import Floats, Groups, Rows
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import Interval
from rlhf_pipeline.votes.intervals import group_sums

FARTHEST = 13.8  # logit of 1 - 1e-6: one certain prediction shall not outweigh all others
LARGEST = 100.0  # of a slope, either way: separable rows have no finite one


def calibration_slope(p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None, level: float = 0.95) -> Interval:
    """Slope of the outcome's log odds on the stated log odds, with a Wald interval: 1 is calibrated, below overconfident.

    Cox 1958, without intercept, since sides are interchangeable. The variance is the cluster-robust sandwich over
    `groups` (Liang and Zeger 1986). Raises NotEnoughData where all probabilities are 0.5 or fewer than 2 groups exist,
    InvalidScores as the metrics do.
    """
    from scipy.stats import norm

    rows = Rows.of(p, outcomes, weights=weights, groups=groups)
    slope, x = slope_of(rows), log_odds(rows)
    q = 1 / (1 + np.exp(-slope * x))
    information = float(rows.weight @ (x**2 * q * (1 - q)))
    by_group = group_sums((rows.weight * x * (rows.right - q))[:, None], rows.group)[:, 0]
    n_groups = len(by_group)
    error = float(np.sqrt((by_group @ by_group) * n_groups / (n_groups - 1))) / max(information, 1e-12)
    half = float(norm.ppf(0.5 + level / 2)) * error
    return Interval(value=slope, low=slope - half, high=slope + half, n=len(x), level=level)


def slope_of(rows: Rows) -> float:
    """That slope alone. Raises NotEnoughData as `calibration_slope`."""
    x = log_odds(rows)
    if float(rows.weight @ x**2) <= 0 or rows.group.max() < 1:
        raise NotEnoughData("No slope of calibration: every probability is 0.5, or all rows are of one prompt. Collect more votes.")
    return _solve(x, rows)


def log_odds(rows: Rows) -> Floats:
    """Of the stated confidence, (n,), 0 and up."""
    return np.asarray(np.minimum(np.log(rows.confidence) - np.log(np.maximum(1 - rows.confidence, 1e-300)), FARTHEST))


def _solve(x: Floats, rows: Rows) -> float:
    """Newton's method on one convex dimension, kept within ±LARGEST."""
    slope = 1.0
    for _ in range(100):
        q = 1 / (1 + np.exp(-np.clip(slope * x, -500, 500)))
        gradient = float(rows.weight @ (x * (rows.right - q)))
        curvature = float(rows.weight @ (x**2 * q * (1 - q))) + 1e-12
        step = float(np.clip(gradient / curvature, -1.0, 1.0))
        slope = float(np.clip(slope + step, -LARGEST, LARGEST))
        if abs(step) < 1e-10:
            break
    return slope

"""The calibration slope: how much too strongly or weakly a model states its preferences."""

from typing import Any

import numpy as np

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import FEW_GROUPS, group_sums
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.learn.calibration.metrics import Floats, FoldedRows, Groups

FARTHEST = 13.8  # logit of 1 - 1e-6, so that one certain prediction does not outweigh all others
# limit of a slope and of the ends of its interval, either way; a value at the limit may be any
# larger one
LARGEST = 100.0
UNDERFLOW = 700.0  # beyond, exp is 0


def calibration_slope(
    p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None, level: float = 0.95
) -> Interval:
    """Slope of the outcome's log odds on the stated log odds, with its score interval: 1 is
    calibrated, below overconfident.

    Cox 1958, without intercept, since sides are interchangeable; see `slope_bounds` for the
    interval. Where every vote went with the model, or every one against it, the likelihood grows
    without end and there is no slope (Albert and Anderson 1984). Raises NotEnoughData there, where
    all probabilities are 0.5 and where fewer than 2 groups exist; InvalidScores as the metrics do.
    """
    return slope_interval(
        FoldedRows.from_predictions(p, outcomes, weights=weights, groups=groups), level
    )


def slope_interval(rows: FoldedRows, level: float = 0.95) -> Interval:
    """`calibration_slope` of folded rows."""
    slope = fit_slope(rows)
    low, high = slope_bounds(rows, level)
    n_groups = int(rows.group.max()) + 1
    few = n_groups if n_groups < FEW_GROUPS else None
    return Interval(
        value=slope,
        low=min(low, slope),
        high=max(high, slope),
        n=len(rows.right),
        level=level,
        few_groups=few,
    )


def says_nothing(slope: Interval) -> bool:
    """Whether the interval has an infinite end and contains 1, so that the model may be calibrated,
    overconfident or underconfident without limit: too few votes.
    """
    return (slope.low <= -LARGEST or slope.high >= LARGEST) and slope.low <= 1 <= slope.high


def slope_bounds(rows: FoldedRows, level: float = 0.95) -> tuple[float, float]:
    """The interval of slopes that a score test (Rao 1948) does not reject.

    Like Wilson's interval, it uses the variance at the tested slope, not at the estimate, and so
    holds for few rows or nearly perfect ones, where the intervals of Wald and of the bootstrap
    shrink to nothing. The variance is that of independent votes (weights are counts of them) times
    how much more the sums of the groups scatter than that at the estimate, at least 1 (Rao and
    Scott 1992); if all rows agree, so that this is unknown, a group counts as one vote. An
    infinite end, as for rows that all agree, is ±LARGEST. Raises NotEnoughData where all
    probabilities are 0.5 or fewer than 2 groups exist.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    x = _checked_log_odds(rows)
    agree = _common_direction(x, rows)
    most = float(norm.ppf(0.5 + level / 2)) ** 2 * (
        _largest_scatter(x, rows) if agree else _scatter(x, rows, _solve(x, rows))
    )
    farthest = min(LARGEST, UNDERFLOW / float(x.max()))

    def rejection_margin(slope: float) -> float:
        residual, information = _score_and_information(slope, x, rows)
        return float(residual.sum()) ** 2 - most * information

    def find_bound(start: float, stop: float) -> float:
        if rejection_margin(start) > 0:  # the best fit is beyond ±LARGEST
            return float(np.copysign(LARGEST, start))
        return (
            float(brentq(rejection_margin, start, stop))
            if rejection_margin(stop) > 0
            else float(np.copysign(LARGEST, stop))
        )

    middle = agree * farthest or float(np.clip(_solve(x, rows), -farthest, farthest))
    return find_bound(middle, -farthest), find_bound(middle, farthest)


def wald_error(rows: FoldedRows) -> tuple[float, float]:
    """The slope and its standard error, cluster-robust over the groups (Liang and Zeger 1986): for
    tests on many rows. Raises NotEnoughData.
    """
    slope = fit_slope(rows)
    x = _checked_log_odds(rows)
    residual, information = _score_and_information(slope, x, rows)
    return slope, float(np.sqrt(_between_group_variance(residual, rows))) / max(information, 1e-12)


def score_z(rows: FoldedRows, slope: float = 1.0) -> float:
    """Score statistic of `slope` where every vote went one way, normal under it and below 0 if less
    would fit. Raises NotEnoughData.
    """
    x = _checked_log_odds(rows)
    residual, information = _score_and_information(slope, x, rows)
    return float(residual.sum() / np.sqrt(max(information * _largest_scatter(x, rows), 1e-300)))


def fit_slope(rows: FoldedRows) -> float:
    """That slope alone. Raises NotEnoughData as `calibration_slope`."""
    x = _checked_log_odds(rows)
    agree = _common_direction(x, rows)
    if agree:
        raise NotEnoughData(
            f"No slope of calibration: every vote went {'with' if agree > 0 else 'against'} the "
            "model, and no slope is steep enough for that. Collect more votes."
        )
    return _solve(x, rows)


def all_agree(rows: FoldedRows) -> bool:
    """Did every vote on a stated preference go with the model, or every one against it?"""
    return _common_direction(log_odds(rows), rows) != 0


def log_odds(rows: FoldedRows) -> Floats:
    """Log odds of the stated confidence, (n,), at least 0."""
    return np.asarray(
        np.minimum(
            np.log(rows.confidence) - np.log(np.maximum(1 - rows.confidence, 1e-300)), FARTHEST
        )
    )


def _checked_log_odds(rows: FoldedRows) -> Floats:
    x = log_odds(rows)
    if float(rows.weight @ x**2) <= 0 or rows.group.max() < 1:
        raise NotEnoughData(
            "No slope of calibration: every probability is 0.5, or all rows are of one prompt. "
            "Collect more votes."
        )
    return x


def _common_direction(x: Floats, rows: FoldedRows) -> int:
    """1 if all rows with a preference were right, -1 if all were wrong, else 0."""
    right = rows.right[(x > 0) & (rows.weight > 0)]
    return int((right == 1).all()) - int((right == 0).all()) if len(right) else 0


def _score_and_information(slope: float, x: Floats, rows: FoldedRows) -> tuple[Floats, float]:
    """Each row's part of the score, (n,), and the information, to the last digit where
    probabilities are near 0 and 1.
    """
    from scipy.special import expit

    yes, no = expit(slope * x), expit(-slope * x)
    return rows.weight * x * (rows.right * no - (1 - rows.right) * yes), float(
        rows.weight @ (x**2 * yes * no)
    )


def _between_group_variance(residual: Floats, rows: FoldedRows) -> float:
    by_group = group_sums(residual[:, None], rows.group)[:, 0]
    return float(by_group @ by_group) * len(by_group) / (len(by_group) - 1)


def _scatter(x: Floats, rows: FoldedRows, slope: float) -> float:
    residual, information = _score_and_information(slope, x, rows)
    return max(1.0, _between_group_variance(residual, rows) / max(information, 1e-300))


def _largest_scatter(x: Floats, rows: FoldedRows) -> float:
    """The between-group variance if all votes of a group agreed."""
    together = group_sums((rows.weight * x)[:, None], rows.group)[:, 0]
    return max(1.0, float(together @ together / (rows.weight @ x**2)))


def _solve(x: Floats, rows: FoldedRows) -> float:
    """Newton's method on a convex function of one variable, within ±LARGEST."""
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

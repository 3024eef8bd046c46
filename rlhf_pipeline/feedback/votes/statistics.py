"""Computes shares and medians of many groups at once, each with its interval.

Intervals of shares are Wilson's (1927), which stay wide for small samples. Intervals of medians are
order statistics, so a median needs at least 6 values at a level of 95 %. Figures of groups without
data are missing.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.frames import Column, number
from rlhf_pipeline.core.intervals import wilson_bounds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
UNIT = {"low": 0.0, "high": 1.0}
TAIL = 0.025  # outside either end of an interval
Figures = dict[str, Any]  # column name -> values (groups,)


def interval_columns(measure: str) -> tuple[str, str, str]:
    return measure, f"{measure}_low", f"{measure}_high"


def measure_columns(name: str, what: str, **bounds: float) -> dict[str, Column]:
    """Columns of a figure and the ends of its interval."""
    meanings = (what, "lower end of the interval", "upper end of the interval")
    return {
        end: number(meaning, nullable=True, **bounds)
        for end, meaning in zip(interval_columns(name), meanings, strict=True)
    }


class GroupStatistics:
    """Figures of groups 0 to n - 1, with 95 % intervals; `code` holds the group of each value."""

    def __init__(self, n: int):
        self.n = n

    def share(self, measure: str, count_name: str, code: Ints, what: Any) -> Figures:
        n, k = self.count(code), self.sums(code, what)
        return {count_name: n, **self.wilson(measure, k, n)}

    def median(self, measure: str, count_name: str, code: Ints, values: Any) -> Figures:
        """Median with order statistics as interval ends: ranks are quantiles of Binomial(n,
        1/2).
        """
        from scipy.stats import binom

        values = np.asarray(values, dtype=np.float64)
        values, n = values[np.lexsort((values, code))], self.count(code)
        below = binom.ppf(TAIL, n, 0.5).astype(np.int64) - 1
        below -= binom.cdf(below, n, 0.5) > TAIL
        first = np.cumsum(n) - n
        is_known = below >= 0

        def value_at(rank: Any) -> Floats:
            result = np.full(len(n), np.nan)
            result[is_known] = values[(first + rank)[is_known]]
            return result

        interval = (
            (value_at((n - 1) // 2) + value_at(n // 2)) / 2,
            value_at(below),
            value_at(n - 1 - below),
        )
        return {count_name: n, **dict(zip(interval_columns(measure), interval, strict=True))}

    def confidence(self, code: Ints, stated: Any, is_right: Any) -> Figures:
        """n_sure, mean_confidence, confidence_gap and brier of stated confidences against
        `is_right`.
        """
        stated, right = np.asarray(stated, dtype=np.float64), np.asarray(is_right, dtype=np.float64)
        n, n_right = self.count(code), self.sums(code, right)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.sums(code, stated) / n
        share = self.wilson("right", n_right, n)
        gap = [mean - share[end] for end in ("right", "right_high", "right_low")]
        return {
            "n_sure": n,
            "mean_confidence": mean,
            **dict(zip(interval_columns("confidence_gap"), gap, strict=True)),
            **self.wilson("brier", self.sums(code, (stated - right) ** 2), n),
        }

    def count(self, code: Ints) -> Ints:
        return np.asarray(np.bincount(code, minlength=self.n), dtype=np.int64)

    def sums(self, code: Ints, values: Any) -> Floats:
        return np.asarray(
            np.bincount(code, weights=np.asarray(values, dtype=np.float64), minlength=self.n),
            dtype=np.float64,
        )

    def wilson(self, measure: str, k: Any, n: Any) -> dict[str, Floats]:
        """The share k / n (groups,) and its ends; missing if n is 0."""
        is_known = n > 0
        share = np.where(is_known, k / np.maximum(n, 1), np.nan)
        low, high = wilson_bounds(share, np.maximum(n, 1))
        # rounding can put a sum of squares slightly outside its bounds
        interval = (share, np.minimum(low, share), np.maximum(high, share))
        return {
            name: np.where(is_known, np.clip(end, 0.0, 1.0), np.nan)
            for name, end in zip(interval_columns(measure), interval, strict=True)
        }

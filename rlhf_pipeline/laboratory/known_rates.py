"""A CUSUM that knows the error rates before and after a change: what any detector is measured by.

Page 1954, Continuous Inspection Schemes. Moustakides 1986: no rule with as few false alarms notices
the worst case earlier.
"""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.laboratory.base import KnownRates

N_SIMULATED = 4_000_000  # votes from which a threshold is tuned
SEED = 20260101  # of those votes alone


def find_peak(votes: pd.DataFrame, rates: KnownRates, first: int, last: int) -> float:
    """The highest statistic at votes with first < seq <= last. Reads the first vote on each
    comparison, as the detectors do.
    """
    once = votes.sort_values("seq").drop_duplicates("comparison_id")
    steps = _steps(once["error"].to_numpy(dtype=bool), rates)
    statistic = _reflect(steps)
    inside = ((once["seq"] > first) & (once["seq"] <= last)).to_numpy()
    return float(statistic[inside].max(initial=0.0))


def tune_threshold(rates: KnownRates, fires_per_1000: float) -> float:
    """The threshold at which a steady stream gives so many false alarms per 1,000 votes."""
    rng = np.random.default_rng(SEED)
    statistic = _reflect(_steps(rng.random(N_SIMULATED) < rates.before, rates))
    # An alarm starts the statistic anew, so that an excursion from zero gives one at most.
    peaks = np.sort(np.maximum.reduceat(statistic, np.flatnonzero(statistic == 0)))[::-1]
    n_alarms = round(N_SIMULATED / rates.share_read * fires_per_1000 / 1000)
    return float(peaks[min(max(n_alarms, 1), len(peaks)) - 1])


def _steps(is_wrong: npt.NDArray[np.bool_], rates: KnownRates) -> npt.NDArray[np.float64]:
    """Log likelihood ratio of each error."""
    if_wrong = math.log(rates.after / rates.before)
    if_right = math.log((1 - rates.after) / (1 - rates.before))
    return np.where(is_wrong, if_wrong, if_right)


def _reflect(steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum of the steps, never below zero."""
    total = np.cumsum(steps)
    lowest = np.minimum(np.minimum.accumulate(total), 0.0)
    reflected: npt.NDArray[np.float64] = total - lowest
    return reflected

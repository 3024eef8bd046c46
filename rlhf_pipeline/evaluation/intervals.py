"""Means with bootstrap intervals. Knows numbers, one per prompt; knows nothing of what they
measure.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.records import Interval

Floats = npt.NDArray[np.float64]
LEVEL = 0.95
MAX_DRAWS = 2_000_000  # bounds the memory of a bootstrap over very many rows


def bootstrap_mean(
    values: Any,
    *,
    seed: int,
    n_resamples: int = 2000,
    what: str = "values",
    max_draws: int = MAX_DRAWS,
) -> Interval:
    """Mean of `values` (n,) with the percentile bootstrap interval at 95 % (Efron 1979), resampling
    rows.

    Give one value per prompt: completions of one prompt are not independent. `max_draws` indices
    are held at a time. Raises NotEnoughData for no rows, InvalidScores naming the first row that is
    NaN or infinite.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        raise NotEnoughData(f"No rows to take the mean of {what} over.")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise InvalidScores(
            f"{len(bad)} of {len(array)} {what} are NaN or infinite, first in row {bad[0]}. Find "
            "what made it."
        )
    means = _resampled_means(array, np.random.default_rng(seed), n_resamples, max_draws)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(
        value=float(array.mean()), low=float(low), high=float(high), n=len(array), level=LEVEL
    )


def mean_over_prompts(
    samples: pd.DataFrame, column: str, *, seed: int, n_resamples: int = 2000
) -> Interval:
    """Mean of `column` with its interval; several samples of a prompt are averaged first, row order
    does not matter.

    `samples` has prompt_id and `column`, one row per prompt and sample.
    """
    by_prompt = (
        samples.sort_values(["prompt_id", column]).groupby("prompt_id", sort=True)[column].mean()
    )
    return bootstrap_mean(by_prompt, seed=seed, n_resamples=n_resamples, what=column)


def _resampled_means(
    array: Floats, rng: np.random.Generator, n_resamples: int, max_draws: int
) -> Floats:
    n = len(array)
    at_a_time = max(1, max_draws // n)
    parts = [
        array[rng.integers(0, n, size=(min(at_a_time, n_resamples - start), n))].mean(axis=1)
        for start in range(0, n_resamples, at_a_time)
    ]
    return np.concatenate(parts)

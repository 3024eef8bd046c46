"""Confidence intervals by bootstrap over groups. Knows arrays; knows nothing of votes or models.

Rows of one prompt resemble each other, so whole groups are drawn, never single rows: otherwise every interval would be
too narrow (Davison and Hinkley 1997, section 3.8).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.records import Interval

Floats = npt.NDArray[np.float64]

DRAWS_AT_ONCE = 10_000_000  # some 250 MB


class BootstrapParams(BaseModel):
    """How intervals are drawn."""

    model_config = ConfigDict(extra="forbid")

    n_resamples: int = Field(default=1000, ge=100, le=100_000, description="Bootstrap resamples of whole groups")
    level: float = Field(default=0.95, gt=0.5, lt=1, description="Level of every confidence interval")
    seed: int = Field(default=0, ge=0, description="Seed of the resampling")


def group_index(groups: Sequence[Any] | npt.NDArray[Any] | None, n: int) -> npt.NDArray[np.int64]:
    """Number of each row's group, 0 to G-1, numbered by the groups' order of value; every row its own group if None."""
    if groups is None:
        return np.arange(n, dtype=np.int64)
    if len(groups) != n:
        raise InvalidScores(f"{len(groups)} groups for {n} values. Hand in one group per value.")
    return np.asarray(np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1], dtype=np.int64)


def resampled_sums(sums: Floats, params: BootstrapParams) -> Floats:
    """Totals of the groups' sums (G, k) in each resample of G groups with replacement: (n_resamples, k)."""
    n_groups = len(sums)
    rng = np.random.default_rng([params.seed, n_groups])
    at_once = max(1, DRAWS_AT_ONCE // n_groups)
    totals = [_one_chunk(sums, min(at_once, params.n_resamples - done), rng) for done in range(0, params.n_resamples, at_once)]
    return np.concatenate(totals)


def _one_chunk(sums: Floats, n_resamples: int, rng: np.random.Generator) -> Floats:
    n_groups = len(sums)
    draws = rng.integers(0, n_groups, size=(n_resamples, n_groups)) + np.arange(n_resamples)[:, None] * n_groups
    counts = np.bincount(draws.ravel(), minlength=n_resamples * n_groups).reshape(n_resamples, n_groups)
    return np.asarray(counts.astype(np.float64) @ sums)


def group_sums(rows: Floats, index: npt.NDArray[np.int64]) -> Floats:
    """Sums of the rows (n, k) of each group: (G, k)."""
    n_groups = int(index.max()) + 1
    return np.stack([np.bincount(index, weights=column, minlength=n_groups) for column in rows.T], axis=1)


def percentiles(value: float, resampled: Floats, n: int, params: BootstrapParams) -> Interval:
    """The percentile interval of resampled statistics around `value`; resamples without a value (NaN) are left out."""
    tail = 50 * (1 - params.level)
    low, high = np.nanpercentile(resampled, [tail, 100 - tail])
    return Interval(value=value, low=float(min(low, value)), high=float(max(high, value)), n=n, level=params.level)


def interval_of_mean(
    values: Sequence[float] | npt.NDArray[Any],
    *,
    groups: Sequence[Any] | npt.NDArray[Any] | None = None,
    weights: npt.NDArray[Any] | None = None,
    params: BootstrapParams | None = None,
) -> Interval:
    """The (weighted) mean of `values` with a bootstrap interval over `groups`; n is the number of values.

    Where all values are 0 or all are 1 a bootstrap would claim certainty: there Wilson's interval for the number of
    groups is given. Raises NotEnoughData without values and InvalidScores for NaN or infinite ones.
    """
    params = params or BootstrapParams()
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if x.size == 0 or w.sum() <= 0:
        raise NotEnoughData("No values to take a mean of. Collect some first.")
    if not (np.isfinite(x).all() and np.isfinite(w).all()):
        raise InvalidScores("A value or weight is NaN or infinite. Find the scorer that made it; it is not skipped.")
    index = group_index(groups, len(x))
    value = float((x * w).sum() / w.sum())
    sums = group_sums(np.stack([x * w, w], axis=1), index)
    if value in (0.0, 1.0) and np.isin(x, (0.0, 1.0)).all():
        return _wilson(value, len(sums), len(x), params.level)
    drawn = resampled_sums(sums, params)
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = drawn[:, 0] / drawn[:, 1]
    return percentiles(value, resampled, len(x), params)


def _wilson(share: float, n_groups: int, n: int, level: float) -> Interval:
    """Wilson 1927: the score interval of a proportion, which stays wide when nothing (or everything) was seen."""
    from scipy.stats import norm

    z2 = float(norm.ppf(0.5 + level / 2)) ** 2
    far = z2 / (n_groups + z2)
    return Interval(value=share, low=max(0.0, share - far), high=min(1.0, share + far), n=n, level=level)

"""Confidence intervals by bootstrap over groups. Knows arrays; knows nothing of votes or models.

Rows of one prompt resemble each other, so whole groups are drawn, not single rows: otherwise every
interval would be too narrow (Davison and Hinkley 1997, section 3.8). Of few groups their number is
part of the interval, see FEW_GROUPS.

Where all groups have the same share (all right, or three of four in each), so has every resample,
and a bootstrap would claim certainty of six groups as of six thousand. There a share has Wilson's
ends for the number of groups.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.records import Interval

Floats = npt.NDArray[np.float64]

DRAWS_AT_ONCE = 10_000_000  # some 250 MB
# Of fewer, the rows of each drawn group are drawn as well: one group drawn again and again is
# always itself, and its interval would claim certainty. How groups differ cannot be learnt from so
# few, so the interval says how many there were.
FEW_GROUPS = 5
SAME = 1e-9  # statistics of resamples that differ by rounding alone


class BootstrapParams(BaseModel):
    """How intervals are drawn."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    n_resamples: int = Field(
        default=1000, ge=100, le=100_000, description="Bootstrap resamples of whole groups"
    )
    level: float = Field(
        default=0.95, gt=0.5, lt=1, description="Level of every confidence interval"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the resampling")


def group_index(groups: Sequence[Any] | npt.NDArray[Any] | None, n: int) -> npt.NDArray[np.int64]:
    """Number of each row's group, 0 to G-1, numbered by the groups' order of value; every row its
    own group if None.
    """
    if groups is None:
        return np.arange(n, dtype=np.int64)
    if len(groups) != n:
        raise InvalidScores(f"{len(groups)} groups for {n} values. Hand in one group per value.")
    return np.asarray(
        np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1], dtype=np.int64
    )


def resampled_totals(rows: Floats, index: npt.NDArray[np.int64], params: BootstrapParams) -> Floats:
    """Totals of the rows (n, k) in each resample of their groups, (n_resamples, k); of few groups,
    of the rows within them too.
    """
    n_groups = int(index.max()) + 1
    if n_groups >= FEW_GROUPS:
        return resampled_sums(group_sums(rows, index), params)
    rng = np.random.default_rng([params.seed, n_groups])
    times = np.stack(
        [
            np.bincount(rng.integers(0, n_groups, n_groups), minlength=n_groups)
            for _ in range(params.n_resamples)
        ]
    )
    totals = np.zeros((params.n_resamples, rows.shape[1]))
    for g in range(n_groups):
        own = rows[index == g]
        at_once = max(1, DRAWS_AT_ONCE // len(own))
        for start in range(0, params.n_resamples, at_once):
            some = slice(start, start + at_once)
            totals[some] += (
                rng.multinomial(times[some, g] * len(own), np.full(len(own), 1 / len(own))) @ own
            )
    return totals


def resampled_sums(sums: Floats, params: BootstrapParams) -> Floats:
    """Totals of the groups' sums (G, k) in each resample of G groups with replacement:
    (n_resamples, k).
    """
    n_groups = len(sums)
    rng = np.random.default_rng([params.seed, n_groups])
    at_once = max(1, DRAWS_AT_ONCE // n_groups)
    totals = [
        _resample_chunk(sums, min(at_once, params.n_resamples - done), rng)
        for done in range(0, params.n_resamples, at_once)
    ]
    return np.concatenate(totals)


def _resample_chunk(sums: Floats, n_resamples: int, rng: np.random.Generator) -> Floats:
    n_groups = len(sums)
    draws = (
        rng.integers(0, n_groups, size=(n_resamples, n_groups))
        + np.arange(n_resamples)[:, None] * n_groups
    )
    counts = np.bincount(draws.ravel(), minlength=n_resamples * n_groups).reshape(
        n_resamples, n_groups
    )
    return np.asarray(counts.astype(np.float64) @ sums)


def group_sums(rows: Floats, index: npt.NDArray[np.int64]) -> Floats:
    """Sums of the rows (n, k) of each group: (G, k)."""
    n_groups = int(index.max()) + 1
    return np.stack(
        [np.bincount(index, weights=column, minlength=n_groups) for column in rows.T], axis=1
    )


def percentile_interval(
    value: float, resampled: Floats, n: int, params: BootstrapParams, n_groups: int | None = None
) -> Interval:
    """The percentile interval of resampled statistics around `value`; resamples without a value
    (NaN) are left out.

    `n_groups` is kept where it is one of FEW_GROUPS.
    """
    tail = 50 * (1 - params.level)
    low, high = np.nanpercentile(resampled, [tail, 100 - tail])
    few = n_groups if n_groups is not None and n_groups < FEW_GROUPS else None
    return Interval(
        value=value,
        low=float(min(low, value)),
        high=float(max(high, value)),
        n=n,
        level=params.level,
        few_groups=few,
    )


def interval_of_mean(
    values: Sequence[float] | npt.NDArray[Any],
    *,
    groups: Sequence[Any] | npt.NDArray[Any] | None = None,
    weights: npt.NDArray[Any] | None = None,
    params: BootstrapParams | None = None,
    of_shares: bool = True,
) -> Interval:
    """The (weighted) mean of `values` with a bootstrap interval over `groups`; n is the number of
    values.

    Where the mean is the same in all groups a bootstrap would claim certainty: there Wilson's
    interval for the number of groups is given, if the values are shares. Those of a loss are not
    (`of_shares`). Raises NotEnoughData without values and InvalidScores for NaN or infinite ones.
    """
    params = params or BootstrapParams()
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if x.size == 0 or w.sum() <= 0:
        raise NotEnoughData("No values to take a mean of. Collect some first.")
    if not (np.isfinite(x).all() and np.isfinite(w).all()):
        raise InvalidScores(
            "A value or weight is NaN or infinite. Find the scorer that made it; it is not skipped."
        )
    index = group_index(groups, len(x))
    value = float((x * w).sum() / w.sum())
    n_groups = int(index.max()) + 1
    drawn = resampled_totals(np.stack([x * w, w], axis=1), index, params)
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = drawn[:, 0] / drawn[:, 1]
    found = percentile_interval(value, resampled, len(x), params, n_groups)
    if not (of_shares and 0 <= value <= 1 and has_no_scatter(resampled)):
        return found
    low, high = wilson_bounds(value, n_groups, params.level)
    # Of 0 and of 1 the last bit may be missing.
    return found.model_copy(
        update={"low": float(min(low, value)), "high": float(max(high, value)), "few_groups": None}
    )


def has_no_scatter(resampled: Floats) -> bool:
    """Whether resamples show no scatter at all; those without a value (NaN) are left out."""
    return bool(np.nanmax(resampled) - np.nanmin(resampled) <= SAME)


def wilson_bounds(share: Any, n: Any, level: float = 0.95) -> tuple[Any, Any]:
    """Wilson 1927: the score interval of a proportion of `n`, which stays wide when nothing (or
    everything) was seen. Numbers or arrays.
    """
    z2 = _squared_quantile(level)
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 / n * (share * (1 - share) + z2 / (4 * n))) / (1 + z2 / n)
    return np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


@lru_cache
def _squared_quantile(level: float) -> float:
    """Of the normal distribution. scipy takes longer for one than a page takes for the shares of a
    hundred annotators.
    """
    from scipy.stats import norm

    return float(norm.ppf(0.5 + level / 2)) ** 2

"""Confidence intervals: Wilson's for shares, and the bootstrap over groups for everything else.

Rows of one prompt resemble each other, so the bootstrap draws whole groups, not single rows:
otherwise every interval would be too narrow (Davison and Hinkley 1997, section 3.8). With few
groups, their number is part of the interval; see FEW_GROUPS.

If all groups have the same share (all right, or three of four in each), every resample has it too,
and a bootstrap of six groups would claim as much certainty as one of six thousand. Such a share
gets Wilson's interval for the number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import Interval, RatioSums

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

DRAWS_AT_ONCE = 10_000_000  # some 250 MB
# With fewer groups, the rows of each drawn group are resampled as well: one group drawn again and
# again is always itself, and its interval would claim certainty. So few groups do not show how
# groups differ, so the interval states their number.
FEW_GROUPS = 5
SAME = 1e-9  # resampled statistics this close differ by rounding alone


class BootstrapParams(Parameters):
    """How bootstrap intervals are made."""

    n_resamples: int = Field(
        default=1000, ge=100, le=100_000, description="Bootstrap resamples of whole groups"
    )
    level: float = Field(
        default=0.95, gt=0.5, lt=1, description="Level of every confidence interval"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the resampling")


def format_estimate(share: float) -> str:
    """As a percentage, never all or nothing: an estimate is not that sure.

    >>> format_estimate(0.9996), format_estimate(0.5), format_estimate(0.0)
    ('>99%', '50%', '<1%')
    """
    return ">99%" if share > 0.99 else "<1%" if share < 0.01 else f"{100 * share:.0f}%"


def group_index(groups: Sequence[Any] | npt.NDArray[Any] | None, n: int) -> npt.NDArray[np.int64]:
    """The number of each row's group, 0 to G-1 in the order of their values; without `groups`, each
    row is its own group.
    """
    if groups is None:
        return np.arange(n, dtype=np.int64)
    if len(groups) != n:
        raise InvalidScores(f"{len(groups)} groups for {n} values. Pass one group per value.")
    return np.asarray(
        np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1], dtype=np.int64
    )


def resampled_totals(rows: Floats, index: npt.NDArray[np.int64], params: BootstrapParams) -> Floats:
    """Totals of the rows (n, k) in each resample of their groups: (n_resamples, k). With few
    groups, the rows within each drawn group are resampled too.
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
    totals = []
    for draws in _draw_rows(n_groups, params.n_resamples, rng):
        shape = draws.shape
        np.add(draws, np.arange(len(draws))[:, None] * n_groups, out=draws)
        counts = np.bincount(draws.ravel(), minlength=draws.size)
        del draws  # a block is 80 MB, and the next one is drawn before this one is replaced
        totals.append(counts.reshape(shape).astype(np.float64) @ sums)
        del counts
    return np.concatenate(totals)


def _draw_rows(
    n: int, n_resamples: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """Row numbers of each resample of n rows with replacement, in blocks (resamples, n) that fit
    into memory. The draws do not depend on the size of the blocks.
    """
    at_once = max(1, DRAWS_AT_ONCE // n)
    for start in range(0, n_resamples, at_once):
        yield rng.integers(0, n, size=(min(at_once, n_resamples - start), n))


def group_sums(rows: Floats, index: npt.NDArray[np.int64]) -> Floats:
    """Sums of the rows (n, k) of each group: (G, k)."""
    n_groups = int(index.max()) + 1
    return np.stack(
        [np.bincount(index, weights=column, minlength=n_groups) for column in rows.T], axis=1
    )


def percentile_interval(
    value: float, resampled: Floats, n: int, params: BootstrapParams, n_groups: int | None = None
) -> Interval:
    """The percentile interval of resampled statistics around `value` (Efron 1979). Ignores
    resamples without a value (NaN).

    The interval records `n_groups` if it is below FEW_GROUPS.
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

    If the mean is the same in all groups, a bootstrap would claim certainty: the result is then
    Wilson's interval for the number of groups, unless the values are no shares (`of_shares`), such
    as losses. Raises NotEnoughData without values and InvalidScores for NaN or infinite ones.
    """
    params = params or BootstrapParams()
    x = _require_values(values, "values")
    w = np.ones_like(x) if weights is None else _require_values(weights, "weights")
    if w.sum() <= 0:
        raise NotEnoughData("All weights are 0: there is no mean to take.")
    index = group_index(groups, len(x))
    value = float((x * w).sum() / w.sum())
    n_groups = int(index.max()) + 1
    drawn = resampled_totals(np.stack([x * w, w], axis=1), index, params)
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = drawn[:, 0] / drawn[:, 1]
    interval = percentile_interval(value, resampled, len(x), params, n_groups)
    if not (of_shares and 0 <= value <= 1 and has_no_scatter(resampled)):
        return interval
    low, high = wilson_bounds(value, n_groups, params.level)
    # Rounding may put an end on the wrong side of a share of 0 or 1.
    return interval.model_copy(
        update={"low": float(min(low, value)), "high": float(max(high, value)), "few_groups": None}
    )


def mean_over_prompts(
    samples: pd.DataFrame, column: str, *, seed: int, n_resamples: int = 2000
) -> Interval:
    """Mean of `column` with a bootstrap interval over prompts. Samples of one prompt are averaged
    first; the order of rows does not matter.

    `samples` has prompt_id and `column`, one row per prompt and sample. Raises as
    `interval_of_mean`.
    """
    by_prompt = (
        samples.sort_values(["prompt_id", column]).groupby("prompt_id", sort=True)[column].mean()
    )
    means = _require_values(by_prompt, f"prompts' means of {column}")
    # Averages the drawn rows, where `interval_of_mean` multiplies counts by sums: the two differ
    # in the last bit, and stored evaluations hold these.
    resampled = [
        means[draws].mean(axis=1)
        for draws in _draw_rows(len(means), n_resamples, np.random.default_rng(seed))
    ]
    return percentile_interval(
        float(means.mean()), np.concatenate(resampled), len(means), BootstrapParams()
    )


def _require_values(values: Any, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise NotEnoughData(f"There are no {name}: there is no mean to take. Collect some first.")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise InvalidScores(
            f"{len(bad)} of {len(array)} {name} are NaN or infinite, first in row {bad[0]}. Find "
            "what produced them; none is skipped."
        )
    return array


def has_no_scatter(resampled: Floats) -> bool:
    """Whether all resamples with a value (not NaN) are equal up to rounding."""
    return bool(np.nanmax(resampled) - np.nanmin(resampled) <= SAME)


def interval_of_share(share: float, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's interval of a mean of `n` values in [0, 1]; if values lie between 0 and 1, it is too
    wide, never too narrow. Raises NotEnoughData if n is 0.
    """
    if n < 1:
        raise NotEnoughData("A share of 0 values is undefined. Collect some first.")
    low, high = wilson_bounds(share, n, level)
    # Rounding may put an end on the wrong side of a share of 0 or 1.
    return Interval(
        value=share, low=min(share, float(low)), high=max(share, float(high)), n=n, level=level
    )


def interval_of_ratio(
    share: float, n: int, base: float, n_base: int, *, level: float = 0.95
) -> Interval | None:
    """`share` of `n` over `base` of `n_base`, with the log-normal interval of Walter 1975: half a
    count added to each, so that shares of 0 and 1 have one. n is that of `share`; None where the
    ratio is undefined because `base` is 0 or a side is empty.
    """
    if min(n, n_base) < 1 or base <= 0:
        return None
    ratio = share / base
    x, y = share * n + 0.5, base * n_base + 0.5
    middle = np.log(x / (n + 0.5)) - np.log(y / (n_base + 0.5))
    deviation = np.sqrt(1 / x - 1 / (n + 0.5) + 1 / y - 1 / (n_base + 0.5))
    half = np.sqrt(_squared_quantile(level)) * deviation
    low, high = float(np.exp(middle - half)), float(np.exp(middle + half))
    return Interval(value=ratio, low=min(low, ratio), high=max(high, ratio), n=n, level=level)


def interval_of_sums(
    sums: RatioSums, *, of_shares: bool = True, level: float = 0.95
) -> Interval | None:
    """The mean with its interval, from the variance of a ratio over groups (Cochran 1977, section
    6.4); None without values.

    A share gets Wilson's interval for as many independent values as have that variance, for the
    number of groups if all have the same share. Other means need two groups.
    """
    if sums.n <= 0:
        return None
    mean = sums.total / sums.n
    scatter = sums.total_squares - 2 * mean * sums.products + mean * mean * sums.n_squares
    g = round(sums.n_groups)
    variance = max(0.0, scatter) / sums.n**2 * g / (g - 1) if g > 1 else 0.0
    n = round(sums.n)
    if of_shares:
        mean = min(1.0, max(0.0, mean))
        n_alike = min(sums.n, mean * (1 - mean) / variance) if variance > SAME**2 else float(g)
        low, high = wilson_bounds(mean, max(1.0, n_alike), level)
    elif g < 2:
        return None
    else:
        half = float(np.sqrt(_squared_quantile(level) * variance))
        low, high = mean - half, mean + half
    # Rounding may put an end on the wrong side of a share of 0 or 1.
    return Interval(
        value=mean, low=min(mean, float(low)), high=max(mean, float(high)), n=n, level=level
    )


def wilson_bounds(share: Any, n: Any, level: float = 0.95) -> tuple[Any, Any]:
    """Wilson's score interval (1927) of a proportion of `n`; it stays wide if none or all of them
    count. Takes numbers or arrays.
    """
    z2 = _squared_quantile(level)
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 / n * (share * (1 - share) + z2 / (4 * n))) / (1 + z2 / n)
    return np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


@lru_cache
def _squared_quantile(level: float) -> float:
    """Of the normal distribution. Stored intervals hold scipy's last bit, which differs from that
    of `statistics.NormalDist`; `scipy.stats` would add most of a second to a page's first request.
    """
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2)) ** 2

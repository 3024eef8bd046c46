"""All measures of calibration with their intervals, and the reliability table. Knows arrays; knows no model.

Brier's parts (Murphy 1973) are taken over the equal-mass bins k of the debiased ECE, with every row counted once for each side: which
completion is called a is a coin's work, so the base rate is a half and the uncertainty 1/4.

    Brier = sum share_k (confidence_k - accuracy_k)^2  -  sum share_k (accuracy_k - 1/2)^2  +  1/4  +  within_bins
             reliability                                 resolution                          uncertainty

`within_bins`, the variance of the confidence within bins less twice its covariance with the outcome (Stephenson, Coelho and Jolliffe
2008), makes the sum exact. Reliability and resolution both hold noise of the bins' accuracies, the same in both.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlhf_pipeline.calibration.metrics import (
    N_BINS,
    Floats,
    Groups,
    Ints,
    Rows,
    ece,
    equal_mass,
    equal_width,
    log_losses,
    share_of_noise_off,
    squares,
)
from rlhf_pipeline.calibration.slope import LARGEST, log_odds, slope_of
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import BrierParts, CalibrationMetrics, Interval, ReliabilityBin
from rlhf_pipeline.votes.intervals import BootstrapParams, percentiles, resampled_totals, wilson_bounds

UNCERTAINTY = 0.25

Around = Callable[[float, Floats], Interval]  # an estimate and the same of each resample
Totals = Mapping[str, Floats]


def calibration_metrics(
    p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None, n: int | None = None, params: BootstrapParams | None = None
) -> CalibrationMetrics:
    """All measures of P(a preferred) against outcomes (1 where a was), with bootstrap intervals over `groups` (prompts).

    `n` is the number of comparisons, if not of rows. Every measure is computed on the same resamples; bins stay as the rows made them.
    The slope is missing where nothing could tell one: every probability 0.5, or one group. Raises InvalidScores for NaN and values
    that are no probability, NotEnoughData without rows.
    """
    params = params or BootstrapParams()
    rows = Rows.of(p, outcomes, weights=weights, groups=groups)
    count, n_groups = len(rows.right) if n is None else n, int(rows.group.max()) + 1
    wide, mass = equal_width(rows), equal_mass(rows)
    slope = _slope(rows)
    blocks = _blocks(rows, wide, mass, slope)
    sizes = np.cumsum([block.shape[1] for block in blocks.values()])[:-1]
    drawn = resampled_totals(np.concatenate(list(blocks.values()), axis=1), rows.group, params)
    seen = {name: block.sum(axis=0, keepdims=True) for name, block in blocks.items()}
    again = dict(zip(blocks, np.split(drawn, sizes, axis=1), strict=True))

    def interval(value: float, resampled: Floats) -> Interval:
        return percentiles(value, resampled, count, params, n_groups)

    def of(measure: Callable[[Totals], Floats]) -> Interval:
        return interval(float(measure(seen)[0]), measure(again))

    accuracy = of(lambda totals: _mean(totals, "right"))
    if accuracy.value in (0.0, 1.0):  # drawn again, all alike stay all alike: that is no certainty
        low, high = wilson_bounds(accuracy.value, n_groups, params.level)
        accuracy = accuracy.model_copy(update={"low": float(low), "high": float(high)})
    brier = of(lambda totals: _mean(totals, "brier"))
    reliability, resolution = of(_reliability), of(_resolution)
    return CalibrationMetrics(
        n=count,
        accuracy=accuracy,
        ece_equal_width=interval(ece(rows, wide), _gap_sum(again, "gap_wide")),
        ece_equal_mass=interval(ece(rows, mass), _gap_sum(again, "gap")),
        brier=brier,
        log_loss=of(lambda totals: _mean(totals, "log_loss")),
        ece_debiased=_debiased(seen, again, params.level, interval),
        slope=None if slope is None else interval(slope, _slopes(again, slope)),
        brier_parts=BrierParts(
            reliability=reliability,
            resolution=resolution,
            uncertainty=UNCERTAINTY,
            within_bins=brier.value - reliability.value + resolution.value - UNCERTAINTY,
        ),
    )


def reliability_table(
    p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None, n_bins: int = N_BINS, params: BootstrapParams | None = None
) -> tuple[ReliabilityBin, ...]:
    """Confidence against accuracy per bin of equal width, with counts and Wilson intervals; empty bins are left out."""
    params = params or BootstrapParams()
    rows = Rows.of(p, outcomes, weights=weights, groups=groups)
    bins = equal_width(rows, n_bins)
    table = []
    for k in np.unique(bins):
        inside = bins == k
        part = Rows(rows.confidence[inside], rows.right[inside], rows.weight[inside], rows.group[inside])
        confidence, accuracy = part.mean
        low, high = wilson_bounds(accuracy, len(np.unique(part.group)), params.level)
        table.append(
            ReliabilityBin(
                low=0.5 + k / (2 * n_bins),
                high=0.5 + (k + 1) / (2 * n_bins),
                n=int(inside.sum()),
                mean_confidence=confidence,
                accuracy=accuracy,
                accuracy_low=float(low),
                accuracy_high=float(high),
            )
        )
    return tuple(table)


def _slope(rows: Rows) -> float | None:
    try:
        return slope_of(rows)
    except NotEnoughData:
        return None


def _blocks(rows: Rows, wide: Ints, mass: Ints, slope: float | None) -> dict[str, Floats]:
    """What each row adds to each total, (n, k) by name: every measure is a function of totals."""
    gap = rows.weight * (rows.right - rows.confidence)
    one = {
        "mass": rows.weight,
        "right": rows.weight * rows.right,
        "brier": rows.weight * squares(rows),
        "log_loss": rows.weight * log_losses(rows),
    }
    blocks = {name: values[:, None] for name, values in one.items()}
    blocks |= {"gap_wide": _by_bin(gap, wide), "gap": _by_bin(gap, mass)}
    blocks |= {"bin_mass": _by_bin(rows.weight, mass), "bin_right": _by_bin(rows.weight * rows.right, mass)}
    blocks |= {"bin_mass2": _by_bin(rows.weight**2, mass)}
    if slope is not None:
        x = log_odds(rows)
        q = 1 / (1 + np.exp(-slope * x))
        blocks |= {"score": (rows.weight * x * (rows.right - q))[:, None], "information": (rows.weight * x**2 * q * (1 - q))[:, None]}
    return blocks


def _by_bin(values: Floats, bins: Ints) -> Floats:
    return np.asarray((bins[:, None] == np.arange(int(bins.max()) + 1)) * values[:, None])


def _mean(totals: Totals, name: str) -> Floats:
    # Sums of what is never negative: rounding alone could make them so.
    return np.asarray(np.maximum(totals[name][:, 0], 0) / totals["mass"][:, 0])


def _gap_sum(totals: Totals, name: str) -> Floats:
    return np.asarray(np.abs(totals[name]).sum(axis=1) / totals["mass"][:, 0])


def _per_bin(totals: Totals) -> tuple[Floats, Floats, Floats, Floats]:
    """Gap, share of the weight, accuracy and variance of the accuracy of each bin; nothing of a bin that was not drawn."""
    mass = totals["bin_mass"]
    safe = np.maximum(mass, 1e-300)
    accuracy = np.clip(totals["bin_right"] / safe, 0, 1)
    effective = safe**2 / np.maximum(totals["bin_mass2"], 1e-300)
    share = mass / mass.sum(axis=1, keepdims=True)
    return totals["gap"] / safe, share, accuracy, accuracy * (1 - accuracy) / np.maximum(effective, 1e-300)


def _reliability(totals: Totals) -> Floats:
    gap, share, _, _ = _per_bin(totals)
    return np.asarray((share * gap**2).sum(axis=1))


def _resolution(totals: Totals) -> Floats:
    _, share, accuracy, _ = _per_bin(totals)
    return np.asarray((share * (accuracy - 0.5) ** 2).sum(axis=1))


def _debiased(seen: Totals, again: Totals, level: float, interval: Around) -> Interval:
    """The basic bootstrap interval: resamples scatter around the plain ECE of the rows, which holds their noise, not around the true one.

    It starts at 0 where noise alone could have made that plain ECE: no bootstrap of a size knows how near to 0 the truth may lie.
    """

    def off(totals: Totals) -> Floats:
        gap, share, _, variance = _per_bin(totals)
        return share_of_noise_off(gap, share, variance)

    value, plain = float(off(seen)[0]), float(_gap_sum(seen, "gap")[0])
    resampled = np.maximum(value - (off(again) - plain), 0.0)
    noise = np.abs(again["gap"] / again["mass"] - seen["gap"] / seen["mass"]).sum(axis=1)
    found = interval(max(0.0, value), resampled)
    return found.model_copy(update={"low": 0.0}) if plain <= np.quantile(noise, 0.5 + level / 2) else found


def _slopes(again: Totals, slope: float) -> Floats:
    """One Newton step from the rows' slope in each resample (Kline and Santos 2012): a thousand fits for the price of one."""
    return np.asarray(np.clip(slope + again["score"][:, 0] / np.maximum(again["information"][:, 0], 1e-12), -LARGEST, LARGEST))

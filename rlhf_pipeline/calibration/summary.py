"""All calibration metrics with their intervals, and the reliability table.

Brier's parts (Murphy 1973) are taken over the equal-mass bins k of the debiased ECE, with every
row counted once for each side: sides are assigned at random, so the base rate is a half and the
uncertainty 1/4.

    Brier = sum share_k (confidence_k - accuracy_k)^2     reliability
            - sum share_k (accuracy_k - 1/2)^2            resolution
            + 1/4                                         uncertainty
            + within_bins

`within_bins`, the variance of the confidence within bins less twice its covariance with the outcome
(Stephenson, Coelho and Jolliffe 2008), makes the sum exact. Reliability and resolution both hold
noise of the bins' accuracies, the same in both.

If all rows of a bin agree, so do all resamples, and the bootstrap would claim certainty. Such a
bin uses a parametric bootstrap (Davison and Hinkley 1997, section 2.2): as many votes as the bin
has groups are drawn at the rate of (k + 1/2) / (n + 1), see `smooth_share`. Where all groups have
the same share right (all, or three of four in each), accuracy has Wilson's interval, and Brier and
log loss at least what they would be at its ends.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlhf_pipeline.calibration.metrics import (
    N_BINS,
    Floats,
    FoldedRows,
    Groups,
    Ints,
    ece,
    equal_mass_bins,
    equal_width_bins,
    log_losses,
    smooth_share,
    squared_errors,
    subtract_noise,
    variance_of_share,
)
from rlhf_pipeline.calibration.slope import says_nothing, slope_interval
from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.intervals import (
    BootstrapParams,
    has_no_scatter,
    percentile_interval,
    resampled_totals,
    wilson_bounds,
)
from rlhf_pipeline.records import BrierParts, CalibrationMetrics, Interval, ReliabilityBin
from rlhf_pipeline.reward_model.base import require_finite

UNCERTAINTY = 0.25

Around = Callable[[float, Floats], Interval]  # an estimate, and its value in each resample
Totals = Mapping[str, Floats]


def calibration_metrics(
    p: Any,
    outcomes: Any,
    *,
    right: Any = None,
    weights: Any = None,
    groups: Groups = None,
    n: int | None = None,
    params: BootstrapParams | None = None,
) -> CalibrationMetrics:
    """All measures of P(a preferred) against outcomes (1 where a was), with bootstrap intervals
    over `groups` (prompts).

    `right` is the share of each row's votes for the side with the higher score, for the accuracy
    alone; default: for the likelier side by p. The two differ where calibration makes p 0.5, and
    calibration must not change the accuracy.

    `n` is the number of comparisons; default: of rows. Every measure is computed on the same
    resamples; bins stay as the rows made them. The slope has its score interval (`slope_bounds`)
    instead, and is missing if it cannot be estimated: every probability 0.5, one group, or all
    votes with or all against the model. Raises InvalidScores for NaN and values outside [0, 1],
    NotEnoughData without rows.
    """
    params = params or BootstrapParams()
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights, groups=groups)
    right = rows.right if right is None else _check_right(right, len(rows.right))
    count, n_groups = len(rows.right) if n is None else n, int(rows.group.max()) + 1
    wide, mass = equal_width_bins(rows), equal_mass_bins(rows)
    blocks = _blocks(rows, right, wide, mass)
    sizes = np.cumsum([block.shape[1] for block in blocks.values()])[:-1]
    drawn = resampled_totals(np.concatenate(list(blocks.values()), axis=1), rows.group, params)
    seen = {name: block.sum(axis=0, keepdims=True) for name, block in blocks.items()}
    again = dict(zip(blocks, np.split(drawn, sizes, axis=1), strict=True))
    supposed, by_chance = _perturb_uniform_bins(seen, again, rows, wide, mass, params)

    def interval(value: float, resampled: Floats) -> Interval:
        return percentile_interval(value, resampled, count, params, n_groups)

    def interval_of(measure: Callable[[Totals], Floats]) -> Interval:
        return interval(float(measure(seen)[0]), measure(again))

    means = {
        name: interval_of(partial(_mean, name=name)) for name in ("right", "brier", "log_loss")
    }
    # resampling equal values gives equal values, which is not certainty
    if has_no_scatter(_mean(again, "right")):
        means = _widen_to_wilson(means, rows, n_groups, params.level)
    brier = means["brier"]
    reliability, resolution = interval_of(_reliability), interval_of(_resolution)
    return CalibrationMetrics(
        n=count,
        accuracy=means["right"],
        ece_equal_width=interval(ece(rows, wide), _gap_sum(again, "gap_wide")),
        ece_equal_mass=interval(ece(rows, mass), _gap_sum(again, "gap")),
        brier=brier,
        log_loss=means["log_loss"],
        ece_debiased=_debiased_interval(seen, supposed, again, by_chance, params.level, interval),
        slope=_slope(rows, params.level, count),
        brier_parts=BrierParts(
            reliability=reliability,
            resolution=resolution,
            uncertainty=UNCERTAINTY,
            within_bins=brier.value - reliability.value + resolution.value - UNCERTAINTY,
        ),
    )


def reliability_table(
    p: Any,
    outcomes: Any,
    *,
    weights: Any = None,
    groups: Groups = None,
    n_bins: int = N_BINS,
    params: BootstrapParams | None = None,
) -> tuple[ReliabilityBin, ...]:
    """Confidence against accuracy per bin of equal width, with counts and Wilson intervals; empty
    bins are left out.
    """
    params = params or BootstrapParams()
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights, groups=groups)
    bins = equal_width_bins(rows, n_bins)
    table = []
    for k in np.unique(bins):
        inside = bins == k
        part = FoldedRows(
            rows.confidence[inside], rows.right[inside], rows.weight[inside], rows.group[inside]
        )
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


def _check_right(right: Any, n: int) -> Floats:
    found = require_finite(right, "shares right")
    if len(found) != n or ((found < 0) | (found > 1)).any():
        raise InvalidScores(
            f"{len(found)} shares right for {n} rows. Pass one share per row, from 0 to 1."
        )
    return found


def _slope(rows: FoldedRows, level: float, n: int) -> Interval | None:
    try:
        slope = slope_interval(rows, level).model_copy(update={"n": n})
    except NotEnoughData:
        return None
    return None if says_nothing(slope) else slope


@dataclass(frozen=True)
class _UniformBin:
    """A bin whose rows were all right (`share` 1) or all wrong (0), its mean confidence and its
    number of groups.
    """

    bin: int
    share: float
    confidence: float
    n_groups: int

    @property
    def rate(self) -> float:
        return float(smooth_share(self.share, self.n_groups))


def _uniform_bins(rows: FoldedRows, bins: Ints) -> Iterator[_UniformBin]:
    for k in np.unique(bins):
        inside = (bins == k) & (rows.weight > 0)
        right = rows.right[inside]
        if len(right) and right[0] in (0.0, 1.0) and (right == right[0]).all():
            confidence = float(np.average(rows.confidence[inside], weights=rows.weight[inside]))
            yield _UniformBin(
                int(k), float(right[0]), confidence, len(np.unique(rows.group[inside]))
            )


def _perturb_uniform_bins(
    seen: Totals,
    again: dict[str, Floats],
    rows: FoldedRows,
    wide: Ints,
    mass: Ints,
    params: BootstrapParams,
) -> tuple[dict[str, Floats], Floats]:
    """Add parametric noise, in place, to the resamples of bins whose rows all agree. Returns the
    totals behind these resamples, with the smoothed rate in such bins, and each equal-mass bin's
    gap for a calibrated model with as many votes as groups, (n_resamples, bins); NaN for bins
    whose rows differ.
    """
    rng = np.random.default_rng([params.seed, len(rows.right)])
    supposed = {"mass": seen["mass"], "gap": seen["gap"].copy()}
    by_chance = np.full(again["gap"].shape, np.nan)
    for found in _uniform_bins(rows, wide):
        again["gap_wide"][:, found.bin] += (
            _draw_errors(found, params.n_resamples, rng) * again["mass_wide"][:, found.bin]
        )
    for found in _uniform_bins(rows, mass):
        supposed["gap"][:, found.bin] += (found.rate - found.share) * seen["bin_mass"][:, found.bin]
        error = _draw_errors(found, params.n_resamples, rng) * again["bin_mass"][:, found.bin]
        again["gap"][:, found.bin] += error
        again["bin_right"][:, found.bin] += error
        by_chance[:, found.bin] = (
            rng.binomial(found.n_groups, found.confidence, params.n_resamples) / found.n_groups
            - found.confidence
        )
    return supposed, by_chance


def _draw_errors(found: _UniformBin, n_resamples: int, rng: np.random.Generator) -> Floats:
    return np.asarray(
        rng.binomial(found.n_groups, found.rate, n_resamples) / found.n_groups - found.share
    )


def _widen_to_wilson(
    means: Mapping[str, Interval], rows: FoldedRows, n_groups: int, level: float
) -> dict[str, Interval]:
    """Accuracy, Brier and log loss of groups with one share right: each is linear in the accuracy,
    if the right predictions were drawn at random.
    """
    accuracy = means["right"].value
    ends = [float(end) for end in wilson_bounds(accuracy, n_groups, level)]
    right, wrong = (
        replace(rows, right=np.full_like(rows.right, all_are)) for all_are in (1.0, 0.0)
    )
    slopes = {"right": 1.0} | {
        name: _weighted_mean(right, measure) - _weighted_mean(wrong, measure)
        for name, measure in (("brier", squared_errors), ("log_loss", log_losses))
    }

    def widen(name: str, interval: Interval) -> Interval:
        there = [interval.value + (end - accuracy) * slopes[name] for end in ends]
        return interval.model_copy(
            update={"low": max(0.0, min(interval.low, *there)), "high": max(interval.high, *there)}
        )

    return {name: widen(name, interval) for name, interval in means.items()}


def _weighted_mean(rows: FoldedRows, measure: Callable[[FoldedRows], Floats]) -> float:
    return float(np.average(measure(rows), weights=rows.weight))


def _blocks(rows: FoldedRows, right: Floats, wide: Ints, mass: Ints) -> dict[str, Floats]:
    """What each row adds to each total, (n, k) by name: every measure is a function of totals."""
    gap = rows.weight * (rows.right - rows.confidence)
    one = {
        "mass": rows.weight,
        "right": rows.weight * right,
        "brier": rows.weight * squared_errors(rows),
        "log_loss": rows.weight * log_losses(rows),
    }
    blocks = {name: values[:, None] for name, values in one.items()}
    blocks |= {
        "gap_wide": _by_bin(gap, wide),
        "mass_wide": _by_bin(rows.weight, wide),
        "gap": _by_bin(gap, mass),
    }
    blocks |= {
        "bin_mass": _by_bin(rows.weight, mass),
        "bin_right": _by_bin(rows.weight * rows.right, mass),
    }
    blocks |= {"bin_mass2": _by_bin(rows.weight**2, mass)}
    return blocks


def _by_bin(values: Floats, bins: Ints) -> Floats:
    return np.asarray((bins[:, None] == np.arange(int(bins.max()) + 1)) * values[:, None])


def _mean(totals: Totals, name: str) -> Floats:
    # Sums of non-negative terms, which only rounding could make negative.
    return np.asarray(np.maximum(totals[name][:, 0], 0) / totals["mass"][:, 0])


def _gap_sum(totals: Totals, name: str) -> Floats:
    return np.asarray(np.abs(totals[name]).sum(axis=1) / totals["mass"][:, 0])


def _per_bin(totals: Totals) -> tuple[Floats, Floats, Floats, Floats]:
    """Gap, share of the weight, accuracy and variance of the accuracy of each bin; nothing of a bin
    that was not drawn.
    """
    mass = totals["bin_mass"]
    safe = np.maximum(mass, 1e-300)
    accuracy = np.clip(totals["bin_right"] / safe, 0, 1)
    effective = safe**2 / np.maximum(totals["bin_mass2"], 1e-300)
    share = mass / mass.sum(axis=1, keepdims=True)
    return totals["gap"] / safe, share, accuracy, variance_of_share(accuracy, effective)


def _reliability(totals: Totals) -> Floats:
    gap, share, _, _ = _per_bin(totals)
    return np.asarray((share * gap**2).sum(axis=1))


def _resolution(totals: Totals) -> Floats:
    _, share, accuracy, _ = _per_bin(totals)
    return np.asarray((share * (accuracy - 0.5) ** 2).sum(axis=1))


def _debiased_interval(
    seen: Totals, supposed: Totals, again: Totals, by_chance: Floats, level: float, interval: Around
) -> Interval:
    """The basic bootstrap interval: resamples scatter around the plain ECE of their source
    (`supposed`), which contains the rows' noise, not around the true ECE. It starts at 0 if noise
    alone could explain that plain ECE. `by_chance` is the noise of bins whose rows agree, see
    `_perturb_uniform_bins`.
    """

    def debiased_ece(totals: Totals) -> Floats:
        gap, share, _, variance = _per_bin(totals)
        return subtract_noise(gap, share, variance)

    value, plain = float(debiased_ece(seen)[0]), float(_gap_sum(seen, "gap")[0])
    resampled = np.clip(
        value - (debiased_ece(again) - float(_gap_sum(supposed, "gap")[0])), 0.0, 1.0
    )
    shown = again["gap"] / again["mass"] - seen["gap"] / seen["mass"]
    noise = np.abs(
        np.where(np.isnan(by_chance), shown, by_chance * seen["bin_mass"] / seen["mass"])
    ).sum(axis=1)
    found = interval(max(0.0, value), resampled)
    return (
        found.model_copy(update={"low": 0.0})
        if plain <= np.quantile(noise, 0.5 + level / 2)
        else found
    )

"""All calibration metrics with their intervals, and the reliability table.

Where all groups have the same share right (all, or three of four in each), so have all resamples,
and the bootstrap would claim certainty: accuracy has Wilson's interval then, and the other measures
at least what they would be at its ends. If that is so in one bin only, the bin has a parametric
bootstrap (Davison and Hinkley 1997, section 2.2): as many votes as the bin has groups are drawn, at
the rate of `smooth_share`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.core.intervals import (
    BootstrapParams,
    has_no_scatter,
    percentile_interval,
    resampled_totals,
    wilson_bounds,
)
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    CalibrationReport,
    Interval,
    ReliabilityBin,
)
from rlhf_pipeline.learn.calibration.metrics import (
    N_BINS,
    Floats,
    FoldedRows,
    Groups,
    Ints,
    equal_mass_bins,
    equal_width_bins,
    log_losses,
    mean_gap,
    smooth_share,
    squared_errors,
    subtract_noise,
    variance_of_share,
)
from rlhf_pipeline.learn.calibration.slope import says_nothing, slope_interval
from rlhf_pipeline.learn.reward_model.base import require_finite

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
    bins = equal_mass_bins(rows)
    blocks = _blocks(rows, right, bins)
    sizes = np.cumsum([block.shape[1] for block in blocks.values()])[:-1]
    resamples = resampled_totals(np.concatenate(list(blocks.values()), axis=1), rows.group, params)
    totals = {name: block.sum(axis=0, keepdims=True) for name, block in blocks.items()}
    redrawn = dict(zip(blocks, np.split(resamples, sizes, axis=1), strict=True))
    supposed, by_chance = _perturb_uniform_bins(totals, redrawn, rows, bins, params)

    def interval(value: float, resampled: Floats) -> Interval:
        return percentile_interval(value, resampled, count, params, n_groups)

    def interval_of(measure: Callable[[Totals], Floats]) -> Interval:
        return interval(float(measure(totals)[0]), measure(redrawn))

    intervals = {
        name: interval_of(partial(_mean, name=name)) for name in ("right", "brier", "log_loss")
    }
    intervals["binned_gap"] = interval(mean_gap(rows, bins), _gap_sum(redrawn))
    intervals["ece"] = _debiased_interval(
        totals, supposed, redrawn, by_chance, params.level, interval
    )
    # resampling equal values gives equal values, which is not certainty
    if has_no_scatter(_mean(redrawn, "right")):
        intervals = _widen_to_wilson(intervals, rows, n_groups, params.level)
    return CalibrationMetrics(
        n=count,
        accuracy=intervals["right"],
        binned_gap=intervals["binned_gap"],
        brier=intervals["brier"],
        log_loss=intervals["log_loss"],
        ece=intervals["ece"],
        slope=_slope(rows, params.level, count),
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
    shares = require_finite(right, "shares right")
    if len(shares) != n or ((shares < 0) | (shares > 1)).any():
        raise InvalidScores(
            f"{len(shares)} shares right for {n} rows. Pass one share per row, from 0 to 1."
        )
    return shares


def _slope(rows: FoldedRows, level: float, n: int) -> Interval | None:
    try:
        slope = slope_interval(rows, level).model_copy(update={"n": n})
    except NotEnoughData:
        return None
    return None if says_nothing(slope) else slope


def _perturb_uniform_bins(
    totals: Totals,
    redrawn: Totals,
    rows: FoldedRows,
    bins: Ints,
    params: BootstrapParams,
) -> tuple[Totals, Floats]:
    """Add parametric noise, in place, to the resamples of bins whose rows were all right or all
    wrong. Returns the totals behind these resamples, with the smoothed rate in such bins, and each
    bin's gap for a calibrated model with as many votes as groups, (n_resamples, bins); NaN for
    other bins.
    """
    rng = np.random.default_rng([params.seed, len(rows.right)])
    supposed = {"mass": totals["mass"], "gap": totals["gap"].copy()}
    by_chance = np.full(redrawn["gap"].shape, np.nan)
    for k in np.unique(bins):
        inside = (bins == k) & (rows.weight > 0)
        shares = np.unique(rows.right[inside])
        if len(shares) != 1 or shares[0] not in (0.0, 1.0):
            continue
        share, n = shares[0], len(np.unique(rows.group[inside]))
        rate = smooth_share(share, n)
        confidence = np.average(rows.confidence[inside], weights=rows.weight[inside])
        supposed["gap"][:, k] += (rate - share) * totals["bin_mass"][:, k]
        error = (rng.binomial(n, rate, params.n_resamples) / n - share) * redrawn["bin_mass"][:, k]
        redrawn["gap"][:, k] += error
        redrawn["bin_right"][:, k] += error
        by_chance[:, k] = rng.binomial(n, confidence, params.n_resamples) / n - confidence
    return supposed, by_chance


def _widen_to_wilson(
    intervals: Mapping[str, Interval], rows: FoldedRows, n_groups: int, level: float
) -> dict[str, Interval]:
    """The measures of groups with one share right: each follows from the accuracy, if the right
    predictions were drawn at random.
    """
    accuracy = intervals["right"].value
    ends = [float(end) for end in wilson_bounds(accuracy, n_groups, level)]
    right, wrong = (
        replace(rows, right=np.full_like(rows.right, all_are)) for all_are in (1.0, 0.0)
    )
    slopes = {"right": 1.0} | {
        name: _weighted_mean(right, measure) - _weighted_mean(wrong, measure)
        for name, measure in (("brier", squared_errors), ("log_loss", log_losses))
    }

    def widen(name: str, interval: Interval) -> Interval:
        if name in slopes:
            there = [interval.value + (end - accuracy) * slopes[name] for end in ends]
        else:  # an ECE
            confidence = rows.mean[0]
            nearest = min(max(confidence, ends[0]), ends[1])
            there = [abs(end - confidence) for end in (*ends, nearest)]
        return interval.model_copy(
            update={"low": max(0.0, min(interval.low, *there)), "high": max(interval.high, *there)}
        )

    return {name: widen(name, interval) for name, interval in intervals.items()}


def _weighted_mean(rows: FoldedRows, measure: Callable[[FoldedRows], Floats]) -> float:
    return float(np.average(measure(rows), weights=rows.weight))


def _blocks(rows: FoldedRows, right: Floats, bins: Ints) -> dict[str, Floats]:
    """What each row adds to each total, (n, k) by name: every measure is a function of totals."""
    by_row = {
        "mass": rows.weight,
        "right": rows.weight * right,
        "brier": rows.weight * squared_errors(rows),
        "log_loss": rows.weight * log_losses(rows),
    }
    by_bin = {
        "gap": rows.weight * (rows.right - rows.confidence),
        "bin_mass": rows.weight,
        "bin_right": rows.weight * rows.right,
        "bin_mass2": rows.weight**2,
    }
    is_in = bins[:, None] == np.arange(int(bins.max()) + 1)
    return {name: values[:, None] for name, values in by_row.items()} | {
        name: np.asarray(is_in * values[:, None]) for name, values in by_bin.items()
    }


def _mean(totals: Totals, name: str) -> Floats:
    # Sums of non-negative terms, which only rounding could make negative.
    return np.asarray(np.maximum(totals[name][:, 0], 0) / totals["mass"][:, 0])


def _gap_sum(totals: Totals) -> Floats:
    return np.asarray(np.abs(totals["gap"]).sum(axis=1) / totals["mass"][:, 0])


def _debiased(totals: Totals) -> Floats:
    mass = totals["bin_mass"]
    safe = np.maximum(mass, 1e-300)  # a bin that was not drawn has no gap and no share
    accuracy = np.clip(totals["bin_right"] / safe, 0, 1)
    effective = safe**2 / np.maximum(totals["bin_mass2"], 1e-300)
    share = mass / mass.sum(axis=1, keepdims=True)
    return subtract_noise(totals["gap"] / safe, share, variance_of_share(accuracy, effective))


def _debiased_interval(
    totals: Totals,
    supposed: Totals,
    redrawn: Totals,
    by_chance: Floats,
    level: float,
    interval: Around,
) -> Interval:
    """The basic bootstrap interval: resamples scatter around the plain ECE of their source
    (`supposed`), which contains the rows' noise, not around the true ECE. It starts at 0 if noise
    alone could explain that plain ECE. `by_chance` is the noise of bins whose rows agree, see
    `_perturb_uniform_bins`.
    """
    value, plain = float(_debiased(totals)[0]), float(_gap_sum(totals)[0])
    resampled = np.clip(value - (_debiased(redrawn) - float(_gap_sum(supposed)[0])), 0.0, 1.0)
    deviation = redrawn["gap"] / redrawn["mass"] - totals["gap"] / totals["mass"]
    chance = by_chance * totals["bin_mass"] / totals["mass"]
    noise = np.abs(np.where(np.isnan(chance), deviation, chance)).sum(axis=1)
    estimate = interval(max(0.0, value), resampled)
    if plain <= np.quantile(noise, 0.5 + level / 2):
        return estimate.model_copy(update={"low": 0.0})
    return estimate


def calibration_figures(report: CalibrationReport) -> dict[str, float]:
    """Estimates and interval bounds as metrics, so that MLflow shows no estimate without its
    uncertainty. Unknown ones are left out.
    """
    raw = report.raw
    calibrated = report.calibrated
    intervals: dict[str, Interval | None] = {
        "accuracy": raw.accuracy,
        "noise_ceiling": report.noise_ceiling,
        "binned_gap_raw": raw.binned_gap,
        "binned_gap_calibrated": calibrated.binned_gap,
        "ece_raw": raw.ece,
        "ece_calibrated": calibrated.ece,
        "slope_raw": raw.slope,
        "slope_calibrated": calibrated.slope,
        "brier_calibrated": calibrated.brier,
        "log_loss_raw": raw.log_loss,
        "log_loss_calibrated": calibrated.log_loss,
    }
    for head in report.by_dimension:
        for stage, metrics in (("raw", head.raw), ("calibrated", head.calibrated)):
            if metrics is not None:
                intervals |= {
                    f"ece_{stage}_in_{head.group}": metrics.ece,
                    f"slope_{stage}_in_{head.group}": metrics.slope,
                    f"brier_{stage}_in_{head.group}": metrics.brier,
                }
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {
        f"{name}{end}": float(getattr(interval, attribute))
        for name, interval in intervals.items()
        if interval is not None
        for end, attribute in ends.items()
    }

"""How far stated probabilities can be trusted. Knows arrays of probabilities and outcomes; knows no model.

Everything is computed on folded rows: confidence in the side predicted, and whether that side was preferred. So the
numbers do not depend on which completion was called a, and bins cover [0.5, 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.records import CalibrationMetrics, ReliabilityBin
from rlhf_pipeline.reward_model.base import finite
from rlhf_pipeline.votes.intervals import BootstrapParams, group_index, percentiles, resampled_totals, wilson_bounds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Groups = Sequence[Any] | npt.NDArray[Any] | None

N_BINS = 10
SMALLEST = 1e-12  # log loss of a certain prediction that failed: 27.6 nats, not infinity


@dataclass(frozen=True)
class Rows:
    """Folded rows: confidence (n,) of 0.5 to 1, right (n,) of 0 to 1, weight (n,), number of the group (n,)."""

    confidence: Floats
    right: Floats
    weight: Floats
    group: Ints

    @classmethod
    def of(cls, p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None) -> "Rows":
        """From P(a preferred) and outcomes (1 where a was preferred; a share of votes will do).

        Raises InvalidScores for NaN, infinite or out-of-range values and unequal lengths, NotEnoughData without rows.
        """
        p, y = finite(p, "probabilities"), finite(outcomes, "outcomes")
        w = np.ones_like(p) if weights is None else finite(weights, "weights")
        if not (len(p) == len(y) == len(w)):
            raise InvalidScores(f"{len(p)} probabilities, {len(y)} outcomes, {len(w)} weights. Hand in one of each per row.")
        if not len(p) or w.sum() <= 0:
            raise NotEnoughData("No voted predictions to measure calibration on. Collect votes on predicted comparisons first.")
        if ((p < 0) | (p > 1) | (y < 0) | (y > 1) | (w < 0)).any():
            raise InvalidScores(
                "Probabilities and outcomes lie between 0 and 1 and weights are not negative. Are these scores, not probabilities?"
            )
        right = np.where(p > 0.5, y, np.where(p < 0.5, 1 - y, 0.5))
        return cls(np.maximum(p, 1 - p), right, w, group_index(groups, len(p)))

    @property
    def mean(self) -> tuple[float, float]:
        return float(self.weight @ self.confidence / self.weight.sum()), float(self.weight @ self.right / self.weight.sum())


def equal_width(rows: Rows, n_bins: int = N_BINS) -> Ints:
    """Bin of each row: [0.5, 1] cut into `n_bins` of the same width."""
    return np.minimum((rows.confidence - 0.5) * 2 * n_bins, n_bins - 1).astype(np.int64)


def equal_mass(rows: Rows, n_bins: int = N_BINS) -> Ints:
    """Bin of each row: as nearly the same weight in each as equal confidences, which stay together, allow."""
    _, inverse = np.unique(rows.confidence, return_inverse=True)
    mass = np.bincount(inverse, weights=rows.weight)
    middle = np.cumsum(mass) - mass / 2
    bins = np.minimum(middle / mass.sum() * n_bins, n_bins - 1).astype(np.int64)
    return np.asarray(bins[inverse], dtype=np.int64)


def ece_equal_width(p: Any, outcomes: Any, *, weights: Any = None, n_bins: int = N_BINS) -> float:
    """Expected calibration error: mean |confidence - accuracy| over bins of equal width, weighted by their rows."""
    rows = Rows.of(p, outcomes, weights=weights)
    return _ece(rows, equal_width(rows, n_bins))


def ece_equal_mass(p: Any, outcomes: Any, *, weights: Any = None, n_bins: int = N_BINS) -> float:
    """The same over bins of equal weight, which no empty bin can distort."""
    rows = Rows.of(p, outcomes, weights=weights)
    return _ece(rows, equal_mass(rows, n_bins))


def ece_debiased(p: Any, outcomes: Any, *, weights: Any = None, n_bins: int = N_BINS) -> float:
    """Equal-mass ECE less the part that noise alone adds (Kumar, Liang and Ma 2019, section 5); never below 0.

    Their resampled normal noise of each bin's accuracy is replaced by its mean in closed form (the folded normal).
    """
    from scipy.stats import norm

    rows = Rows.of(p, outcomes, weights=weights)
    gap, share, variance = _bin_gaps(rows, equal_mass(rows, n_bins))
    noise = np.sqrt(np.maximum(variance, 1e-18))
    size = np.abs(gap)
    expected = noise * np.sqrt(2 / np.pi) * np.exp(-((size / noise) ** 2) / 2) + size * (1 - 2 * norm.cdf(-size / noise))
    return float(max(0.0, share @ (2 * size - expected)))


def brier(p: Any, outcomes: Any, *, weights: Any = None) -> float:
    """Mean squared distance between probability and outcome; 0.25 is a coin."""
    rows = Rows.of(p, outcomes, weights=weights)
    return float(rows.weight @ _squares(rows) / rows.weight.sum())


def log_loss(p: Any, outcomes: Any, *, weights: Any = None) -> float:
    """Mean negative log likelihood in nats; 0.693 is a coin."""
    rows = Rows.of(p, outcomes, weights=weights)
    return float(rows.weight @ _log_losses(rows) / rows.weight.sum())


def calibration_metrics(
    p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None, n: int | None = None, params: BootstrapParams | None = None
) -> CalibrationMetrics:
    """All of the above with bootstrap intervals over `groups` (prompts); `n` is the number of comparisons, if not of rows."""
    params = params or BootstrapParams()
    rows = Rows.of(p, outcomes, weights=weights, groups=groups)
    bins = {"ece_equal_width": equal_width(rows), "ece_equal_mass": equal_mass(rows)}
    means = {"accuracy": rows.right, "brier": _squares(rows), "log_loss": _log_losses(rows)}
    # One matrix of all parts of each row, so that every metric is drawn from the same resamples.
    blocks = {name: _gaps(rows, bins[name]) for name in bins}
    blocks |= {name: (values * rows.weight)[:, None] for name, values in means.items()}
    blocks["mass"] = rows.weight[:, None]
    drawn = resampled_totals(np.concatenate(list(blocks.values()), axis=1), rows.group, params)
    parts = dict(zip(blocks, np.split(drawn, np.cumsum([b.shape[1] for b in blocks.values()])[:-1], axis=1), strict=True))
    # An ECE is a sum of sizes of gaps, a mean a single sum that keeps its sign: none of the three can be negative.
    resampled = {name: np.abs(parts[name]).sum(axis=1) / parts["mass"][:, 0] for name in (*bins, *means)}
    values = {name: _ece(rows, bins[name]) for name in bins}
    values |= {name: float(blocks[name].sum() / blocks["mass"].sum()) for name in means}
    count, n_groups = len(rows.right) if n is None else n, int(rows.group.max()) + 1
    return CalibrationMetrics(n=count, **{name: percentiles(values[name], resampled[name], count, params, n_groups) for name in values})


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


def _squares(rows: Rows) -> Floats:
    # Written for a share of votes as outcome: the mean over its votes, not the square of the share's distance.
    return np.asarray(rows.right * (1 - rows.confidence) ** 2 + (1 - rows.right) * rows.confidence**2)


def _log_losses(rows: Rows) -> Floats:
    wrong = np.maximum(1 - rows.confidence, SMALLEST)
    return np.asarray(-rows.right * np.log(rows.confidence) - (1 - rows.right) * np.log(wrong))


def _ece(rows: Rows, bins: Ints) -> float:
    gap, share, _ = _bin_gaps(rows, bins)
    return float(share @ np.abs(gap))


def _bin_gaps(rows: Rows, bins: Ints) -> tuple[Floats, Floats, Floats]:
    """Per bin: accuracy less confidence, share of the weight, variance of the accuracy."""
    mass = np.bincount(bins, weights=rows.weight)
    kept = mass > 0
    confidence = np.bincount(bins, weights=rows.weight * rows.confidence)[kept] / mass[kept]
    accuracy = np.bincount(bins, weights=rows.weight * rows.right)[kept] / mass[kept]
    effective = mass[kept] ** 2 / np.bincount(bins, weights=rows.weight**2)[kept]
    return accuracy - confidence, mass[kept] / mass.sum(), accuracy * (1 - accuracy) / effective


def _gaps(rows: Rows, bins: Ints) -> Floats:
    """Each row's part of each bin's gap, (n, n_bins): bins stay as they are, resamples draw their gaps anew."""
    return np.asarray((bins[:, None] == np.arange(int(bins.max()) + 1)) * (rows.weight * (rows.right - rows.confidence))[:, None])

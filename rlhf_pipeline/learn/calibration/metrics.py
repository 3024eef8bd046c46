"""Calibration metrics (ECE, Brier, log loss), each as one number.

`summary` adds their intervals; reports show both.

Everything is computed on folded rows: confidence in the side predicted, and whether that side was
preferred. So the numbers do not depend on which completion was called a, and bins cover [0.5, 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.core.intervals import group_index
from rlhf_pipeline.learn.reward_model.base import require_finite

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Groups = Sequence[Any] | npt.NDArray[Any] | None

N_BINS = 10
SMALLEST = 1e-12  # log loss of a certain prediction that failed: 27.6 nats, not infinity


@dataclass(frozen=True)
class FoldedRows:
    """Folded rows: confidence (n,) of 0.5 to 1, right (n,) of 0 to 1, weight (n,), number of the
    group (n,).
    """

    confidence: Floats
    right: Floats
    weight: Floats
    group: Ints

    @classmethod
    def from_predictions(
        cls, p: Any, outcomes: Any, *, weights: Any = None, groups: Groups = None
    ) -> "FoldedRows":
        """From P(a preferred) and outcomes (1 where a was preferred; a share of votes will do).

        Raises InvalidScores for NaN, infinite or out-of-range values and unequal lengths,
        NotEnoughData without rows.
        """
        p, y = require_finite(p, "probabilities"), require_finite(outcomes, "outcomes")
        w = np.ones_like(p) if weights is None else require_finite(weights, "weights")
        if not (len(p) == len(y) == len(w)):
            raise InvalidScores(
                f"{len(p)} probabilities, {len(y)} outcomes, {len(w)} weights. Pass one of each "
                f"per row."
            )
        if not len(p) or w.sum() <= 0:
            raise NotEnoughData(
                "No voted predictions to measure calibration on. Collect votes on predicted "
                "comparisons first."
            )
        if ((p < 0) | (p > 1) | (y < 0) | (y > 1) | (w < 0)).any():
            raise InvalidScores(
                "Probabilities and outcomes lie between 0 and 1 and weights are not negative. Are "
                "these scores, not probabilities?"
            )
        return cls(np.maximum(p, 1 - p), share_right(p - 0.5, y), w, group_index(groups, len(p)))

    @property
    def mean(self) -> tuple[float, float]:
        return float(self.weight @ self.confidence / self.weight.sum()), float(
            self.weight @ self.right / self.weight.sum()
        )


def share_right(margins: Floats, outcomes: Floats) -> Floats:
    """Share (n,) of each row's votes for the side that `margins` of a over b are in favour of;
    0.5 at margin 0. `outcomes` are 1 where a was preferred; a share of votes will do.
    """
    return np.where(margins > 0, outcomes, np.where(margins < 0, 1 - outcomes, 0.5))


def equal_width_bins(rows: FoldedRows, n_bins: int = N_BINS) -> Ints:
    """Bin of each row: [0.5, 1] cut into `n_bins` of the same width."""
    return np.minimum((rows.confidence - 0.5) * 2 * n_bins, n_bins - 1).astype(np.int64)


def equal_mass_bins(rows: FoldedRows, n_bins: int = N_BINS) -> Ints:
    """Bin of each row: equal weights per bin as far as ties allow, which stay together."""
    _, inverse = np.unique(rows.confidence, return_inverse=True)
    mass = np.bincount(inverse, weights=rows.weight)
    middle = np.cumsum(mass) - mass / 2
    bins = np.minimum(middle / mass.sum() * n_bins, n_bins - 1).astype(np.int64)
    return np.asarray(bins[inverse], dtype=np.int64)


def binned_gap(p: Any, outcomes: Any, *, weights: Any = None, n_bins: int = N_BINS) -> float:
    """Mean |confidence - accuracy| over bins of equal weight, which no empty bin can distort,
    weighted by their rows. Noise alone makes it positive; `ece` subtracts that.
    """
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights)
    return mean_gap(rows, equal_mass_bins(rows, n_bins))


def ece(p: Any, outcomes: Any, *, weights: Any = None, n_bins: int = N_BINS) -> float:
    """Expected calibration error: `binned_gap` less the part that noise alone adds (Kumar, Liang
    and Ma 2019, section 5); never below 0.

    Their resampled normal noise of each bin's accuracy is replaced by its mean in closed form (the
    folded normal), with the variance of `variance_of_share`: three rows that are all right do not
    prove perfection.
    """
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights)
    return max(0.0, float(subtract_noise(*bin_gaps(rows, equal_mass_bins(rows, n_bins)))))


def subtract_noise(gap: Floats, share: Floats, variance: Floats) -> Floats:
    """sum over bins (the last axis) of share · (2 |gap| - expected |gap| of a redraw); can be
    below 0.
    """
    from scipy.stats import norm

    noise = np.sqrt(np.maximum(variance, 1e-18))
    size = np.abs(gap)
    expected = noise * np.sqrt(2 / np.pi) * np.exp(-((size / noise) ** 2) / 2) + size * (
        1 - 2 * norm.cdf(-size / noise)
    )
    return np.asarray((share * (2 * size - expected)).sum(axis=-1))


def smooth_share(share: Any, n: Any) -> Any:
    """(k + 1/2) / (n + 1) for a share of `n`, k / n: the mean of Jeffreys' posterior (Brown, Cai
    and DasGupta 2001), never quite 0 or 1. Numbers or arrays.
    """
    return (share * n + 0.5) / (n + 1)


def variance_of_share(share: Any, n: Any) -> Any:
    """Of a share of `n` rows: s(1 - s) / n at the smoothed share, so that it is not 0 where all
    rows agree. Numbers or arrays.
    """
    rate = smooth_share(share, n)
    return rate * (1 - rate) / np.maximum(n, 1e-300)


def brier(p: Any, outcomes: Any, *, weights: Any = None) -> float:
    """Mean squared distance between probability and outcome; 0.25 is a coin."""
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights)
    return float(rows.weight @ squared_errors(rows) / rows.weight.sum())


def log_loss(p: Any, outcomes: Any, *, weights: Any = None) -> float:
    """Mean negative log likelihood in nats; 0.693 is a coin."""
    rows = FoldedRows.from_predictions(p, outcomes, weights=weights)
    return float(rows.weight @ log_losses(rows) / rows.weight.sum())


def squared_errors(rows: FoldedRows) -> Floats:
    # Written for a share of votes as outcome: the mean over its votes, not the square of the
    # share's distance.
    return np.asarray(
        rows.right * (1 - rows.confidence) ** 2 + (1 - rows.right) * rows.confidence**2
    )


def log_losses(rows: FoldedRows) -> Floats:
    wrong = np.maximum(1 - rows.confidence, SMALLEST)
    return np.asarray(-rows.right * np.log(rows.confidence) - (1 - rows.right) * np.log(wrong))


def mean_gap(rows: FoldedRows, bins: Ints) -> float:
    gap, share, _ = bin_gaps(rows, bins)
    return float(share @ np.abs(gap))


def bin_gaps(rows: FoldedRows, bins: Ints) -> tuple[Floats, Floats, Floats]:
    """Per bin: accuracy less confidence, share of the weight, variance of the accuracy
    (`variance_of_share`).
    """
    mass = np.bincount(bins, weights=rows.weight)
    is_filled = mass > 0
    confidence = (
        np.bincount(bins, weights=rows.weight * rows.confidence)[is_filled] / mass[is_filled]
    )
    accuracy = np.bincount(bins, weights=rows.weight * rows.right)[is_filled] / mass[is_filled]
    effective = mass[is_filled] ** 2 / np.bincount(bins, weights=rows.weight**2)[is_filled]
    return (
        accuracy - confidence,
        mass[is_filled] / mass.sum(),
        variance_of_share(accuracy, effective),
    )

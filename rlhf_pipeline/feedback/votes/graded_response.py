"""Graded response model: log-probability of a choice with strength, and its derivatives.

An annotator feels `felt` plus logistic noise and chooses a, neither or b by thresholds (Rao and
Kupper 1967); further thresholds give the strength (graded responses, Samejima 1969). A vote is an
interval of feelings from `low` to `high`, with probability

    F(high - felt) - F(low - felt) = F(high - felt) F(felt - low) (1 - exp(low - high)),
    where F is the logistic distribution function.

Its logarithm is concave in `felt`, and neither it nor its derivatives subtract nearly equal
numbers. `before` and `beyond` need an exponential per feeling and are computed once; the rest
depends only on the ends.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_STRENGTH = 4


class LevelProbabilities(NamedTuple):
    """Probabilities of n votes at k feelings each; `beyond` has a row only for votes in `bounded`,
    whose interval has an upper end.
    """

    log: Floats  # (n, k), log-probability of the vote
    before: Floats  # (n, k), F(low - felt): probability below the interval
    beyond: Floats  # (bounded, k), F(felt - high): probability above it
    bounded: Ints
    odds: Floats  # (n,), 1 / (exp(high - low) - 1); 0 without an upper end


class Slopes(NamedTuple):
    """Derivatives of the log-probabilities, summed over feelings with weights times powers of the
    nodes.

    The first derivative by the upper end is `above + odds`, by the lower end `-(below + odds)`, by
    the feeling `below - above`. The negative second derivatives are `curve_above + odds (1 + odds)`
    by the upper end, `curve_below + odds (1 + odds)` by the lower end, `-odds (1 + odds)` by both
    ends, and `curve_below + curve_above` by the feeling.
    """

    below: Floats  # (n, powers)
    above: Floats
    curve_below: Floats
    curve_above: Floats


def level_probabilities(feelings: Floats, low: Floats, high: Floats) -> LevelProbabilities:
    """Probabilities of feelings (n, k) within `low` (n,) to `high` (n,), which may be infinite."""
    bounded = np.flatnonzero(np.isfinite(high))
    below = low[:, None] - feelings
    unsure = softplus(below)
    log = -unsure
    # F(x) = exp(x - softplus(x)), accurate in both tails
    before = np.exp(np.subtract(below, unsure, out=below), out=below)
    above = feelings[bounded] - high[bounded, None]
    unsure = softplus(above)
    gap = high[bounded] - low[bounded]
    log[bounded] += np.log(-np.expm1(-gap))[:, None] - unsure
    beyond = np.exp(np.subtract(above, unsure, out=above), out=above)
    odds = np.zeros(len(low))
    with np.errstate(over="ignore"):  # intervals so wide that exp overflows
        odds[bounded] = 1.0 / np.expm1(gap)
    return LevelProbabilities(log, before, beyond, bounded, odds)


def slopes(probabilities: LevelProbabilities, weights: Floats, powers: Floats) -> Slopes:
    """Derivatives of `level_probabilities` under `weights` (n, k), which are overwritten, with
    `powers` (k, p) of the nodes.
    """
    above, curve_above = np.zeros((2, len(weights), powers.shape[1]))
    beyond = weights[probabilities.bounded] * probabilities.beyond
    above[probabilities.bounded] = beyond @ powers
    curve_above[probabilities.bounded] = (beyond * (1.0 - probabilities.beyond)) @ powers
    before = np.multiply(weights, probabilities.before, out=weights)
    return Slopes(
        before @ powers, above, (before * (1.0 - probabilities.before)) @ powers, curve_above
    )


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)) = -log F(-x), without overflow. Written in NumPy, because SciPy's `log_expit`
    takes ten times as long.
    """
    out = np.abs(x)
    np.log1p(np.exp(np.negative(out, out=out), out=out), out=out)
    out += np.maximum(x, 0.0)
    return out


class ThresholdBounds:
    """Interval ends of each vote, oriented toward the chosen side, and their derivatives by the log
    tie width and log strength scale of the annotator.

    Arrays per vote (n,): `side` is 1, 0 or -1; `strength` is 0 if none; `width` and `scale` are of
    its annotator. `steps` (3,) are the strength steps.
    """

    def __init__(self, side: Ints, strength: Ints, width: Floats, scale: Floats, steps: Floats):
        far = np.concatenate([[0.0], np.cumsum(steps)])
        is_tie, is_bounded = side == 0, (strength > 0) & (strength < MOST_STRENGTH)
        low_step = far[np.maximum(strength - 1, 0)]
        high_step = far[np.minimum(strength, MOST_STRENGTH - 1)] * is_bounded
        self.scale = scale
        self.low_by = (np.where(is_tie, -1.0, 1.0) * width, low_step * scale)
        self.high_by = (np.where(is_tie | is_bounded, 1.0, 0.0) * width, high_step * scale)
        self.low = self.low_by[0] + self.low_by[1]
        self.high = np.where(is_tie | is_bounded, self.high_by[0] + self.high_by[1], np.inf)

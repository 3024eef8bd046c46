"""What a felt difference makes an annotator say: chances of choice and strength, and their slopes.
Knows arrays alone.

Somebody feels `felt` plus logistic noise and says a, neither or b by where that falls (Rao and
Kupper 1967), and how strongly by steps beyond (the graded responses of Samejima 1969). Every
judgement is an interval of feelings, `low` to `high`, and its chance is

    F(high - felt) - F(low - felt) = F(high - felt) F(felt - low) (1 - exp(low - high)),
    F the logistic distribution:

its logarithm is concave in `felt`, and neither it nor a slope needs the difference of two nearly
equal numbers. What an exponential of every feeling is needed for, `before` and `beyond`, is made
once; the rest depends on the ends alone.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_STRENGTH = 4


class Chances(NamedTuple):
    """Of n judgements at k feelings each; `beyond` is of those alone whose interval has an upper
    end, `bounded` says which.
    """

    log: Floats  # (n, k), of the chance
    before: Floats  # (n, k), F(low - felt): of falling below the interval
    beyond: Floats  # (bounded, k), F(felt - high): of falling above it
    bounded: Ints
    odds: Floats  # (n,), 1 / (exp(high - low) - 1): 0 without an upper end


class Slopes(NamedTuple):
    """Of the logarithm of the chances, summed over feelings with weights and with weights times
    powers of what each feeling stands for.

    That by the upper end is `above + odds`, by the lower one `-(below + odds)`, by the feeling
    `below - above`. The second derivatives, signs changed, are `curve_above + odds (1 + odds)` by
    the upper end, `curve_below + odds (1 + odds)` by the lower one, `-odds (1 + odds)` by both:
    those by the feeling are `curve_below + curve_above`.
    """

    below: Floats  # (n, powers)
    above: Floats
    curve_below: Floats
    curve_above: Floats


def chances(felt: Floats, low: Floats, high: Floats) -> Chances:
    """Of feelings (n, k) from `low` (n,) to `high` (n,), which may be infinite."""
    bounded = np.flatnonzero(np.isfinite(high))
    below = low[:, None] - felt
    unsure = softplus(below)
    log = -unsure
    # F(x) = exp(x - softplus(x)), to the last digits on both sides
    before = np.exp(np.subtract(below, unsure, out=below), out=below)
    above = felt[bounded] - high[bounded, None]
    unsure = softplus(above)
    gap = high[bounded] - low[bounded]
    log[bounded] += np.log(-np.expm1(-gap))[:, None] - unsure
    beyond = np.exp(np.subtract(above, unsure, out=above), out=above)
    odds = np.zeros(len(low))
    with np.errstate(over="ignore"):  # of an interval that is so wide that it has no end
        odds[bounded] = 1.0 / np.expm1(gap)
    return Chances(log, before, beyond, bounded, odds)


def slopes(said: Chances, weights: Floats, powers: Floats) -> Slopes:
    """Of `chances` under `weights` (n, k), which are not kept, by `powers` (k, p) of what each
    feeling stands for.
    """
    above, curve_above = np.zeros((2, len(weights), powers.shape[1]))
    beyond = weights[said.bounded] * said.beyond
    above[said.bounded] = beyond @ powers
    curve_above[said.bounded] = (beyond * (1.0 - said.beyond)) @ powers
    before = np.multiply(weights, said.before, out=weights)
    return Slopes(before @ powers, above, (before * (1.0 - said.before)) @ powers, curve_above)


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)) = -log F(-x), without overflow. NumPy's own steps: SciPy's `log_expit` takes
    ten times as long.
    """
    out = np.abs(x)
    np.log1p(np.exp(np.negative(out, out=out), out=out), out=out)
    out += np.maximum(x, 0.0)
    return out


class Ends:
    """Between which feelings each judgement lies, seen from the side that was taken, and how the
    ends move with the logarithms of the annotator's tie width and strength scale.

    Of judgements (n,): `side` 1, 0 or -1, `strength` 0 for none; `width` and `scale` of their
    annotators; `steps` (3,) of strength.
    """

    def __init__(self, side: Ints, strength: Ints, width: Floats, scale: Floats, steps: Floats):
        far = np.concatenate([[0.0], np.cumsum(steps)])
        is_tie, is_bounded = side == 0, (strength > 0) & (strength < MOST_STRENGTH)
        low_step, high_step = (
            far[np.maximum(strength - 1, 0)],
            far[np.minimum(strength, MOST_STRENGTH - 1)] * is_bounded,
        )
        self.scale = scale
        self.low_by = (np.where(is_tie, -1.0, 1.0) * width, low_step * scale)
        self.high_by = (np.where(is_tie | is_bounded, 1.0, 0.0) * width, high_step * scale)
        self.low = self.low_by[0] + self.low_by[1]
        self.high = np.where(is_tie | is_bounded, self.high_by[0] + self.high_by[1], np.inf)

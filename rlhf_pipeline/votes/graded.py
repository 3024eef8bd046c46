"""What a felt difference makes an annotator say: chances of choice and strength, and their slopes. Knows arrays alone.

Somebody feels `felt` plus logistic noise and says a, neither or b by where that falls (Rao and Kupper 1967), and how strongly by steps
beyond (the graded responses of Samejima 1969). Every judgement is an interval of feelings, `low` to `high`, and its chance is

    F(high - felt) - F(low - felt) = F(u) F(-v) (1 - exp(v - u)),   u = high - felt, v = low - felt, F the logistic distribution:

its logarithm is concave in `felt`, and neither it nor a slope needs the difference of two nearly equal numbers.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Slopes(NamedTuple):
    """Of the logarithm of the chance: by the upper end, by the lower end, and the three second derivatives, signs changed."""

    by_high: Floats
    by_low: Floats
    high_high: Floats
    low_low: Floats
    high_low: Floats


def log_chance(felt: Floats, low: Floats, high: Floats) -> Floats:
    """Logarithm of the chance to feel something from `low` to `high`; an end may be infinite. All broadcast."""
    from scipy.special import log_expit

    u, v = high - felt, low - felt
    return np.asarray(log_expit(u) + log_expit(-v) + np.log(-np.expm1(v - u)))


def slopes(felt: Floats, low: Floats, high: Floats) -> Slopes:
    """Derivatives of `log_chance`. That by `felt` is minus the sum of those by the ends."""
    from scipy.special import expit

    u, v = high - felt, low - felt
    beyond, before = expit(-u), expit(v)
    with np.errstate(over="ignore"):  # of an interval that is wide or has no end: the odds are then 0
        odds = 1.0 / np.expm1(u - v)
    curve = odds * (1.0 + odds)
    return Slopes(beyond + odds, -before - odds, beyond * (1 - beyond) + curve, before * (1 - before) + curve, -curve)

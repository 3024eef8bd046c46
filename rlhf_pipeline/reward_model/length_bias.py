"""What a reward model owes to the length of completions, and its margins without it. Knows texts as
lengths; knows no model.

People prefer longer completions, partly because they say more: how much of that is merit no vote
tells. `debias_length` takes out all that the gap in length explains of the margins (as Dubois et
al. 2024 do for win rates), and `LengthEffect` says what that costs.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pydantic import Field

from rlhf_pipeline.records import Interval, Record

Floats = npt.NDArray[np.float64]


class LengthEffect(Record):
    """The same held-out pairs with and without what length explains; which of both the model uses,
    `is_debiased` says.
    """

    n: int = Field(description="pairs")
    slope: float = Field(
        description="logits of margin per unit of the gap in log length, over the training pairs"
    )
    correlation_before: float | None = Field(
        description="of the margins with the gap in log length, sides as shown; None where either "
        "never varies"
    )
    correlation_after: float | None
    accuracy_before: float = Field(
        description="the majority's side is scored higher; equal scores count half"
    )
    accuracy_after: float
    is_debiased: bool
    ceiling: Interval | None = Field(
        default=None,
        description="noise ceiling of single votes, to read the accuracies beside: on majorities "
        "they may exceed it",
    )


def log_lengths(texts: Iterable[str]) -> Floats:
    """log(1 + characters), (n,)."""
    return np.log1p(np.array([len(text) for text in texts], dtype=np.float64))


def fit_length_slope(margins: Floats, gaps: Floats, weights: Floats | None = None) -> float:
    """Least squares of margins on gaps in `log_lengths`, through the origin: swapping both sides
    turns both; 0 where no length differs.

    >>> fit_length_slope(np.array([2.0, -1.0]), np.array([1.0, -0.5]))
    2.0
    """
    w = np.ones_like(gaps) if weights is None else weights
    square = float(w @ gaps**2)
    return float(w @ (margins * gaps)) / square if square > 0 else 0.0


def measure_length_effect(
    margins: Floats,
    gaps: Floats,
    turned: npt.NDArray[np.bool_],
    slope: float,
    *,
    is_debiased: bool,
    ceiling: Interval | None = None,
) -> LengthEffect:
    """From the model's margins chosen - rejected (n,), which are debiased already where
    `is_debiased`.

    The correlation is over sides as shown: where `turned`, b was chosen. Over chosen - rejected it
    would also hold what people prefer.
    """
    before, after = (
        (margins + slope * gaps, margins) if is_debiased else (margins, margins - slope * gaps)
    )
    sign = np.where(turned, -1.0, 1.0)
    correlations = [_correlation(sign * m, sign * gaps) for m in (before, after)]
    accuracies = [float((0.5 + 0.5 * np.sign(m)).mean()) for m in (before, after)]
    return LengthEffect(
        n=len(margins),
        slope=slope,
        is_debiased=is_debiased,
        ceiling=ceiling,
        correlation_before=correlations[0],
        correlation_after=correlations[1],
        accuracy_before=accuracies[0],
        accuracy_after=accuracies[1],
    )


def _correlation(x: Floats, y: Floats) -> float | None:
    if len(x) < 2 or x.std() < 1e-12 or y.std() < 1e-12:
        return None
    return float(np.corrcoef(x, y)[0, 1])

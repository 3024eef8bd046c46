"""Measures how completion length and vote strength affect a reward model.

People prefer longer completions, partly because they say more, and votes do not reveal how much of
that is merit. `debias_length` removes everything that the gap in length explains of the margins (as
Dubois et al. 2024 do for win rates), and `LengthEffect` shows what that costs.

It is disputed whether a margin from vote strength helps (Touvron et al. 2023 found little gain), so
the report of such a fit shows its effect here. Cross-validation holds out prompts of the train
split; the test split stays closed.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.reward_model.base import Floats, RewardModel, margins_of

FOLDS = 3  # folds over prompts, for the effect of strength


class LengthEffect(Record):
    """Accuracy on the same held-out pairs with and without the part that length explains;
    `is_debiased` says which of the two the model uses.
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
    """log(1 + characters) of each text, (n,)."""
    return np.log1p(np.array([len(text) for text in texts], dtype=np.float64))


def fit_length_slope(margins: Floats, gaps: Floats, weights: Floats | None = None) -> float:
    """Fit the slope of margins on gaps in `log_lengths` by least squares through the origin; 0 if
    no lengths differ. Swapping both sides negates both and keeps the slope.

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
    """Measure the effect from the model's margins chosen - rejected (n,), which are already
    debiased if `is_debiased`.

    The correlation uses the sides as displayed: `turned` marks pairs where b was chosen. Over
    chosen - rejected it would also contain people's preference.
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


class MarginEffect(Record):
    """Shares of single votes predicted correctly on held-out prompts, with one linear head for each
    loss; intervals by bootstrap over prompts.
    """

    n: int = Field(description="pairs with a majority")
    margin_scale: float = Field(
        description="logits that a vote of full strength was to be ahead by"
    )
    with_margin: Interval
    without: Interval = Field(description="loss bradley_terry, all else alike")
    gain: Interval = Field(description="the first less the second, pair by pair")
    ceiling: Interval | None = Field(
        default=None, description="noise ceiling of single votes, to read both beside"
    )

    def __str__(self) -> str:
        points = self.gain.model_copy(
            update={
                "value": 100 * self.gain.value,
                "low": 100 * self.gain.low,
                "high": 100 * self.gain.high,
            }
        )
        beside = f"ceiling {self.ceiling}" if self.ceiling else "ceiling unknown"
        return (
            f"strength as margin: {points.value:+.1f} [{points.low:+.1f}, {points.high:+.1f}] "
            f"points of votes predicted ({self.with_margin.value:.3f} with, "
            f"{self.without.value:.3f} without it, {beside})"
        )


def measure_margin_effect(
    train: pd.DataFrame,
    model: RewardModel,
    *,
    weights: Floats | None = None,
    ceiling: Interval | None = None,
    bootstrap: BootstrapParams | None = None,
) -> MarginEffect | None:
    """Measure it on the PREFERENCE_PAIRS `train` with `weights` (n,). None if the model has another
    loss or no quick fits, if too little data is left to fit on, or if no vote states a strength.
    """
    facts = model.facts
    if facts.loss != "margin" or facts.margin_scale is None:
        return None
    fold = group_index(train["prompt_id"].to_numpy(), len(train)) % FOLDS
    judged = (train["agreement"] > 0.5).to_numpy()
    if not judged.any() or not (train["margin"] > 0).any():
        return None
    shares: dict[str, Floats] = {}
    for loss in ("margin", "bradley_terry"):
        margins = np.full(len(train), np.nan)
        for k in range(FOLDS):
            inside, outside = fold != k, fold == k
            fitted = model.quick(loss=loss)
            if fitted is None:
                return None
            try:
                fitted.fit(
                    train[inside].reset_index(drop=True),
                    weights=None if weights is None else weights[inside],
                )
            except NotEnoughData:
                return None
            margins[outside] = margins_of(fitted, train[outside])
        right, agreement = (
            0.5 + 0.5 * np.sign(margins[judged]),
            train.loc[judged, "agreement"].to_numpy(dtype=np.float64),
        )
        shares[loss] = right * agreement + (1 - right) * (1 - agreement)
    n_votes = train.loc[judged, "n_votes"].to_numpy(dtype=np.float64)

    def mean(values: Floats) -> Interval:
        return interval_of_mean(
            values,
            groups=train.loc[judged, "prompt_id"].to_numpy(),
            weights=n_votes,
            params=bootstrap,
        )

    gain = mean(shares["margin"] - shares["bradley_terry"])
    # No prediction changed anywhere: report the uncertainty that this number of prompts allows,
    # both ways.
    if gain.value == gain.low == 0:
        gain = gain.model_copy(update={"low": -gain.high})
    return MarginEffect(
        n=int(judged.sum()),
        margin_scale=facts.margin_scale,
        with_margin=mean(shares["margin"]),
        without=mean(shares["bradley_terry"]),
        gain=gain,
        ceiling=ceiling,
    )

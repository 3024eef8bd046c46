"""What a reward model owes to the length of completions and to the strength of votes.

People prefer longer completions, partly because they say more: no vote tells how much of that is
merit. `debias_length` takes out all that the gap in length explains of the margins (as Dubois et
al. 2024 do for win rates), and `LengthEffect` shows what that costs.

Whether a margin from strength helps is disputed (Touvron et al. 2023 found little), so the report
of such a fit shows what it did here. Prompts of the train split are left out in turn; the test
split is not opened.
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

FOLDS = 3  # of the prompts, for the effect of strength


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


class MarginEffect(Record):
    """Shares of single votes predicted on prompts that were left out, one linear head each;
    intervals by bootstrap over prompts.
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
    """From PREFERENCE_PAIRS `train`, (n,) `weights` each; None for a model of another loss, or
    that has no quick fits, where too little is left to fit on, or no vote states a strength.
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
    # nothing changed anywhere: as little as so many prompts can tell, either way
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

"""What the loss `margin` gains from the strength of votes: the same fit with and without it.

Whether a margin from strength helps is disputed (Touvron et al. 2023 found little), so the report
of such a fit shows what it did here. Prompts of the train split are left out in turn; the test
split is not opened.
"""

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.reward_model.base import Floats, RewardModel, margins_of

FOLDS = 3


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

"""Evaluates reward models: accuracy on the test split, and the effects of length and vote strength.

People prefer longer completions, partly because they say more, and votes do not reveal how much of
that is merit. `debias_length` removes everything that the gap in length explains of the margins (as
Dubois et al. 2024 do for win rates), and `LengthEffect` shows what that costs.

It is disputed whether a margin from vote strength helps (Touvron et al. 2023 found little gain), so
`MarginEffect` measures it by cross-validation over prompts of the train split; the test split stays
closed.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import Floats, RewardModel, margins_of
from rlhf_pipeline.reward_model.report import LengthEffect, MarginEffect, TestAccuracy

Bools = npt.NDArray[np.bool_]
FOLDS = 3  # over the prompts of the train split


def majority_side(pairs: pd.DataFrame) -> str:
    """The side chosen most often in training; a if both are equal."""
    chosen = pairs.loc[pairs["split"] == "train", "chosen_side"]
    return "a" if (chosen == "a").sum() >= (chosen == "b").sum() else "b"


def accuracy_on(
    test: pd.DataFrame,
    margins: Floats,
    side: str,
    bootstrap: BootstrapParams,
    *,
    ceiling: Interval | None = None,
) -> TestAccuracy:
    """Accuracy measures of `test`, pairs with a majority, from margins chosen - rejected in the
    same order; `side` is the `majority_side`, and `ceiling` is reported with them.
    """
    groups, agreement = test["prompt_id"].to_numpy(), test["agreement"].to_numpy(dtype=np.float64)
    n_votes = test["n_votes"].to_numpy(dtype=np.float64)
    right = wins(margins)
    losses = np.logaddexp(0.0, -margins) + (1 - agreement) * margins

    def mean(values: Floats, weights: Floats | None = None, *, of_shares: bool = True) -> Interval:
        return interval_of_mean(
            values, groups=groups, weights=weights, params=bootstrap, of_shares=of_shares
        )

    return TestAccuracy(
        n=len(test),
        accuracy=mean(right),
        vote_accuracy=mean(right * agreement + (1 - right) * (1 - agreement), n_votes),
        ceiling=ceiling,
        log_loss=mean(losses, n_votes, of_shares=False),
        longer_wins=mean(wins(length_gaps(test))),
        majority_side=mean((test["chosen_side"] == side).to_numpy(dtype=np.float64)),
    )


def length_gaps(pairs: pd.DataFrame) -> Floats:
    """Characters by which the chosen completion is longer, (n,): the margins of a baseline that
    prefers the longer completion.
    """
    return np.asarray(pairs["chosen"].str.len() - pairs["rejected"].str.len(), dtype=np.float64)


def wins(margins: Floats) -> Floats:
    """1 for a positive margin, 0 for a negative one, 0.5 for 0."""
    return 0.5 + 0.5 * np.sign(margins)


def log_lengths(texts: Iterable[str]) -> Floats:
    """log(1 + characters) of each text, (n,)."""
    return np.log1p(np.array([len(text) for text in texts], dtype=np.float64))


def log_length_gaps(pairs: pd.DataFrame) -> Floats:
    """`log_lengths` of the chosen completions minus those of the rejected ones, (n,)."""
    return log_lengths(pairs["chosen"]) - log_lengths(pairs["rejected"])


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
    turned: Bools,
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


def prompt_folds(train: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The cross-validation fold of each pair, (n,): pairs of one prompt share it."""
    return group_index(train["prompt_id"].to_numpy(), len(train)) % FOLDS


def cross_validate(
    model: RewardModel, train: pd.DataFrame, weights: Floats, rows: Bools, **changes: Any
) -> Iterator[tuple[Bools, Floats]]:
    """Yield for each fold its pairs among `rows` and their margins, by a `quick` model with
    `changes` that learned the other folds' pairs with their `weights` (n,). Raises NotEnoughData as
    `fit`.
    """
    fold = prompt_folds(train)
    for k in range(FOLDS):
        inside, outside = (fold != k) & (weights > 0), rows & (fold == k)
        quick = model.quick(**changes)
        assert quick is not None  # checked by the caller
        # Heads of dimensions would be fitted and not read.
        learnt = train[inside].drop(columns="dimension_votes", errors="ignore")
        quick.fit(learnt.reset_index(drop=True), weights=weights[inside])
        yield outside, margins_of(quick, train[outside])


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
    if facts.loss != "margin" or facts.margin_scale is None or model.quick() is None:
        return None
    judged = (train["agreement"] > 0.5).to_numpy()
    if not judged.any() or not (train["margin"] > 0).any():
        return None
    weights = np.ones(len(train)) if weights is None else weights
    agreement = train.loc[judged, "agreement"].to_numpy(dtype=np.float64)
    shares: dict[str, Floats] = {}
    for loss in ("margin", "bradley_terry"):
        margins = np.full(len(train), np.nan)
        try:
            for outside, of_fold in cross_validate(
                model, train, weights, np.ones_like(judged), loss=loss
            ):
                margins[outside] = of_fold
        except NotEnoughData:
            return None
        right = wins(margins[judged])
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

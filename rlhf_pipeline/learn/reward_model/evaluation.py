"""Evaluates reward models: accuracy on the test split, and cross-validation over prompts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.learn.reward_model.base import Floats, RewardModel, margins_of
from rlhf_pipeline.learn.reward_model.report import TestAccuracy

Bools = npt.NDArray[np.bool_]
FOLDS = 3  # over the prompts of the train split
LEFT_OUT_FOLDS = 10  # models of two thirds of the pairs err noticeably more than one of all


def accuracy_on(
    test: pd.DataFrame,
    margins: Floats,
    bootstrap: BootstrapParams,
    *,
    ceiling: Interval | None = None,
) -> TestAccuracy:
    """Accuracy measures of `test`, pairs with a majority, from margins chosen - rejected in the
    same order; `ceiling` is reported with them.
    """
    groups, agreement = test["prompt_id"].to_numpy(), test["agreement"].to_numpy(dtype=np.float64)
    n_votes = test["n_votes"].to_numpy(dtype=np.float64)
    right, longer = wins(margins), wins(length_gaps(test))
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
        longer_wins=mean(longer),
        over_longer=mean(right - longer, of_shares=False),
    )


def length_gaps(pairs: pd.DataFrame) -> Floats:
    """Characters by which the chosen completion is longer, (n,): the margins of a baseline that
    prefers the longer completion.
    """
    return np.asarray(pairs["chosen"].str.len() - pairs["rejected"].str.len(), dtype=np.float64)


def wins(margins: Floats) -> Floats:
    """1 for a positive margin, 0 for a negative one, 0.5 for 0."""
    return 0.5 + 0.5 * np.sign(margins)


def prompt_folds(train: pd.DataFrame, n_folds: int = FOLDS) -> npt.NDArray[np.int64]:
    """The cross-validation fold of each pair, (n,): pairs of one prompt share it."""
    return group_index(train["prompt_id"].to_numpy(), len(train)) % n_folds


def cross_validate(
    model: RewardModel,
    train: pd.DataFrame,
    weights: Floats,
    rows: Bools,
    *,
    n_folds: int = FOLDS,
    **changes: Any,
) -> Iterator[tuple[Bools, Floats]]:
    """Yield for each fold its pairs among `rows` and their margins, by a `quick` model with these
    `changes` that learned the other folds' pairs with their `weights` (n,). Raises NotEnoughData as
    `fit`.
    """
    fold = prompt_folds(train, n_folds)
    for k in range(n_folds):
        inside, outside = (fold != k) & (weights > 0), rows & (fold == k)
        quick = model.quick(**changes)
        assert quick is not None  # checked by the caller
        # Heads of dimensions would be fitted and not read.
        inside_pairs = train[inside].drop(columns="dimension_votes", errors="ignore")
        quick.fit(inside_pairs.reset_index(drop=True), weights=weights[inside])
        yield outside, margins_of(quick, train[outside])


def left_out_margins(
    model: RewardModel, train: pd.DataFrame, weights: Floats, rows: Bools
) -> Floats:
    """The margins of `rows` of the pairs that a fitted `model` learned with `weights`, in their
    order, each by a model with its penalties that saw no pair of the prompt. Raises NotEnoughData
    as `fit`, and for a kind that is slow to fit.
    """
    if model.quick() is None:
        raise NotEnoughData(f"A {model.name} takes too long to be fitted {LEFT_OUT_FOLDS} times.")
    summary = model.summary
    # the annotator model's soft labels rest on all votes
    changes: dict[str, Any] = {"label": "votes"}
    if summary.l2 is not None:
        changes |= {"l2_grid": (summary.l2,), "context_penalty_grid": (summary.context_penalty,)}
    margins = np.zeros(len(train))
    folds = cross_validate(model, train, weights, rows, n_folds=LEFT_OUT_FOLDS, **changes)
    for outside, fold_margins in folds:
        margins[outside] = fold_margins
    return margins[rows]

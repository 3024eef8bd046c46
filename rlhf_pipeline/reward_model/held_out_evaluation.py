"""A fitted reward model on the test split, beside its baselines and the noise ceiling."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import Floats, RewardModel, margins_of
from rlhf_pipeline.reward_model.kinds import RewardModelParams
from rlhf_pipeline.reward_model.length_bias import LengthEffect, log_lengths, measure_length_effect
from rlhf_pipeline.reward_model.report import TestAccuracy
from rlhf_pipeline.votes.taste_changes import TasteChanges
from rlhf_pipeline.votes.test_split import Recorder, open_test_split


@dataclass(frozen=True)
class HeldOutEvaluation:
    """On the test split; nothing where it holds no pair with a majority."""

    test: TestAccuracy | None = None
    since_change: TestAccuracy | None = None
    length: LengthEffect | None = None


def evaluate_held_out(
    model: RewardModel,
    pairs: pd.DataFrame,
    params: RewardModelParams,
    changes: TasteChanges,
    ceilings: tuple[Interval | None, Interval | None],
    record: Recorder,
    progress: Progress,
) -> HeldOutEvaluation:
    """On all test pairs with a majority, and on those voted since the change; `ceilings` are those
    of all votes and of these.
    """
    test = open_test_split(
        pairs[pairs["agreement"] > 0.5],
        model=model.weights_hash,
        purpose="report of a fitted reward model",
        record=record,
    )
    if test.empty:
        return HeldOutEvaluation()
    margins, side = margins_of(model, test, progress=progress), majority_side(pairs)
    since = changes.is_current(test) if changes else np.zeros(len(test), dtype=bool)
    facts = model.facts
    gaps, turned = (
        log_lengths(test["chosen"]) - log_lengths(test["rejected"]),
        (test["chosen_side"] == "b").to_numpy(),
    )
    return HeldOutEvaluation(
        accuracy_on(test, margins, side, params, ceiling=ceilings[0]),
        accuracy_on(test[since], margins[since], side, params, ceiling=ceilings[1])
        if since.any()
        else None,
        None
        if facts.length_slope is None
        else measure_length_effect(
            margins,
            gaps,
            turned,
            facts.length_slope,
            is_debiased=facts.is_debiased,
            ceiling=ceilings[0],
        ),
    )


def majority_side(pairs: pd.DataFrame) -> str:
    """The side that was chosen most often in training; a where both were alike."""
    chosen = pairs.loc[pairs["split"] == "train", "chosen_side"]
    return "a" if (chosen == "a").sum() >= (chosen == "b").sum() else "b"


def accuracy_on(
    test: pd.DataFrame,
    margins: Floats,
    side: str,
    params: RewardModelParams,
    *,
    ceiling: Interval | None = None,
) -> TestAccuracy:
    """The measures of `test`, pairs with a majority, from margins chosen - rejected in its order;
    `ceiling` is set beside them.
    """
    bootstrap = BootstrapParams(n_resamples=params.n_resamples, seed=params.seed)
    groups, agreement = test["prompt_id"].to_numpy(), test["agreement"].to_numpy(dtype=np.float64)
    n_votes = test["n_votes"].to_numpy(dtype=np.float64)
    length_gap = length_gaps(test)
    right = wins(margins)
    by_vote = right * agreement + (1 - right) * (1 - agreement)
    losses = np.logaddexp(0.0, -margins) + (1 - agreement) * margins

    def mean(values: Floats, weights: Floats | None = None, *, of_shares: bool = True) -> Interval:
        return interval_of_mean(
            values, groups=groups, weights=weights, params=bootstrap, of_shares=of_shares
        )

    return TestAccuracy(
        n=len(test),
        accuracy=mean(right),
        vote_accuracy=mean(by_vote, n_votes),
        ceiling=ceiling,
        log_loss=mean(losses, n_votes, of_shares=False),
        longer_wins=mean(wins(length_gap)),
        majority_side=mean((test["chosen_side"] == side).to_numpy(dtype=np.float64)),
    )


def length_gaps(pairs: pd.DataFrame) -> Floats:
    """Characters by which the chosen completion is longer, (n,): the margins of a model that
    prefers the longer one.
    """
    return np.asarray(pairs["chosen"].str.len() - pairs["rejected"].str.len(), dtype=np.float64)


def wins(margins: Floats) -> Floats:
    """1 where positive, 0 where negative, a half where equal."""
    return 0.5 + 0.5 * np.sign(margins)

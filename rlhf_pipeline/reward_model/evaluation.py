"""Evaluates a fitted reward model on the test split, with baselines, ceiling and per source.

A single accuracy over several sources depends more on their sizes than on the model, which may
predict one source well and guess on the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import Floats, RewardModel, margins_of
from rlhf_pipeline.reward_model.effects import LengthEffect, log_lengths, measure_length_effect
from rlhf_pipeline.reward_model.kinds import RewardModelParams
from rlhf_pipeline.reward_model.report import TestAccuracy
from rlhf_pipeline.votes.taste_changes import TasteChanges
from rlhf_pipeline.votes.test_split import Recorder, log_opening, open_test_split


@dataclass(frozen=True)
class HeldOutEvaluation:
    """Results on the test split; empty if no test pair has a majority."""

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
    """Evaluate on all test pairs with a majority, and on those voted on since the change;
    `ceilings` are the noise ceilings of all votes and of the votes since the change.
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
    """The side chosen most often in training; a if both are equal."""
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
    """Accuracy measures of `test`, pairs with a majority, from margins chosen - rejected in the
    same order; `ceiling` is reported with them.
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
    """Characters by which the chosen completion is longer, (n,): the margins of a baseline that
    prefers the longer completion.
    """
    return np.asarray(pairs["chosen"].str.len() - pairs["rejected"].str.len(), dtype=np.float64)


def wins(margins: Floats) -> Floats:
    """1 for a positive margin, 0 for a negative one, 0.5 for 0."""
    return 0.5 + 0.5 * np.sign(margins)


def accuracy_by_group(
    model: RewardModel,
    pairs: pd.DataFrame,
    groups: Mapping[str, str],
    params: RewardModelParams | None = None,
    *,
    ceilings: Mapping[str, Interval] | None = None,
    record: Recorder = log_opening,
    progress: Progress = ignore_progress,
) -> dict[str, TestAccuracy]:
    """Evaluate the model on each group's test pairs, largest group first; `groups` maps comparison
    id to name, and comparisons without a group are skipped.

    `majority_side` is the side chosen most often in that group's training pairs; `ceilings` (group
    -> noise ceiling) are reported with the accuracies. The test split is opened once, and `record`
    receives the opening. Raises NotEnoughData if no test pair belongs to a group.
    """
    params = params or RewardModelParams()
    pairs = check_frame(pairs, PREFERENCE_PAIRS)
    group = pairs["comparison_id"].map(groups)
    test = open_test_split(
        pairs[(pairs["agreement"] > 0.5) & group.notna()],
        model=model.weights_hash,
        purpose="accuracy by group",
        record=record,
    )
    if test.empty:
        raise NotEnoughData(
            f"None of {len(pairs)} pairs is a test pair with a majority and a group. Name groups "
            "of pairs of the test split."
        )
    margins = margins_of(model, test, progress=progress)
    names = test["comparison_id"].map(groups)
    return {
        str(name): accuracy_on(
            test[(names == name).to_numpy()],
            margins[(names == name).to_numpy()],
            majority_side(pairs[group == name]),
            params,
            ceiling=(ceilings or {}).get(str(name)),
        )
        for name in names.value_counts().index
    }

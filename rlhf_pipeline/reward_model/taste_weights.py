"""How much votes from before a change of taste count in a fit."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.intervals import group_index
from rlhf_pipeline.reward_model.base import Floats, RewardModel, margins_of
from rlhf_pipeline.reward_model.kinds import RewardModelParams
from rlhf_pipeline.votes.taste_changes import TasteChanges

DEFAULT_WEIGHT = 0.1  # of pairs from before a change, where there are too few new ones to choose by
WEIGHTS_TRIED = (0.0, 0.03, 0.1, 0.3, 1.0)
WEIGHT_FOLDS = 3
MIN_NEW_PAIRS = 60
MIN_NEW_PROMPTS = 2  # in each of those folds: one prompt's pairs are too much alike to choose by


@dataclass(frozen=True)
class OldVoteWeight:
    """What pairs voted before a change count, what each weight tried lost, and why it is this
    one.
    """

    weight: float
    losses: dict[str, float] = field(default_factory=dict)
    reason: str = ""


def choose_old_vote_weight(
    train: pd.DataFrame, params: RewardModelParams, model: RewardModel, changes: TasteChanges
) -> OldVoteWeight:
    """How much the votes before a change are worth now: by cross-validation over the prompts voted
    on since.

    How far taste moved is not known beforehand: after a small change the old votes still teach,
    after a reversal they teach the wrong thing. With too few new pairs or prompts to tell, or a
    model too slow to be fitted fifteen times, DEFAULT_WEIGHT; a weight with which too little is
    left to fit on is passed over. The reason says which it was.
    """
    if not changes:
        return OldVoteWeight(1.0)
    if params.weight_before_change is not None:
        return OldVoteWeight(params.weight_before_change, reason="set by hand")
    is_new = changes.is_current(train)
    if model.quick() is None:
        return OldVoteWeight(
            DEFAULT_WEIGHT,
            reason=f"not chosen: a {model.name} is too slow to be fitted "
            f"{WEIGHT_FOLDS * len(WEIGHTS_TRIED)} times",
        )
    if is_new.all():
        return OldVoteWeight(
            DEFAULT_WEIGHT,
            reason="not chosen: no pair of the train split was voted on before the change alone",
        )
    fold = group_index(train["prompt_id"].to_numpy(), len(train)) % WEIGHT_FOLDS
    # Ties say of no weight that it is better, and neither do categories whose taste never changed.
    told = is_new & (train["n_votes"] > 0).to_numpy() & (changes.first_seq(train["category"]) > 0)
    prompts = train.loc[told, "prompt_id"]
    if (
        told.sum() < MIN_NEW_PAIRS
        or prompts.groupby(fold[told]).nunique().reindex(range(WEIGHT_FOLDS), fill_value=0).min()
        < MIN_NEW_PROMPTS
    ):
        few = (
            f"{told.sum()} pairs of {prompts.nunique()} prompts voted on since the change, ties "
            "left out"
        )
        needed = (
            f"{MIN_NEW_PAIRS} pairs, and {MIN_NEW_PROMPTS} prompts in each of {WEIGHT_FOLDS} folds"
        )
        return OldVoteWeight(DEFAULT_WEIGHT, reason=f"not chosen: {few}; {needed} are needed")
    losses, untried = {}, []
    for weight in WEIGHTS_TRIED:
        try:
            losses[f"{weight:g}"] = _held_out_loss(train, is_new, told, fold, weight, model)
        except NotEnoughData as cause:
            untried.append(f"{weight:g} could not be tried ({cause})")
    if not losses:
        return OldVoteWeight(DEFAULT_WEIGHT, reason=f"not chosen: {'; '.join(untried)}")
    best = min(losses, key=lambda weight: (losses[weight], float(weight)))
    least = (
        f"least log loss on {told.sum()} pairs of {prompts.nunique()} prompts voted on since the "
        "change"
    )
    return OldVoteWeight(float(best), losses, "; ".join([least, *untried]))


def _held_out_loss(
    train: pd.DataFrame,
    is_new: npt.NDArray[np.bool_],
    is_judged: npt.NDArray[np.bool_],
    fold: npt.NDArray[np.int64],
    weight: float,
    model: RewardModel,
) -> float:
    """Log loss per vote on the judged pairs, each predicted by a model that saw no pair of its
    prompt. Raises NotEnoughData as `fit`.
    """
    total = n_votes = 0.0
    for k in range(WEIGHT_FOLDS):
        outside = is_judged & (fold == k)
        inside = (fold != k) & (is_new | (weight > 0))
        quick = model.quick()
        assert quick is not None  # the caller has asked
        quick.fit(
            train[inside].reset_index(drop=True), weights=np.where(is_new[inside], 1.0, weight)
        )
        test = train[outside]
        margins, votes = margins_of(quick, test), test["n_votes"].to_numpy(dtype=np.float64)
        losses = (
            np.logaddexp(0.0, -margins)
            + (1 - test["agreement"].to_numpy(dtype=np.float64)) * margins
        )
        total, n_votes = total + float(votes @ losses), n_votes + float(votes.sum())
    return total / n_votes


def change_weights(pairs: pd.DataFrame, changes: TasteChanges, weight_before: float) -> Floats:
    """1 for pairs with a vote since the last change of their category, `weight_before` for the
    others; all 1 without a change.
    """
    return np.where(changes.is_current(pairs), 1.0, weight_before)

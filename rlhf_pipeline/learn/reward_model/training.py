"""Fits a reward model on the train split and evaluates it on the test split."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, VOTES, check_frame, frame_hash
from rlhf_pipeline.core.intervals import BootstrapParams
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.feedback.votes.ceilings import noise_ceiling_or_repeats
from rlhf_pipeline.feedback.votes.splits import select_test_pairs
from rlhf_pipeline.feedback.votes.taste_changes import NO_CHANGES, TasteChanges
from rlhf_pipeline.learn.reward_model.base import (
    Floats,
    RewardModel,
    encoder_params,
    margins_of,
)
from rlhf_pipeline.learn.reward_model.dimensions import measure_dimension_heads
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from rlhf_pipeline.learn.reward_model.evaluation import (
    FOLDS,
    Bools,
    accuracy_on,
    cross_validate,
    prompt_folds,
)
from rlhf_pipeline.learn.reward_model.kinds import (
    RewardModelParams,
    build_reward_model,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.losses import join_soft_labels, last_seq
from rlhf_pipeline.learn.reward_model.report import RewardModelReport, TestAccuracy

DEFAULT_WEIGHT = 0.1  # for pairs from before a change, if there are too few new ones to choose by
WEIGHTS_TRIED = (0.0, 0.03, 0.1, 0.3, 1.0)
MIN_NEW_PAIRS = 60
MIN_NEW_PROMPTS = 2  # in each of those folds: pairs of one prompt are too similar to choose by


@dataclass(frozen=True)
class LearningData:
    """Preference pairs, the votes that were cast when they were made, and changes of taste.

    `soft_labels` are SOFT_LABELS of the annotator model, the targets for label annotators; nothing
    here depends on a vote after `up_to_seq`.
    """

    pairs: pd.DataFrame
    votes: pd.DataFrame = field(default_factory=VOTES.empty_frame)
    taste_changes: TasteChanges = NO_CHANGES
    soft_labels: pd.DataFrame | None = None
    up_to_seq: int | None = None

    @property
    def ceiling(self) -> Interval | None:
        """The noise ceiling to report beside an accuracy on the votes."""
        return noise_ceiling_or_repeats(self.votes)

    @property
    def ceiling_since_change(self) -> Interval | None:
        """The noise ceiling of the votes since the latest change of taste."""
        if not self.taste_changes:
            return None
        since = self.votes["seq"] >= self.taste_changes.latest_seq
        return noise_ceiling_or_repeats(self.votes[since])


@dataclass(frozen=True)
class FittedRewardModel:
    """A fitted reward model and its report."""

    model: RewardModel
    report: RewardModelReport


def fit_reward_model(
    data: LearningData,
    params: RewardModelParams | None = None,
    *,
    encoder: Encoder | None = None,
    model: RewardModel | None = None,
    warm_start: RewardModel | None = None,
    progress: Progress = ignore_progress,
) -> FittedRewardModel:
    """Fit on the pairs of the train split and report on those of the test split; the calib split is
    not read.

    `model` is an unfitted reward model of any kind, by default the one that `params` describe. The
    weight of pairs
    whose votes all came before the last change of their category is multiplied by
    `weight_before_change`.

    Raises NotEnoughData, ConfigurationError (kinds of annotators mixed), FrameError.
    """
    params = params or reward_model_params()
    changes = data.taste_changes
    pairs = check_frame(data.pairs, PREFERENCE_PAIRS).sort_values(
        "comparison_id", ignore_index=True
    )
    refuse_mixed_annotators(pairs, allowed=params.allow_mixed_annotators)
    model = model or build_reward_model(params, encoder)
    label = model.summary.label
    if data.soft_labels is not None and label == "annotators":
        pairs = join_soft_labels(pairs, data.soft_labels, up_to_seq=data.up_to_seq)
    train = pairs[pairs["split"] == "train"].reset_index(drop=True)
    if train.empty:
        raise NotEnoughData(
            f"None of {len(pairs)} preference pairs is in the train split. Collect votes on more "
            "prompts."
        )
    before = choose_old_vote_weight(train, params, model, changes)
    weights = change_weights(train, changes, before.weight)
    model.fit(train, weights=weights, warm_start=warm_start, progress=progress)
    bootstrap = BootstrapParams(n_resamples=params.n_resamples, seed=params.seed)
    ceiling = data.ceiling
    test = select_test_pairs(pairs[pairs["agreement"] > 0.5])
    margins = margins_of(model, test, progress=progress) if len(test) else np.zeros(0)

    def accuracy(rows: Bools, ceiling: Interval | None) -> TestAccuracy | None:
        if not rows.any():
            return None
        return accuracy_on(test[rows], margins[rows], bootstrap, ceiling=ceiling)

    report = RewardModelReport(
        kind=model.name,
        n_train=len(train),
        **model.summary.model_dump(),
        n_calib=int((pairs["split"] == "calib").sum()),
        n_test=len(select_test_pairs(pairs)),
        n_before_change=int((~changes.is_current(train)).sum()),
        test=accuracy(np.ones(len(test), dtype=bool), ceiling),
        test_since_change=accuracy(changes.is_current(test), data.ceiling_since_change)
        if changes
        else None,
        dimensions=measure_dimension_heads(model, train, test, bootstrap, progress=progress),
        encoder_hash=None if model.encoder is None else model.encoder.hash,
        **encoder_params(model),
        weights_hash=model.weights_hash,
        parent_weights_hash=warm_start.weights_hash if warm_start else None,
        data_hash=frame_hash(pairs),
        max_seq=last_seq(pairs, label),
        change_seq=changes.since_seq,
        change_seq_by_category=dict(changes.by_category),
        weight_before_change=before.weight,
        weights_tried=before.losses,
        weight_reason=before.reason,
    )
    return FittedRewardModel(model, report)


def refuse_mixed_annotators(pairs: pd.DataFrame, *, allowed: bool) -> None:
    """Raise ConfigurationError if the model would learn pairs of several kinds of annotators as one
    taste.
    """
    counts = pairs["annotator_kind"].value_counts().sort_index()
    if allowed or (len(counts) <= 1 and "mixed" not in counts.index):
        return
    kinds = ", ".join(f"{kind}: {n}" for kind, n in counts.items())
    raise ConfigurationError(
        f"The preference pairs mix kinds of annotators ({kinds}). Keep one kind, or set "
        "allow_mixed_annotators."
    )


@dataclass(frozen=True)
class OldVoteWeight:
    """The weight of pairs voted before a change, the loss of each weight tried, and the reason."""

    weight: float
    losses: dict[str, float] = field(default_factory=dict)
    reason: str = ""


def choose_old_vote_weight(
    train: pd.DataFrame, params: RewardModelParams, model: RewardModel, changes: TasteChanges
) -> OldVoteWeight:
    """Choose the weight of votes from before a change by cross-validation over prompts voted on
    since.

    The size of the change is unknown: after a small change the old votes are still useful, after a
    reversal they are misleading. DEFAULT_WEIGHT is used if there are too few new pairs or prompts,
    or if the model is too slow for fifteen fits; weights that leave too little to fit on are
    skipped. The reason states which case applied.
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
            f"{FOLDS * len(WEIGHTS_TRIED)} times",
        )
    if is_new.all():
        return OldVoteWeight(
            DEFAULT_WEIGHT,
            reason="not chosen: no pair of the train split was voted on before the change alone",
        )
    fold = prompt_folds(train)
    # Neither ties nor categories whose taste never changed distinguish one weight from another.
    is_decisive = (
        is_new & (train["n_votes"] > 0).to_numpy() & (changes.first_seq(train["category"]) > 0)
    )
    prompts = train.loc[is_decisive, "prompt_id"]
    if (
        is_decisive.sum() < MIN_NEW_PAIRS
        or prompts.groupby(fold[is_decisive]).nunique().reindex(range(FOLDS), fill_value=0).min()
        < MIN_NEW_PROMPTS
    ):
        few = (
            f"{is_decisive.sum()} pairs of {prompts.nunique()} prompts voted on since the change, "
            "ties left out"
        )
        needed = f"{MIN_NEW_PAIRS} pairs, and {MIN_NEW_PROMPTS} prompts in each of {FOLDS} folds"
        return OldVoteWeight(DEFAULT_WEIGHT, reason=f"not chosen: {few}; {needed} are needed")
    losses, untried = {}, []
    for weight in WEIGHTS_TRIED:
        try:
            losses[f"{weight:g}"] = _held_out_loss(
                model, train, np.where(is_new, 1.0, weight), is_decisive
            )
        except NotEnoughData as cause:
            untried.append(f"{weight:g} could not be tried ({cause})")
    if not losses:
        return OldVoteWeight(DEFAULT_WEIGHT, reason=f"not chosen: {'; '.join(untried)}")
    best = min(losses, key=lambda weight: (losses[weight], float(weight)))
    least = (
        f"least log loss on {is_decisive.sum()} pairs of {prompts.nunique()} prompts voted on "
        "since the change"
    )
    return OldVoteWeight(float(best), losses, "; ".join([least, *untried]))


def _held_out_loss(model: RewardModel, train: pd.DataFrame, weights: Floats, rows: Bools) -> float:
    """Log loss per vote on `rows`, each predicted by a model that saw no pair of its prompt. Raises
    NotEnoughData as `fit`.
    """
    total = n_votes = 0.0
    for outside, margins in cross_validate(model, train, weights, rows):
        votes, agreement = (
            train.loc[outside, name].to_numpy(dtype=np.float64) for name in ("n_votes", "agreement")
        )
        total += float(votes @ (np.logaddexp(0.0, -margins) + (1 - agreement) * margins))
        n_votes += float(votes.sum())
    return total / n_votes


def change_weights(pairs: pd.DataFrame, changes: TasteChanges, weight_before: float) -> Floats:
    """1 for pairs with a vote since the last change of their category, `weight_before` for the
    others; all 1 without a change.
    """
    return np.where(changes.is_current(pairs), 1.0, weight_before)

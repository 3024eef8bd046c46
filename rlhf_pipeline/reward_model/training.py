"""Fits a reward model on the train split and evaluates it on the test split."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame, frame_hash
from rlhf_pipeline.intervals import BootstrapParams, group_index
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import (
    FitFacts,
    Floats,
    RewardModel,
    encoder_params,
    margins_of,
)
from rlhf_pipeline.reward_model.effects import measure_margin_effect
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.evaluation import evaluate_held_out
from rlhf_pipeline.reward_model.kinds import (
    RewardModelParams,
    build_reward_model,
    reward_model_params,
)
from rlhf_pipeline.reward_model.labels import join_soft_labels, last_seq
from rlhf_pipeline.reward_model.report import RewardModelReport
from rlhf_pipeline.votes.taste_changes import NO_CHANGES, TasteChanges
from rlhf_pipeline.votes.test_split import Recorder, log_opening, n_test_pairs

DEFAULT_WEIGHT = 0.1  # for pairs from before a change, if there are too few new ones to choose by
WEIGHTS_TRIED = (0.0, 0.03, 0.1, 0.3, 1.0)
WEIGHT_FOLDS = 3
MIN_NEW_PAIRS = 60
MIN_NEW_PROMPTS = 2  # in each of those folds: pairs of one prompt are too similar to choose by


@dataclass(frozen=True)
class FittedRewardModel:
    model: RewardModel
    report: RewardModelReport


def fit_reward_model(
    pairs: pd.DataFrame,
    params: RewardModelParams | None = None,
    *,
    encoder: Encoder | None = None,
    model: RewardModel | None = None,
    soft_labels: pd.DataFrame | None = None,
    ceiling: Interval | None = None,
    ceiling_since_change: Interval | None = None,
    warm_start: RewardModel | None = None,
    taste_changes: TasteChanges = NO_CHANGES,
    up_to_seq: int | None = None,
    record: Recorder = log_opening,
    progress: Progress = ignore_progress,
) -> FittedRewardModel:
    """Fit on the pairs of the train split and report on those of the test split; the calib split is
    not read.

    `model` is an unfitted reward model of any kind, by default the one that `params` describe.
    `soft_labels` (SOFT_LABELS of the annotator model) are the targets for label annotators; with
    `up_to_seq` they must not depend on later votes. The test split is opened once, after the fit,
    and `record` receives the opening. `ceiling` is the noise ceiling to report with the accuracy,
    `ceiling_since_change` that of the votes since the last of `taste_changes`. The weight of pairs
    whose votes all came before the last change of their category is multiplied by
    `weight_before_change`.

    Raises NotEnoughData, ConfigurationError (kinds of annotators mixed), FrameError.
    """
    params = params or reward_model_params()
    pairs = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id", ignore_index=True)
    refuse_mixed_annotators(pairs, allowed=params.allow_mixed_annotators)
    model = model or build_reward_model(params, encoder)
    label = model.facts.label
    if soft_labels is not None and label == "annotators":
        pairs = join_soft_labels(pairs, soft_labels, up_to_seq=up_to_seq)
    train = pairs[pairs["split"] == "train"].reset_index(drop=True)
    if train.empty:
        raise NotEnoughData(
            f"None of {len(pairs)} preference pairs is in the train split. Collect votes on more "
            "prompts."
        )
    before = choose_old_vote_weight(train, params, model, taste_changes)
    weights = change_weights(train, taste_changes, before.weight)
    cut = model.cut_texts()
    model.fit(train, weights=weights, warm_start=warm_start, progress=progress)
    judged = evaluate_held_out(
        model, pairs, params, taste_changes, (ceiling, ceiling_since_change), record, progress
    )
    truncated = {rule: n - cut.get(rule, 0) for rule, n in model.cut_texts().items()}
    bootstrap = BootstrapParams(n_resamples=params.n_resamples, seed=params.seed)
    report = RewardModelReport(
        kind=model.name,
        n_train=len(train),
        **model.facts.model_dump(include=set(FitFacts.model_fields)),
        n_calib=int((pairs["split"] == "calib").sum()),
        n_test=n_test_pairs(pairs),
        n_before_change=int((~taste_changes.is_current(train)).sum()),
        test=judged.test,
        test_since_change=judged.since_change,
        length=judged.length,
        margin=measure_margin_effect(
            train, model, weights=weights, ceiling=ceiling, bootstrap=bootstrap
        ),
        n_truncated=sum(truncated.values()),
        truncated=truncated,
        encoder_hash=None if model.encoder is None else model.encoder.hash,
        **encoder_params(model),
        weights_hash=model.weights_hash,
        parent_weights_hash=warm_start.weights_hash if warm_start else None,
        data_hash=frame_hash(pairs),
        max_seq=last_seq(pairs, label),
        change_seq=taste_changes.since_seq,
        change_seq_by_category=dict(taste_changes.by_category),
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
    shown = ", ".join(f"{kind}: {n}" for kind, n in counts.items())
    raise ConfigurationError(
        f"The preference pairs mix kinds of annotators ({shown}). Keep one kind, or set "
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
            f"{WEIGHT_FOLDS * len(WEIGHTS_TRIED)} times",
        )
    if is_new.all():
        return OldVoteWeight(
            DEFAULT_WEIGHT,
            reason="not chosen: no pair of the train split was voted on before the change alone",
        )
    fold = group_index(train["prompt_id"].to_numpy(), len(train)) % WEIGHT_FOLDS
    # Neither ties nor categories whose taste never changed distinguish one weight from another.
    judged = is_new & (train["n_votes"] > 0).to_numpy() & (changes.first_seq(train["category"]) > 0)
    prompts = train.loc[judged, "prompt_id"]
    if (
        judged.sum() < MIN_NEW_PAIRS
        or prompts.groupby(fold[judged]).nunique().reindex(range(WEIGHT_FOLDS), fill_value=0).min()
        < MIN_NEW_PROMPTS
    ):
        few = (
            f"{judged.sum()} pairs of {prompts.nunique()} prompts voted on since the change, ties "
            "left out"
        )
        needed = (
            f"{MIN_NEW_PAIRS} pairs, and {MIN_NEW_PROMPTS} prompts in each of {WEIGHT_FOLDS} folds"
        )
        return OldVoteWeight(DEFAULT_WEIGHT, reason=f"not chosen: {few}; {needed} are needed")
    losses, untried = {}, []
    for weight in WEIGHTS_TRIED:
        try:
            losses[f"{weight:g}"] = _held_out_loss(train, is_new, judged, fold, weight, model)
        except NotEnoughData as cause:
            untried.append(f"{weight:g} could not be tried ({cause})")
    if not losses:
        return OldVoteWeight(DEFAULT_WEIGHT, reason=f"not chosen: {'; '.join(untried)}")
    best = min(losses, key=lambda weight: (losses[weight], float(weight)))
    least = (
        f"least log loss on {judged.sum()} pairs of {prompts.nunique()} prompts voted on since the "
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
        assert quick is not None  # checked by the caller
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

"""Fitting a reward model on the train split and judging it on the test split. Knows pairs; knows no
registry.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame, frame_hash
from rlhf_pipeline.intervals import BootstrapParams
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import Floats, RewardModel
from rlhf_pipeline.reward_model.embedding import EmbeddingRewardModel
from rlhf_pipeline.reward_model.encoder import Encoder, EncoderChoice
from rlhf_pipeline.reward_model.held_out_evaluation import evaluate_held_out
from rlhf_pipeline.reward_model.labels import join_soft_labels, last_seq
from rlhf_pipeline.reward_model.margin_effect import MarginEffect, measure_margin_effect
from rlhf_pipeline.reward_model.params import RewardModelParams
from rlhf_pipeline.reward_model.report import RewardModelReport
from rlhf_pipeline.reward_model.taste_weights import change_weights, choose_old_vote_weight
from rlhf_pipeline.reward_model.transformer import TransformerRewardModel
from rlhf_pipeline.votes.taste_changes import NO_CHANGES, TasteChanges
from rlhf_pipeline.votes.test_split import Recorder, log_opening, n_test_pairs

WINDOW = "window"  # of the encoder; the other rules are parameters of the model, by their names


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
    """Fit on the pairs of the train split, report on those of the test split; the calib split is
    not touched.

    `model` is an unfitted reward model of any kind, by default the one that `params` say.
    `soft_labels`, SOFT_LABELS of the annotator model, are what label annotators learns; with
    `up_to_seq` they may rest on no later vote. The test split is opened once, after the fit, and
    `record` is told; `ceiling` is the noise ceiling to show beside the accuracy,
    `ceiling_since_change` that of the votes since the last of `taste_changes`. Pairs whose votes
    all came before the last change of their category are multiplied by `weight_before_change`. A
    warm start of a linear head changes the starting weights and the parent in the report, nothing
    else: the problem is convex. Raises NotEnoughData, ConfigurationError (kinds of annotators
    mixed), FrameError.
    """
    params = params or RewardModelParams()
    pairs = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id", ignore_index=True)
    refuse_mixed_annotators(pairs, allowed=params.allow_mixed_annotators)
    model = model or build_reward_model(params, encoder)
    own: Any = getattr(model, "params", None)
    # a model that is handed in knows best what it learns
    learnt = own if hasattr(own, "label") else params
    if soft_labels is not None and learnt.label == "annotators":
        pairs = join_soft_labels(pairs, soft_labels, up_to_seq=up_to_seq)
    train = pairs[pairs["split"] == "train"].reset_index(drop=True)
    if train.empty:
        raise NotEnoughData(
            f"None of {len(pairs)} preference pairs is in the train split. Collect votes on more "
            "prompts."
        )
    before = choose_old_vote_weight(train, params, model, taste_changes)
    weights = change_weights(train, taste_changes, before.weight)
    cut = count_cut_texts(model)
    model.fit(train, weights=weights, warm_start=warm_start, progress=progress)
    judged = evaluate_held_out(
        model, pairs, params, taste_changes, (ceiling, ceiling_since_change), record, progress
    )
    truncated = count_cut_since(cut, model)
    report = RewardModelReport(
        kind=model.name,
        n_train=len(train),
        **count_learnt_pairs(train, weights, model, warm_start),
        n_calib=int((pairs["split"] == "calib").sum()),
        n_test=n_test_pairs(pairs),
        n_before_change=int((~taste_changes.is_current(train)).sum()),
        test=judged.test,
        test_since_change=judged.since_change,
        length=judged.length,
        margin=_measure_margin(model, train, params, weights, ceiling),
        loss=getattr(own, "loss", params.loss),
        label=learnt.label,
        n_members=getattr(own, "n_members", 1) + int(getattr(own, "frozen_head", False)),
        log_tie_width=getattr(model, "log_tie_width_", None),
        loss_curve=tuple(model.loss_curve_),
        held_out_loss={
            f"{l2:g}": loss for l2, loss in getattr(model, "held_out_loss_", {}).items()
        },
        l2=getattr(model, "l2_", None),
        context_penalty=getattr(model, "context_penalty_", None),
        n_truncated=sum(truncated.values()),
        truncated=truncated,
        encoder_hash=getattr(getattr(model, "encoder", None), "hash", None),
        **encoder_params(model),
        weights_hash=model.weights_hash,
        parent_weights_hash=warm_start.weights_hash if warm_start else None,
        data_hash=frame_hash(pairs),
        max_seq=last_seq(pairs, learnt),
        change_seq=taste_changes.since_seq,
        change_seq_by_category=dict(taste_changes.by_category),
        weight_before_change=before.weight,
        weights_tried=before.losses,
        weight_reason=before.reason,
    )
    return FittedRewardModel(model, report)


def count_learnt_pairs(
    train: pd.DataFrame, weights: Floats, model: RewardModel, warm_start: RewardModel | None
) -> dict[str, int]:
    """Of a fitted `model`: n_learnt, the pairs of `train` that moved it, which are n_new and
    n_replayed, those its start had seen before.

    Only a transformer passes over what its start has seen, but for some that it replays (a frozen
    head of it learns all); all pairs of other fits are new. `weights` (n,) are what `fit` was
    given.
    """
    if not isinstance(model, TransformerRewardModel):
        n = int((weights > 0).sum())
        return {"n_learnt": n, "n_new": n, "n_replayed": 0}
    used = train[weights * model.vote_weights_of(train) > 0]
    if not isinstance(warm_start, TransformerRewardModel):
        return {"n_learnt": len(used), "n_new": len(used), "n_replayed": 0}
    n_new = int((used["max_seq"] > warm_start.max_seq_).sum())
    # where none is new, all are learnt again
    n_replayed = model.n_replayed_ if n_new else len(used)
    return {"n_learnt": n_new + n_replayed, "n_new": n_new, "n_replayed": n_replayed}


def count_cut_texts(model: RewardModel) -> dict[str, int]:
    """By rule, the texts so far of which the model left something unread: cut to the encoder's
    window, or by the model itself.
    """
    own: Any = getattr(model, "n_cut", {})
    return {WINDOW: int(getattr(getattr(model, "encoder", model), "n_truncated", 0)), **own}


def count_cut_since(before: dict[str, int], model: RewardModel) -> dict[str, int]:
    """The same since `before`."""
    return {rule: n - before.get(rule, 0) for rule, n in count_cut_texts(model).items()}


def _measure_margin(
    model: RewardModel,
    train: pd.DataFrame,
    params: RewardModelParams,
    weights: Floats,
    ceiling: Interval | None,
) -> MarginEffect | None:
    """None of other losses, and of models that are too slow to be fitted six times."""
    if not isinstance(model, EmbeddingRewardModel) or model.params.loss != "margin":
        return None
    bootstrap = BootstrapParams(n_resamples=params.n_resamples, seed=params.seed)
    return measure_margin_effect(
        train, model.params, model.encoder, weights=weights, ceiling=ceiling, bootstrap=bootstrap
    )


def build_reward_model(
    params: RewardModelParams, encoder: Encoder | None = None, *, checkpoints: Path | None = None
) -> RewardModel:
    """The model that `params` say; a transformer finds what a killed fit had done in
    `checkpoints`.
    """
    if params.kind == "transformer":
        return TransformerRewardModel(
            params.to_transformer_params(), encoder, checkpoints=checkpoints
        )
    return EmbeddingRewardModel(params.to_embedding_params(), encoder)


def encoder_params(model: RewardModel) -> dict[str, str]:
    """Which encoder a model was to be fitted on and which one it is, by the report's names; nothing
    of a kind without one.
    """
    choice: EncoderChoice | None = getattr(getattr(model, "encoder", None), "choice", None)
    return {} if choice is None else choice.to_params()


def find_warm_start_obstacle(start: RewardModel, model: RewardModel) -> str | None:
    """Why `model` cannot be fitted from the weights of `start`, in words; None where it can."""
    if start.name != model.name:
        return f"it is of kind {start.name}"
    before, now = (getattr(getattr(one, "encoder", None), "hash", None) for one in (start, model))
    if before != now:
        told = encoder_params(model)
        why = (
            f" ({told['encoder_used']} instead of {told['encoder_asked']})"
            if "encoder_instead_because" in told
            else ""
        )
        return f"its encoder is {str(before)[:12]}, now it is {str(now)[:12]}{why}"
    for name in ("adapter", "lora_rank"):
        before, now = (getattr(getattr(one, "params", None), name, None) for one in (start, model))
        if before != now:
            return f"its {name} is {before}, now it is {now}"
    return None


def refuse_mixed_annotators(pairs: pd.DataFrame, *, allowed: bool) -> None:
    """Raise ConfigurationError where pairs of several kinds of annotators would be learnt from as
    one taste.
    """
    counts = pairs["annotator_kind"].value_counts().sort_index()
    if allowed or (len(counts) <= 1 and "mixed" not in counts.index):
        return
    shown = ", ".join(f"{kind}: {n}" for kind, n in counts.items())
    raise ConfigurationError(
        f"The preference pairs mix kinds of annotators ({shown}). Keep one kind, or set "
        "allow_mixed_annotators."
    )

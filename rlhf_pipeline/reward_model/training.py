"""Fitting a reward model on the train split and judging it on the test split. Knows pairs; knows no registry."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame, frame_hash
from rlhf_pipeline.protocols import Progress, silent
from rlhf_pipeline.records import Interval, Record
from rlhf_pipeline.reward_model.base import Floats, RewardModel
from rlhf_pipeline.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.labels import with_soft_labels
from rlhf_pipeline.reward_model.length import LengthEffect, length_effect, length_of
from rlhf_pipeline.reward_model.transformer import TransformerParams, TransformerRewardModel
from rlhf_pipeline.votes.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.votes.test_split import Recorder, n_test_pairs, open_test_split, to_log

DEFAULT_WEIGHT = 0.1  # of pairs from before a change, where there are too few new ones to choose by
WEIGHTS_TRIED = (0.0, 0.03, 0.1, 0.3, 1.0)
WEIGHT_FOLDS = 3
MIN_NEW_PAIRS = 60


class RewardModelParams(EmbeddingParams):
    """How a reward model is fitted for the loop."""

    kind: Literal["embedding", "transformer"] = Field(
        default="embedding",
        description="Which reward model; of a transformer, loss, label, members, seed, prompt_chars and min_pairs are set here",
    )
    weight_before_change: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of pairs voted before a detected change of taste; empty = the one that best predicts pairs voted since",
    )
    allow_mixed_annotators: bool = Field(
        default=False, description="Fit on votes of humans and of simulated or machine annotators together"
    )
    n_resamples: int = Field(default=1000, ge=100, le=100_000, description="Bootstrap resamples of the report's intervals")
    seed: int = Field(default=0, ge=0, description="Seed of those resamples and of what the members draw; one linear head draws nothing")

    def embedding(self) -> EmbeddingParams:
        return EmbeddingParams(**{name: getattr(self, name) for name in EmbeddingParams.model_fields})

    def transformer(self) -> TransformerParams:
        """With what both kinds have; the rest as it is by default."""
        shared = set(TransformerParams.model_fields) & set(type(self).model_fields)
        return TransformerParams(**{name: getattr(self, name) for name in sorted(shared)})


class TestAccuracy(Record):
    """The model and its baselines on the same held-out pairs; intervals by bootstrap over prompts."""

    __test__ = False  # a record, not a test class

    n: int = Field(description="pairs")
    accuracy: Interval = Field(description="the majority's side is scored higher; equal scores count half")
    vote_accuracy: Interval = Field(description="share of single votes predicted: the number to set beside the noise ceiling")
    ceiling: Interval | None = Field(
        default=None,
        description="noise ceiling of these votes: how often one vote agrees with the majority of the others; None where none overlap",
    )
    log_loss: Interval = Field(description="nats per vote, before calibration; 0.693 is a coin")
    longer_wins: Interval = Field(description="accuracy of preferring the longer completion")
    majority_side: Interval = Field(description="accuracy of always choosing the side chosen most in training")


class RewardModelReport(Record):
    """What was fitted on what, and how well it does on prompts it never saw."""

    kind: str
    n_train: int
    n_calib: int
    n_test: int
    n_before_change: int = Field(description="training pairs that were down-weighted")
    test: TestAccuracy | None = Field(description="None without test pairs")
    test_since_change: TestAccuracy | None = Field(default=None, description="the same on pairs voted since the change")
    loss: str = Field(default="soft", description="see reward_model.losses")
    label: str = Field(default="votes", description="what was learnt from each pair")
    n_members: int = Field(default=1, description="of the ensemble")
    log_tie_width: float | None = Field(default=None, description="learnt by the loss davidson")
    length: LengthEffect | None = Field(default=None, description="what the margins owe to length, and without it; None without test pairs")
    loss_curve: tuple[float, ...] = Field(description="training objective after each step")
    held_out_loss: dict[str, float] = Field(description="L2 -> cross-validated loss within the train split")
    l2: float | None = None
    context_penalty: float | None = Field(default=None, description="of the completion in context, relative to its sentences'")
    n_truncated: int = Field(description="texts cut to the encoder's window in this run")
    encoder_hash: str | None = Field(default=None, description="of the frozen encoder, where there is one")
    weights_hash: str
    parent_weights_hash: str | None = Field(description="of the model it was started from")
    data_hash: str = Field(description="frame_hash of all pairs handed in, sorted by comparison")
    max_seq: int = Field(description="highest vote seq those pairs rest on")
    change_seq: int | None = None
    weight_before_change: float = Field(default=1.0, description="what pairs voted before the change counted")
    weights_tried: dict[str, float] = Field(default={}, description="that weight -> log loss on held-out pairs voted since the change")


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
    warm_start: RewardModel | None = None,
    change_seq: int | None = None,
    record: Recorder = to_log,
    progress: Progress = silent,
) -> FittedRewardModel:
    """Fit on the pairs of the train split, report on those of the test split; the calib split is not touched.

    `model` is an unfitted reward model of any kind, by default the one that `params` say. `soft_labels`, SOFT_LABELS of the
    annotator model, are what label annotators learns. The test split is opened once, after the fit, and `record` is told; `ceiling` is
    the noise ceiling to show beside the accuracy. Pairs whose votes all came before `change_seq` are multiplied by
    `weight_before_change`. A warm start of a linear head changes the starting weights and the parent in the report, nothing else: the
    problem is convex. Raises NotEnoughData, ConfigurationError (kinds of annotators mixed), FrameError.
    """
    params = params or RewardModelParams()
    pairs = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id", ignore_index=True)
    refuse_mixed_annotators(pairs, allowed=params.allow_mixed_annotators)
    if soft_labels is not None and params.label == "annotators":
        pairs = with_soft_labels(pairs, soft_labels)
    train = _split(pairs, "train")
    if train.empty:
        raise NotEnoughData(f"None of {len(pairs)} preference pairs is in the train split. Collect votes on more prompts.")
    model = model or _unfitted(params, encoder)
    weight_before, tried = _weight_before(train, params, model, change_seq)
    weights = change_weights(train, change_seq, weight_before)
    n_truncated = _n_truncated(model)
    model.fit(train, weights=weights, warm_start=warm_start, progress=progress)
    judged = _judge(model, pairs, params, change_seq, ceiling, record, progress)
    own: Any = getattr(model, "params", None)
    report = RewardModelReport(
        kind=model.name,
        n_train=len(train),
        n_calib=int((pairs["split"] == "calib").sum()),
        n_test=n_test_pairs(pairs),
        n_before_change=int((train["max_seq"] < change_seq).sum()) if change_seq is not None else 0,
        test=judged.test,
        test_since_change=judged.since_change,
        length=judged.length,
        loss=getattr(own, "loss", params.loss),
        label=getattr(own, "label", params.label),
        n_members=getattr(own, "n_members", 1),
        log_tie_width=getattr(model, "log_tie_width_", None),
        loss_curve=tuple(model.loss_curve_),
        held_out_loss={f"{l2:g}": loss for l2, loss in getattr(model, "held_out_loss_", {}).items()},
        l2=getattr(model, "l2_", None),
        context_penalty=getattr(model, "context_penalty_", None),
        n_truncated=_n_truncated(model) - n_truncated,
        encoder_hash=getattr(getattr(model, "encoder", None), "hash", None),
        weights_hash=model.weights_hash,
        parent_weights_hash=warm_start.weights_hash if warm_start else None,
        data_hash=frame_hash(pairs),
        max_seq=int(pairs["max_seq"].max()),
        change_seq=change_seq,
        weight_before_change=weight_before,
        weights_tried=tried,
    )
    return FittedRewardModel(model, report)


def _unfitted(params: RewardModelParams, encoder: Encoder | None) -> RewardModel:
    if params.kind == "transformer":
        return TransformerRewardModel(params.transformer(), encoder)
    return EmbeddingRewardModel(params.embedding(), encoder)


def _n_truncated(model: RewardModel) -> int:
    """Texts cut so far, by the model itself or by its encoder."""
    return int(getattr(getattr(model, "encoder", model), "n_truncated", 0))


def _weight_before(
    train: pd.DataFrame, params: RewardModelParams, model: RewardModel, change_seq: int | None
) -> tuple[float, dict[str, float]]:
    """How much the votes before a change are worth now: by cross-validation over the prompts voted on since.

    How far taste moved is not known beforehand: after a small change the old votes still teach, after a reversal they
    teach the wrong thing. With too few new pairs to tell, or a model too slow to be fitted fifteen times, DEFAULT_WEIGHT.
    """
    if change_seq is None:
        return 1.0, {}
    if params.weight_before_change is not None:
        return params.weight_before_change, {}
    is_new = (train["max_seq"] >= change_seq).to_numpy()
    if is_new.sum() < MIN_NEW_PAIRS or not (~is_new).any() or not isinstance(model, EmbeddingRewardModel):
        return DEFAULT_WEIGHT, {}
    one_head = params.embedding().model_copy(update={"n_members": 1, "head": "linear"})
    losses = {f"{weight:g}": _held_out_loss(train, is_new, weight, one_head, model.encoder) for weight in WEIGHTS_TRIED}
    return float(min(losses, key=lambda weight: (losses[weight], float(weight)))), losses


def _held_out_loss(train: pd.DataFrame, is_new: npt.NDArray[np.bool_], weight: float, params: EmbeddingParams, encoder: Encoder) -> float:
    """Log loss per vote on new pairs, each predicted by a model that saw no pair of its prompt."""
    total = n_votes = 0.0
    fold = group_index(train["prompt_id"].to_numpy(), len(train)) % WEIGHT_FOLDS
    for k in range(WEIGHT_FOLDS):
        outside = is_new & (fold == k)
        inside = (fold != k) & (is_new | (weight > 0))
        model = EmbeddingRewardModel(params, encoder)
        model.fit(train[inside].reset_index(drop=True), weights=np.where(is_new[inside], 1.0, weight))
        test = train[outside]
        prompts, n = test["prompt"].tolist(), len(test)
        scores = model.score([*prompts, *prompts], [*test["chosen"], *test["rejected"]])
        margins, votes = scores[:n] - scores[n:], test["n_votes"].to_numpy(dtype=np.float64)
        losses = np.logaddexp(0.0, -margins) + (1 - test["agreement"].to_numpy(dtype=np.float64)) * margins
        total, n_votes = total + float(votes @ losses), n_votes + float(votes.sum())
    return total / n_votes


def change_weights(pairs: pd.DataFrame, change_seq: int | None, weight_before: float) -> Floats:
    """1 for pairs with a vote at or after `change_seq`, `weight_before` for the others; all 1 without a change."""
    if change_seq is None:
        return np.ones(len(pairs))
    return np.where(pairs["max_seq"].to_numpy() < change_seq, weight_before, 1.0)


def refuse_mixed_annotators(pairs: pd.DataFrame, *, allowed: bool) -> None:
    """Raise ConfigurationError where pairs of several kinds of annotators would be learnt from as one taste."""
    counts = pairs["annotator_kind"].value_counts().sort_index()
    if allowed or (len(counts) <= 1 and "mixed" not in counts.index):
        return
    shown = ", ".join(f"{kind}: {n}" for kind, n in counts.items())
    raise ConfigurationError(f"The preference pairs mix kinds of annotators ({shown}). Keep one kind, or set allow_mixed_annotators.")


def _split(pairs: pd.DataFrame, split: str) -> pd.DataFrame:
    return pairs[pairs["split"] == split].reset_index(drop=True)


@dataclass(frozen=True)
class _Judged:
    test: TestAccuracy | None = None
    since_change: TestAccuracy | None = None
    length: LengthEffect | None = None


def _judge(
    model: RewardModel,
    pairs: pd.DataFrame,
    params: RewardModelParams,
    change_seq: int | None,
    ceiling: Interval | None,
    record: Recorder,
    progress: Progress,
) -> _Judged:
    """On all test pairs with a majority, and on those voted since the change."""
    test = open_test_split(
        pairs[pairs["agreement"] > 0.5], model=model.weights_hash, purpose="report of a fitted reward model", record=record
    )
    if test.empty:
        return _Judged()
    margins, side = margins_of(model, test, progress=progress), usual_side(pairs)
    since = (test["max_seq"] >= change_seq).to_numpy() if change_seq is not None else np.zeros(len(test), dtype=bool)
    slope = getattr(model, "length_slope_", None)
    gaps, turned = length_of(test["chosen"]) - length_of(test["rejected"]), (test["chosen_side"] == "b").to_numpy()
    is_debiased = bool(getattr(getattr(model, "params", None), "debias_length", False))
    return _Judged(
        accuracy_on(test, margins, side, params, ceiling=ceiling),
        accuracy_on(test[since], margins[since], side, params, ceiling=ceiling) if since.any() else None,
        None if slope is None else length_effect(margins, gaps, turned, float(slope), is_debiased=is_debiased),
    )


def margins_of(model: RewardModel, pairs: pd.DataFrame, *, progress: Progress = silent) -> Floats:
    """score(chosen) - score(rejected) of each pair, (n,)."""
    prompts = pairs["prompt"].tolist()
    scores = model.score([*prompts, *prompts], [*pairs["chosen"], *pairs["rejected"]], progress=progress)
    return scores[: len(pairs)] - scores[len(pairs) :]


def usual_side(pairs: pd.DataFrame) -> str:
    """The side that was chosen most often in training; a where both were alike."""
    chosen = _split(pairs, "train")["chosen_side"]
    return "a" if (chosen == "a").sum() >= (chosen == "b").sum() else "b"


def accuracy_on(
    test: pd.DataFrame, margins: Floats, side: str, params: RewardModelParams, *, ceiling: Interval | None = None
) -> TestAccuracy:
    """The measures of `test`, pairs with a majority, from margins chosen - rejected in its order; `ceiling` is set beside them."""
    bootstrap = BootstrapParams(n_resamples=params.n_resamples, seed=params.seed)
    groups, agreement = test["prompt_id"].to_numpy(), test["agreement"].to_numpy(dtype=np.float64)
    n_votes = test["n_votes"].to_numpy(dtype=np.float64)
    length_gap = (test["chosen"].str.len() - test["rejected"].str.len()).to_numpy(dtype=np.float64)
    right = _wins(margins)
    by_vote = right * agreement + (1 - right) * (1 - agreement)
    losses = np.logaddexp(0.0, -margins) + (1 - agreement) * margins

    def mean(values: Floats, weights: Floats | None = None) -> Interval:
        return interval_of_mean(values, groups=groups, weights=weights, params=bootstrap)

    return TestAccuracy(
        n=len(test),
        accuracy=mean(right),
        vote_accuracy=mean(by_vote, n_votes),
        ceiling=ceiling,
        log_loss=mean(losses, n_votes),
        longer_wins=mean(_wins(length_gap)),
        majority_side=mean((test["chosen_side"] == side).to_numpy(dtype=np.float64)),
    )


def _wins(margins: Floats) -> Floats:
    """1 where positive, 0 where negative, a half where equal."""
    return 0.5 + 0.5 * np.sign(margins)

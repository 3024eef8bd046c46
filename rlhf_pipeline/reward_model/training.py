"""Fitting a reward model on the train split and judging it on the test split. Knows pairs; knows no registry."""

from dataclasses import dataclass, field
from pathlib import Path
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
from rlhf_pipeline.reward_model.encoder import Encoder, EncoderChoice
from rlhf_pipeline.reward_model.fit_counts import cut_since, cut_words, learnt_pairs, learnt_words, texts_cut
from rlhf_pipeline.reward_model.labels import last_seq, with_soft_labels
from rlhf_pipeline.reward_model.length import LengthEffect, length_effect, length_of
from rlhf_pipeline.reward_model.strength import MarginEffect, margin_effect
from rlhf_pipeline.reward_model.transformer import TransformerRewardModel
from rlhf_pipeline.reward_model.transformer_params import FineTuningParams, TransformerParams
from rlhf_pipeline.votes.intervals import BootstrapParams, group_index, interval_of_mean
from rlhf_pipeline.votes.test_split import Recorder, n_test_pairs, open_test_split, to_log

DEFAULT_WEIGHT = 0.1  # of pairs from before a change, where there are too few new ones to choose by
WEIGHTS_TRIED = (0.0, 0.03, 0.1, 0.3, 1.0)
WEIGHT_FOLDS = 3
MIN_NEW_PAIRS = 60
MIN_NEW_PROMPTS = 2  # in each of those folds: one prompt's pairs are too much alike to choose by


class RewardModelParams(EmbeddingParams):
    """How a reward model is fitted for the loop."""

    kind: Literal["embedding", "transformer"] = Field(
        default="embedding",
        description="Which reward model; of a transformer, loss, label, members, seed, prompt_chars and min_pairs are set here, the rest "
        "in fine_tuning",
    )
    fine_tuning: FineTuningParams = Field(
        default_factory=FineTuningParams, description="What a transformer has beside these; an embedding model takes no notice of it"
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
        """With what both kinds have, and `fine_tuning`. Raises ConfigurationError for what only an embedding model can do."""
        if self.debias_length:
            raise ConfigurationError("debias_length is known to the embedding kind alone. Leave it out, or set kind to embedding.")
        shared = set(TransformerParams.model_fields) & set(type(self).model_fields)
        return TransformerParams(**{name: getattr(self, name) for name in sorted(shared)}, **self.fine_tuning.model_dump())

    def told(self) -> dict[str, Any]:
        """What a model of this kind was fitted with, as JSON: without the parameters of the other kind alone."""
        own = FineTuningParams.model_fields if self.kind == "transformer" else {}
        of_embedding = set(EmbeddingParams.model_fields) - set(TransformerParams.model_fields)
        left_out = {"fine_tuning"} | (of_embedding if own else set())
        nested = self.fine_tuning.model_dump(mode="json") if own else {}
        return self.model_dump(mode="json", exclude=left_out) | nested


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
    n_train: int = Field(description="pairs of the train split, learnt from or not")
    n_learnt: int | None = Field(default=None, description="of them those that moved the weights; None in reports of earlier versions")
    n_new: int | None = Field(default=None, description="of these what the model it was started from had not seen; of a fit anew all")
    n_replayed: int | None = Field(default=None, description="and what that had seen and a warm start of a transformer learnt again")
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
    margin: MarginEffect | None = Field(default=None, description="what strength as a margin did; of an embedding model's loss margin")
    loss_curve: tuple[float, ...] = Field(description="training objective after each step")
    held_out_loss: dict[str, float] = Field(description="L2 -> cross-validated loss within the train split")
    l2: float | None = None
    context_penalty: float | None = Field(default=None, description="of the completion in context, relative to its sentences'")
    n_truncated: int = Field(description="texts of which something was left unread in this run, by whichever rule")
    truncated: dict[str, int] = Field(
        default={}, description="rule -> those texts: the encoder's window, prompt_chars (the end is read), max_sentences (the first are)"
    )
    encoder_hash: str | None = Field(default=None, description="of the frozen encoder, where there is one")
    encoder_asked: str | None = Field(default=None, description="the encoder that the setting named first; None of a kind without one")
    encoder_used: str | None = Field(default=None, description="the one that was fitted on")
    encoder_instead_because: str | None = Field(default=None, description="why these are two; None where they are one")
    weights_hash: str
    parent_weights_hash: str | None = Field(description="of the model it was started from")
    data_hash: str = Field(description="frame_hash of all pairs handed in, sorted by comparison")
    max_seq: int = Field(description="highest vote seq those pairs rest on, and the soft labels where they were learnt")
    change_seq: int | None = None
    weight_before_change: float = Field(default=1.0, description="what pairs voted before the change counted")
    weights_tried: dict[str, float] = Field(default={}, description="that weight -> log loss on held-out pairs voted since the change")
    weight_reason: str = Field(default="", description="how that weight was come by, and which could not be tried; empty without a change")

    def metrics(self) -> dict[str, float]:
        """The numbers to freeze with a version, by the names they have everywhere; every accuracy with its ceiling where one is known."""
        found: dict[str, float | None] = {
            "n_train": self.n_train,
            "n_learnt": self.n_learnt,
            "n_new": self.n_new,
            "n_replayed": self.n_replayed,
            "n_truncated": self.n_truncated,
            "n_before_change": self.n_before_change,
            "weight_before_change": self.weight_before_change,
        }
        for test, since in ((self.test, ""), (self.test_since_change, "_since_change")):
            if test is not None:
                found |= {
                    f"test_accuracy{since}": test.accuracy.value,
                    f"test_vote_accuracy{since}": test.vote_accuracy.value,
                    f"noise_ceiling{since}": test.ceiling.value if test.ceiling else None,
                    f"longer_wins{since}": test.longer_wins.value,
                    f"test_log_loss{since}": test.log_loss.value,
                }
        if self.length is not None:
            found |= {"length_correlation": self.length.correlation_after if self.length.is_debiased else self.length.correlation_before}
        return {name: float(value) for name, value in found.items() if value is not None}

    @property
    def read(self) -> str:
        """For people: from how many pairs it learnt, how many texts were cut, and on which encoder where it is not the one asked for."""
        read = f"{learnt_words(self.n_train, self.n_learnt, self.n_new, self.n_replayed)}, {cut_words(self.truncated)}"
        read += "" if self.margin is None else f", {self.margin}"
        if self.encoder_instead_because is None:
            return read
        return f"{read}, on encoder {self.encoder_used} instead of {self.encoder_asked} ({self.encoder_instead_because})"


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
    change_seq: int | None = None,
    up_to_seq: int | None = None,
    record: Recorder = to_log,
    progress: Progress = silent,
) -> FittedRewardModel:
    """Fit on the pairs of the train split, report on those of the test split; the calib split is not touched.

    `model` is an unfitted reward model of any kind, by default the one that `params` say. `soft_labels`, SOFT_LABELS of the
    annotator model, are what label annotators learns; with `up_to_seq` they may rest on no later vote. The test split is opened once, after
    the fit, and `record` is told; `ceiling` is the noise ceiling to show beside the accuracy, `ceiling_since_change` that of the votes
    since `change_seq`. Pairs whose votes all came before `change_seq` are multiplied by
    `weight_before_change`. A warm start of a linear head changes the starting weights and the parent in the report, nothing else: the
    problem is convex. Raises NotEnoughData, ConfigurationError (kinds of annotators mixed), FrameError.
    """
    params = params or RewardModelParams()
    pairs = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id", ignore_index=True)
    refuse_mixed_annotators(pairs, allowed=params.allow_mixed_annotators)
    model = model or unfitted(params, encoder)
    own: Any = getattr(model, "params", None)
    learnt = own if hasattr(own, "label") else params  # a model that is handed in knows best what it learns
    if soft_labels is not None and learnt.label == "annotators":
        pairs = with_soft_labels(pairs, soft_labels, up_to_seq=up_to_seq)
    train = _split(pairs, "train")
    if train.empty:
        raise NotEnoughData(f"None of {len(pairs)} preference pairs is in the train split. Collect votes on more prompts.")
    before = _weight_before(train, params, model, change_seq)
    weights = change_weights(train, change_seq, before.weight)
    cut = texts_cut(model)
    model.fit(train, weights=weights, warm_start=warm_start, progress=progress)
    judged = _judge(model, pairs, params, change_seq, (ceiling, ceiling_since_change), record, progress)
    truncated = cut_since(cut, model)
    report = RewardModelReport(
        kind=model.name,
        n_train=len(train),
        **learnt_pairs(train, weights, model, warm_start),
        n_calib=int((pairs["split"] == "calib").sum()),
        n_test=n_test_pairs(pairs),
        n_before_change=int((train["max_seq"] < change_seq).sum()) if change_seq is not None else 0,
        test=judged.test,
        test_since_change=judged.since_change,
        length=judged.length,
        margin=_margin(model, train, params, weights, ceiling),
        loss=getattr(own, "loss", params.loss),
        label=learnt.label,
        n_members=getattr(own, "n_members", 1),
        log_tie_width=getattr(model, "log_tie_width_", None),
        loss_curve=tuple(model.loss_curve_),
        held_out_loss={f"{l2:g}": loss for l2, loss in getattr(model, "held_out_loss_", {}).items()},
        l2=getattr(model, "l2_", None),
        context_penalty=getattr(model, "context_penalty_", None),
        n_truncated=sum(truncated.values()),
        truncated=truncated,
        encoder_hash=getattr(getattr(model, "encoder", None), "hash", None),
        **encoder_told(model),
        weights_hash=model.weights_hash,
        parent_weights_hash=warm_start.weights_hash if warm_start else None,
        data_hash=frame_hash(pairs),
        max_seq=last_seq(pairs, learnt),
        change_seq=change_seq,
        weight_before_change=before.weight,
        weights_tried=before.losses,
        weight_reason=before.reason,
    )
    return FittedRewardModel(model, report)


def _margin(
    model: RewardModel, train: pd.DataFrame, params: RewardModelParams, weights: Floats, ceiling: Interval | None
) -> MarginEffect | None:
    """None of other losses, and of models that are too slow to be fitted six times."""
    if not isinstance(model, EmbeddingRewardModel) or model.params.loss != "margin":
        return None
    bootstrap = BootstrapParams(n_resamples=params.n_resamples, seed=params.seed)
    return margin_effect(train, model.params, model.encoder, weights=weights, ceiling=ceiling, bootstrap=bootstrap)


def unfitted(params: RewardModelParams, encoder: Encoder | None = None, *, checkpoints: Path | None = None) -> RewardModel:
    """The model that `params` say; a transformer finds what a killed fit had done in `checkpoints`."""
    if params.kind == "transformer":
        return TransformerRewardModel(params.transformer(), encoder, checkpoints=checkpoints)
    return EmbeddingRewardModel(params.embedding(), encoder)


def encoder_told(model: RewardModel) -> dict[str, str]:
    """Which encoder a model was to be fitted on and which one it is, by the report's names; nothing of a kind without one."""
    choice: EncoderChoice | None = getattr(getattr(model, "encoder", None), "choice", None)
    return {} if choice is None else choice.told()


def why_not_from(start: RewardModel, model: RewardModel) -> str | None:
    """Why `model` cannot be fitted from the weights of `start`, in words; None where it can."""
    if start.name != model.name:
        return f"it is of kind {start.name}"
    before, now = (getattr(getattr(one, "encoder", None), "hash", None) for one in (start, model))
    if before != now:
        told = encoder_told(model)
        why = f" ({told['encoder_used']} instead of {told['encoder_asked']})" if "encoder_instead_because" in told else ""
        return f"its encoder is {str(before)[:12]}, now it is {str(now)[:12]}{why}"
    for name in ("adapter", "lora_rank"):
        before, now = (getattr(getattr(one, "params", None), name, None) for one in (start, model))
        if before != now:
            return f"its {name} is {before}, now it is {now}"
    return None


@dataclass(frozen=True)
class _WeightBefore:
    """What pairs voted before a change count, what each weight tried lost, and why it is this one."""

    weight: float
    losses: dict[str, float] = field(default_factory=dict)
    reason: str = ""


def _weight_before(train: pd.DataFrame, params: RewardModelParams, model: RewardModel, change_seq: int | None) -> _WeightBefore:
    """How much the votes before a change are worth now: by cross-validation over the prompts voted on since.

    How far taste moved is not known beforehand: after a small change the old votes still teach, after a reversal they
    teach the wrong thing. With too few new pairs or prompts to tell, or a model too slow to be fitted fifteen times, DEFAULT_WEIGHT;
    a weight with which too little is left to fit on is passed over. The reason says which it was.
    """
    if change_seq is None:
        return _WeightBefore(1.0)
    if params.weight_before_change is not None:
        return _WeightBefore(params.weight_before_change, reason="set by hand")
    is_new = (train["max_seq"] >= change_seq).to_numpy()
    if not isinstance(model, EmbeddingRewardModel):
        return _WeightBefore(
            DEFAULT_WEIGHT, reason=f"not chosen: a {model.name} is too slow to be fitted {WEIGHT_FOLDS * len(WEIGHTS_TRIED)} times"
        )
    if is_new.all():
        return _WeightBefore(DEFAULT_WEIGHT, reason="not chosen: no pair of the train split was voted on before the change alone")
    fold = group_index(train["prompt_id"].to_numpy(), len(train)) % WEIGHT_FOLDS
    told = is_new & (train["n_votes"] > 0).to_numpy()  # ties say of no weight that it is better
    prompts = train.loc[told, "prompt_id"]
    if (
        told.sum() < MIN_NEW_PAIRS
        or prompts.groupby(fold[told]).nunique().reindex(range(WEIGHT_FOLDS), fill_value=0).min() < MIN_NEW_PROMPTS
    ):
        few = f"{told.sum()} pairs of {prompts.nunique()} prompts voted on since the change, ties left out"
        needed = f"{MIN_NEW_PAIRS} pairs, and {MIN_NEW_PROMPTS} prompts in each of {WEIGHT_FOLDS} folds"
        return _WeightBefore(DEFAULT_WEIGHT, reason=f"not chosen: {few}; {needed} are needed")
    one_head = model.params.model_copy(update={"n_members": 1, "head": "linear"})
    losses, untried = {}, []
    for weight in WEIGHTS_TRIED:
        try:
            losses[f"{weight:g}"] = _held_out_loss(train, is_new, fold, weight, one_head, model.encoder)
        except NotEnoughData as cause:
            untried.append(f"{weight:g} could not be tried ({cause})")
    if not losses:
        return _WeightBefore(DEFAULT_WEIGHT, reason=f"not chosen: {'; '.join(untried)}")
    best = min(losses, key=lambda weight: (losses[weight], float(weight)))
    least = f"least log loss on {told.sum()} pairs of {prompts.nunique()} prompts voted on since the change"
    return _WeightBefore(float(best), losses, "; ".join([least, *untried]))


def _held_out_loss(
    train: pd.DataFrame,
    is_new: npt.NDArray[np.bool_],
    fold: npt.NDArray[np.int64],
    weight: float,
    params: EmbeddingParams,
    encoder: Encoder,
) -> float:
    """Log loss per vote on new pairs, each predicted by a model that saw no pair of its prompt. Raises NotEnoughData as `fit`."""
    total = n_votes = 0.0
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
    ceilings: tuple[Interval | None, Interval | None],
    record: Recorder,
    progress: Progress,
) -> _Judged:
    """On all test pairs with a majority, and on those voted since the change; `ceilings` are those of all votes and of these."""
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
        accuracy_on(test, margins, side, params, ceiling=ceilings[0]),
        accuracy_on(test[since], margins[since], side, params, ceiling=ceilings[1]) if since.any() else None,
        None if slope is None else length_effect(margins, gaps, turned, float(slope), is_debiased=is_debiased, ceiling=ceilings[0]),
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

"""Fits the reward model on frozen sentence embeddings."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import ConfigDict, Field, field_validator

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import ModelError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.intervals import group_index
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.learn.reward_model.base import (
    Floats,
    ModelSummary,
    RewardModel,
    both_sides,
    check_texts,
    distinct_texts,
    drop_unweighted_pairs,
    require_finite,
    require_warm_start,
    sort_weighted_pairs,
)
from rlhf_pipeline.learn.reward_model.dimensions import HEAD_OF, fit_dimension_heads
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from rlhf_pipeline.learn.reward_model.heads import HeadProblem, choose_l2, fit_heads
from rlhf_pipeline.learn.reward_model.losses import LabelParams, targets_of, vote_weights
from rlhf_pipeline.learn.reward_model.model_files import (
    CONFIG_FILE,
    read_config,
    read_tensors,
    replace_folder_atomically,
    require_encoder,
    require_weights,
)

WEIGHTS_FILE = "model.safetensors"
# The learned parts; each must be in the file.
PARTS = ("head", "feature_mean", "feature_std", "score_mean", "score_std")
SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
# L2 penalty relative to one dimension of the sentence embeddings: length and sentence count are
# only two features and known to matter.
SURFACE_PENALTY = 0.05
N_SURFACE = 2


class EmbeddingParams(LabelParams):
    """Parameters of the embedding reward model's fit."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    n_members: int = Field(
        default=1,
        ge=1,
        le=50,
        description="Heads whose mean is the score; from 2 on each on prompts drawn anew, and "
        "their disagreement is known",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the members' prompts")
    prompt_chars: int = Field(
        default=600,
        ge=0,
        le=10_000,
        description="Characters kept of the end of the prompt, before the completion",
    )
    l2_grid: list[float] = Field(
        default=[0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        min_length=1,
        description="L2 penalties of the head tried by cross-validation over prompts",
    )
    context_penalty_grid: list[float] = Field(
        default=[3.0, 0.3],
        min_length=1,
        description="Penalties of the completion in context relative to its sentences', tried "
        "likewise around the best L2 of the first: above 1 single sentences are trusted more, as "
        "with short completions of many prompts; below 1 the whole, as with essays",
    )
    folds: int = Field(default=4, ge=2, le=20, description="Folds of that cross-validation")
    max_sentences: int = Field(
        default=32,
        ge=1,
        le=1000,
        description="Sentences of a completion that count one by one; the rest do not",
    )
    min_pairs: int = Field(default=30, ge=4, description="Fewest pairs to fit on")
    min_dimension_pairs: int = Field(
        default=50,
        ge=4,
        description="Fewest pairs that votes judge in a dimension of the rubric, such as helpful; "
        "a dimension with fewer has no head of its own",
    )

    @field_validator("l2_grid", "context_penalty_grid")
    @classmethod
    def _check_penalties(cls, values: list[float]) -> list[float]:
        if not all(value > 0 for value in values):
            raise ValueError("penalties must be above 0")
        return values


class EmbeddingRewardModel(RewardModel):
    """Scores a completion by one or several heads on its sentence embeddings, its embedding in
    context and its length.

    The sentence embeddings are summed, so two kind sentences count twice and each stays distinct; a
    single embedding of the whole text blurs them. The context is the last `prompt_chars` characters
    of the prompt, ` [SEP] ` and the completion. Features are
    standardised on the training completions. The score is the mean of the members' scores. Beside
    it stands one linear head for each dimension of the rubric that enough votes judge. See
    `RewardModel` for the protocol.
    """

    name: ClassVar[str] = "embedding"
    Params = EmbeddingParams
    encoder: Encoder

    def __init__(
        self,
        params: EmbeddingParams | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.params = EmbeddingParams() if params is None else params
        self.encoder = encoder or Encoder()
        self.loss_curve_: list[float] = []
        self.held_out_loss_: dict[float, float] = {}
        self.l2_: float | None = None
        self.context_penalty_: float | None = None
        self.heads_: Floats = np.zeros((0, 0))  # (members, d)
        self.dimension_heads_: dict[str, Floats] = {}

    def fit(
        self,
        pairs: pd.DataFrame,
        *,
        weights: Floats | None = None,
        warm_start: RewardModel | None = None,
        progress: Progress = ignore_progress,
    ) -> Self:
        weighted_pairs = drop_unweighted_pairs(
            sort_weighted_pairs(pairs, weights), self.name, self.params.min_pairs
        )
        both = self.features(*both_sides(weighted_pairs), progress=progress)
        chosen, rejected = np.split(both, 2)
        self.feature_mean_ = both.mean(axis=0)
        # A constant feature carries no information; dividing by 1 keeps it at 0.
        spread = both.std(axis=0)
        self.feature_std_ = np.where(spread > 1e-9, spread, 1.0)
        label = self.params.label
        problem = HeadProblem(
            (chosen - rejected) / self.feature_std_,
            targets_of(weighted_pairs, label),
            weighted_pairs["weight"].to_numpy(dtype=np.float64)
            * vote_weights(weighted_pairs, label),
            np.ones(chosen.shape[1]),
        )
        groups = group_index(weighted_pairs["prompt_id"].to_numpy(), len(weighted_pairs))
        problem = self._choose_penalties(problem, groups)
        self.heads_, self.loss_curve_ = fit_heads(
            problem,
            groups,
            float(self.l2_ or 0.0),
            n_members=self.params.n_members,
            seed=self.params.seed,
            start=self._starting_head(warm_start),
        )
        self.dimension_heads_ = fit_dimension_heads(
            weighted_pairs,
            problem,
            self.params.l2_grid,
            self.params.folds,
            self.params.min_dimension_pairs,
        )
        scores = self._raw_scores(both).mean(axis=1)
        self.score_mean_, self.score_std_ = float(scores.mean()), float(max(scores.std(), 1e-12))
        return self

    def _choose_penalties(self, problem: HeadProblem, groups: npt.NDArray[np.int64]) -> HeadProblem:
        """Choose L2 and the context penalty by loss on held-out prompts; return `problem` with the
        chosen penalties.

        The first context penalty is tried with the whole L2 grid, the others only with the best L2
        and its neighbours. Nothing is fitted if there is only one choice.
        """
        if len(self.params.l2_grid) == len(self.params.context_penalty_grid) == 1:
            self.held_out_loss_, self.l2_ = {}, self.params.l2_grid[0]
            self.context_penalty_ = self.params.context_penalty_grid[0]
            return replace(problem, penalty=_penalty(len(problem.penalty), self.context_penalty_))
        grid, best = sorted(self.params.l2_grid), float("inf")
        chosen = problem
        for context_penalty in self.params.context_penalty_grid:
            tried = replace(problem, penalty=_penalty(len(problem.penalty), context_penalty))
            losses = choose_l2(tried, groups, grid, self.params.folds)
            l2 = min(losses, key=lambda l2: (losses[l2], -l2))
            if losses[l2] < best:
                best, chosen = losses[l2], tried
                self.held_out_loss_ = losses
                self.l2_ = l2
                self.context_penalty_ = context_penalty
            here = grid.index(l2)
            grid = grid[max(0, here - 1) : here + 2]
        return chosen

    @property
    def summary(self) -> ModelSummary:
        params = self.params
        return ModelSummary(
            label=params.label,
            n_members=params.n_members,
            loss_curve=tuple(self.loss_curve_),
            held_out_loss={f"{l2:g}": loss for l2, loss in self.held_out_loss_.items()},
            l2=self.l2_,
            context_penalty=self.context_penalty_,
        )

    def quick(self, **changes: Any) -> "EmbeddingRewardModel":
        """One linear head on the same encoder."""
        params = self.params.model_copy(update={"n_members": 1} | changes)
        return EmbeddingRewardModel(params, self.encoder)

    def member_scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        self._require_fitted()
        prompts, completions, place = distinct_texts(prompts, completions)
        if not len(completions):
            return np.zeros((len(self.heads_), 0))
        return require_finite(
            self._raw_scores(self.features(prompts, completions, progress=progress))
            - self.score_mean_,
            "scores",
        )[place].T

    def dimension_scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> dict[str, Floats]:
        self._require_fitted()
        if not self.dimension_heads_ or not len(completions):
            return {name: np.zeros(0) for name in self.dimension_heads_}
        prompts, completions, place = distinct_texts(prompts, completions)
        features = self._standardise_features(
            self.features(prompts, completions, progress=progress)
        )
        return {
            name: require_finite(features @ head, f"scores in {name}")[place]
            for name, head in self.dimension_heads_.items()
        }

    def features(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """The head's input features, (n, d), not yet standardised."""
        check_texts(prompts, completions)
        contexts = [self.join_prompt(p, c) for p, c in zip(prompts, completions, strict=True)]
        sentences = [self.split_sentences(c) for c in completions]
        n_sentences = np.array([len(parts) for parts in sentences])
        texts = [*contexts, *(sentence for parts in sentences for sentence in parts)]
        vectors = self.encoder.encode(texts, progress=progress).astype(np.float64)
        starts = np.cumsum(n_sentences) - n_sentences
        summed = np.add.reduceat(vectors[len(contexts) :], starts, axis=0)
        return np.concatenate(
            [
                summed,
                vectors[: len(contexts)],
                np.stack([np.log1p([len(c) for c in completions]), n_sentences], axis=1),
            ],
            axis=1,
        )

    def split_sentences(self, completion: str) -> list[str]:
        """Split the completion at full stops, question and exclamation marks and line ends; the
        whole text if it has none.
        """
        sentences = [part.strip() for part in SENTENCE.findall(completion) if part.strip()]
        return sentences[: self.params.max_sentences] or [completion]

    def join_prompt(self, prompt: str, completion: str) -> str:
        """The text to embed for a completion in the context of its prompt."""
        n_chars = self.params.prompt_chars
        tail = render_transcript(prompt)[-n_chars:] if n_chars else ""
        return f"{tail} [SEP] {completion}"

    @property
    def weights_hash(self) -> str:
        self._require_fitted()
        return content_hash({name: part.tolist() for name, part in self._parts().items()})

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save

        self._require_fitted()
        config = {
            "kind": self.name,
            "params": self.params.model_dump(mode="json"),
            "encoder_hash": self.encoder.hash,
            "encoder_max_tokens": self.encoder.max_tokens,
            "l2": self.l2_,
            "context_penalty": self.context_penalty_,
            "held_out_loss": {str(l2): loss for l2, loss in self.held_out_loss_.items()},
            "loss_curve": self.loss_curve_,
            "weights_hash": self.weights_hash,
        }
        with replace_folder_atomically(folder) as new_folder:
            write_atomically(new_folder / WEIGHTS_FILE, save(self._parts()))
            write_atomically(new_folder / CONFIG_FILE, json.dumps(config, indent=1).encode())

    @classmethod
    def load(cls, folder: Path, *, encoder: Encoder | None = None) -> Self:
        config = read_config(folder, cls.name)
        encoder = encoder or Encoder(max_tokens=config["encoder_max_tokens"])
        require_encoder(encoder, config, folder)
        model = cls(EmbeddingParams(**config["params"]), encoder)
        stored = read_tensors(Path(folder) / WEIGHTS_FILE, "np", PARTS)
        parts = {name: require_finite(stored[name], name) for name in PARTS}
        model.feature_mean_, model.feature_std_ = parts["feature_mean"], parts["feature_std"]
        model.heads_ = np.atleast_2d(parts["head"])
        if model.heads_.shape[1] != len(model.feature_mean_):
            raise ModelError(
                f"The heads' shapes do not fit {len(model.feature_mean_)} features. The file is "
                "damaged or of another encoder; fit the model again."
            )
        model.dimension_heads_ = {
            name.removeprefix(HEAD_OF): require_finite(part, name)
            for name, part in sorted(stored.items())
            if name.startswith(HEAD_OF)
        }
        model.score_mean_, model.score_std_ = (
            float(parts[name][0]) for name in ("score_mean", "score_std")
        )
        model.l2_, model.loss_curve_ = config["l2"], config["loss_curve"]
        model.context_penalty_ = config["context_penalty"]
        model.held_out_loss_ = {float(l2): loss for l2, loss in config["held_out_loss"].items()}
        require_weights(model, config, folder)
        return model

    def _standardise_features(self, features: Floats) -> Floats:
        return np.asarray((features - self.feature_mean_) / self.feature_std_)

    def _raw_scores(self, features: Floats) -> Floats:
        """(n, members), not yet centred."""
        return np.asarray(self._standardise_features(features) @ self.heads_.T)

    def _starting_head(self, warm_start: RewardModel | None) -> Floats | None:
        """The other model's linear head, averaged over its members and converted to this model's
        feature scale.
        """
        if warm_start is None:
            return None
        start: EmbeddingRewardModel = require_warm_start(warm_start, self)
        start._require_fitted()
        return np.asarray(start.heads_.mean(axis=0) / start.feature_std_ * self.feature_std_)

    def _parts(self) -> dict[str, Floats]:
        # a single head is saved as one vector
        parts = {
            "head": self.heads_[0] if len(self.heads_) == 1 else self.heads_,
            "feature_mean": self.feature_mean_,
            "feature_std": self.feature_std_,
            "score_mean": self.score_mean_,
            "score_std": self.score_std_,
            **{HEAD_OF + name: head for name, head in self.dimension_heads_.items()},
        }
        return {
            name: np.atleast_1d(np.asarray(part, dtype=np.float64)) for name, part in parts.items()
        }

    def _require_fitted(self) -> None:
        if not len(self.heads_):
            raise ModelError(
                "This reward model is not fitted. Call fit, or load a folder that was saved."
            )


def _penalty(n_features: int, context_penalty: float) -> Floats:
    dimension = (n_features - N_SURFACE) // 2
    return np.repeat([1.0, context_penalty, SURFACE_PENALTY], [dimension, dimension, N_SURFACE])

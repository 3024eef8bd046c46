"""The reward model on frozen sentence embeddings. Knows pairs, an encoder and its head; knows no splits or registry."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import InvalidScores, ModelError, ModelHashMismatch, NotEnoughData
from rlhf_pipeline.files import write_whole
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.protocols import Progress, silent
from rlhf_pipeline.records import content_hash
from rlhf_pipeline.reward_model.base import CONFIG_FILE, Floats, RewardModel, finite, read_config
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.linear_head import Problem, choose_l2, fit_head
from rlhf_pipeline.votes.intervals import group_index

WEIGHTS_FILE = "model.safetensors"
# What is learnt; each part must be in the file.
PARTS = ("head", "feature_mean", "feature_std", "score_mean", "score_std")
SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
# Penalty relative to a dimension of the sentences' embedding: length and number of sentences are few and known to matter.
SURFACE_PENALTY = 0.05
N_SURFACE = 2


class EmbeddingParams(BaseModel):
    """How the embedding reward model is fitted."""

    model_config = ConfigDict(extra="forbid")

    prompt_chars: int = Field(default=600, ge=0, le=10_000, description="Characters kept of the end of the prompt, before the completion")
    l2_grid: list[float] = Field(
        default=[0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        min_length=1,
        description="L2 penalties of the head tried by cross-validation over prompts",
    )
    context_penalty_grid: list[float] = Field(
        default=[3.0, 0.3],
        min_length=1,
        description="Penalties of the completion in context relative to its sentences', tried likewise around the best L2 of the first: "
        "above 1 single sentences are trusted more, as with short completions of many prompts; below 1 the whole, as with essays",
    )
    folds: int = Field(default=4, ge=2, le=20, description="Folds of that cross-validation")
    max_sentences: int = Field(default=32, ge=1, le=1000, description="Sentences of a completion that count one by one; the rest do not")
    label: Literal["votes", "majority"] = Field(
        default="votes",
        description="Learn the share of votes for each side (probabilities of one vote), or the majority as if it were certain",
    )
    min_pairs: int = Field(default=30, ge=4, description="Fewest pairs to fit on")


class EmbeddingRewardModel:
    """Embeddings of a completion's sentences and of the completion in context, its length, and a linear head.

    The sentences' embeddings are summed, so that two kind sentences count twice and each is seen sharply; one embedding
    of the whole text blurs them. The context is the last `prompt_chars` characters of the prompt, ` [SEP] ` and the
    completion. What exceeds the encoder's window is cut off the end and counted (`encoder.n_truncated`). Features are
    standardised on the training completions. See `RewardModel` for the protocol.
    """

    name: ClassVar[str] = "embedding"

    def __init__(self, params: EmbeddingParams | None = None, encoder: Encoder | None = None) -> None:
        self.params = EmbeddingParams() if params is None else params
        self.encoder = encoder or Encoder()
        self.loss_curve_: list[float] = []
        self.held_out_loss_: dict[float, float] = {}
        self.l2_: float | None = None
        self.context_penalty_: float | None = None
        self.head_: Floats = np.zeros(0)

    def fit(
        self,
        pairs: pd.DataFrame,
        *,
        weights: Floats | None = None,
        warm_start: RewardModel | None = None,
        progress: Progress = silent,
    ) -> Self:
        weights = np.ones(len(pairs)) if weights is None else finite(weights, "weights")
        if len(weights) != len(pairs) or (weights < 0).any():
            raise InvalidScores(
                f"{len(weights)} weights for {len(pairs)} pairs, smallest {weights.min(initial=0)}. One weight of 0 or more each."
            )
        ordered = check_frame(pairs, PREFERENCE_PAIRS).assign(weight=weights).sort_values("comparison_id", ignore_index=True)
        used = ordered[ordered["weight"] > 0].reset_index(drop=True)
        if len(used) < self.params.min_pairs:
            raise NotEnoughData(
                f"{len(used)} preference pairs to fit on; the embedding reward model needs {self.params.min_pairs}. "
                "Collect more votes or lower min_pairs."
            )
        chosen, rejected = self._both_sides(used, progress)
        self._learn_scale(np.concatenate([chosen, rejected]))
        problem = Problem((chosen - rejected) / self.feature_std_, self._shares(used), self._pair_weights(used), np.ones(chosen.shape[1]))
        problem = self._choose_penalties(problem, group_index(used["prompt_id"].to_numpy(), len(used)))
        self.head_, self.loss_curve_ = fit_head(problem, float(self.l2_ or 0.0), start=self._starting_head(warm_start))
        self._learn_score_scale(np.concatenate([chosen, rejected]))
        return self

    def _choose_penalties(self, problem: Problem, groups: npt.NDArray[np.int64]) -> Problem:
        """L2 and the context's penalty by what predicts held-out prompts; `problem` with the penalties chosen.

        The first context penalty is tried with the whole grid, the others with the best L2 and its neighbours.
        """
        grid, best = sorted(self.params.l2_grid), float("inf")
        chosen = problem
        for context_penalty in self.params.context_penalty_grid:
            tried = replace(problem, penalty=_penalty(len(problem.penalty), context_penalty))
            losses = choose_l2(tried, groups, grid, self.params.folds)
            l2 = min(losses, key=lambda l2: (losses[l2], -l2))
            if losses[l2] < best:
                best, chosen = losses[l2], tried
                self.held_out_loss_, self.l2_, self.context_penalty_ = losses, l2, context_penalty
            here = grid.index(l2)
            grid = grid[max(0, here - 1) : here + 2]
        return chosen

    def score(self, prompts: Sequence[str], completions: Sequence[str], *, progress: Progress = silent) -> Floats:
        self._require_fitted()
        if not len(completions):
            return np.zeros(0)
        return finite(self._raw_scores(self.features(prompts, completions, progress=progress)) - self.score_mean_, "scores")

    def standardised(self, scores: Floats) -> Floats:
        return np.asarray(scores / self.score_std_)

    def features(self, prompts: Sequence[str], completions: Sequence[str], *, progress: Progress = silent) -> Floats:
        """What the head sees, (n, d), not yet standardised."""
        if len(prompts) != len(completions):
            raise InvalidScores(f"{len(prompts)} prompts for {len(completions)} completions. Hand in one prompt per completion.")
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            if not (isinstance(prompt, str) and isinstance(completion, str)):
                raise InvalidScores(f"Row {row} to score is no text (prompt {prompt!r:.40}, completion {completion!r:.40}). Leave it out.")
        contexts = [self.in_context(p, c) for p, c in zip(prompts, completions, strict=True)]
        sentences = [self.sentences(c) for c in completions]
        n_sentences = np.array([len(parts) for parts in sentences])
        texts = [*contexts, *(sentence for parts in sentences for sentence in parts)]
        vectors = self.encoder.encode(texts, progress=progress).astype(np.float64)
        starts = np.cumsum(n_sentences) - n_sentences
        summed = np.add.reduceat(vectors[len(contexts) :], starts, axis=0)
        length = np.log1p([len(c) for c in completions])
        return np.concatenate([summed, vectors[: len(contexts)], np.stack([length, n_sentences], axis=1)], axis=1)

    def sentences(self, completion: str) -> list[str]:
        """The completion cut at full stops, marks and line ends; itself where there is nothing to cut."""
        parts = [part.strip() for part in SENTENCE.findall(completion) if part.strip()]
        return parts[: self.params.max_sentences] or [completion]

    def in_context(self, prompt: str, completion: str) -> str:
        """The text that is embedded for a completion of a prompt."""
        tail = prompt[-self.params.prompt_chars :] if self.params.prompt_chars else ""
        return f"{tail} [SEP] {completion}"

    @property
    def weights_hash(self) -> str:
        self._require_fitted()
        return content_hash({name: part.tolist() for name, part in self._parts().items()})

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save

        self._require_fitted()
        folder = Path(folder)
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
        write_whole(folder / WEIGHTS_FILE, save(self._parts()))
        # Written last: a folder without it is no model.
        write_whole(folder / CONFIG_FILE, json.dumps(config, indent=1).encode())

    @classmethod
    def load(cls, folder: Path, *, encoder: Encoder | None = None) -> Self:
        config = read_config(folder)
        if config["kind"] != cls.name:
            raise ModelError(f"{folder} holds a {config['kind']!r} reward model, not {cls.name!r}. Use load_reward_model.")
        encoder = encoder or Encoder(max_tokens=config["encoder_max_tokens"])
        if encoder.hash != config["encoder_hash"]:
            raise ModelHashMismatch(
                f"The reward model in {folder} was fitted on encoder {config['encoder_hash'][:12]}, not on {encoder.hash[:12]} from "
                f"{encoder.folder}. Set `encoder` back, or fit the reward model again."
            )
        model = cls(EmbeddingParams(**config["params"]), encoder)
        model._take_parts(_read_parts(Path(folder)))
        model.l2_, model.loss_curve_ = config["l2"], config["loss_curve"]
        model.context_penalty_ = config.get("context_penalty")  # models of earlier versions were fitted with one penalty for all
        model.held_out_loss_ = {float(l2): loss for l2, loss in config["held_out_loss"].items()}
        if model.weights_hash != config["weights_hash"]:
            raise ModelHashMismatch(
                f"The weights in {folder} are not those its {CONFIG_FILE} was written for. Fetch the model version again."
            )
        return model

    def _both_sides(self, pairs: pd.DataFrame, progress: Progress) -> tuple[Floats, Floats]:
        prompts = pairs["prompt"].tolist()
        both = self.features([*prompts, *prompts], [*pairs["chosen"], *pairs["rejected"]], progress=progress)
        return both[: len(pairs)], both[len(pairs) :]

    def _shares(self, pairs: pd.DataFrame) -> Floats:
        shares = pairs["agreement"].to_numpy(dtype=np.float64)
        return np.asarray(shares if self.params.label == "votes" else np.where(shares > 0.5, 1.0, 0.5))

    def _pair_weights(self, pairs: pd.DataFrame) -> Floats:
        weights = pairs["weight"].to_numpy(dtype=np.float64)
        return np.asarray(weights * pairs["n_votes"].to_numpy(dtype=np.float64)) if self.params.label == "votes" else weights

    def _learn_scale(self, features: Floats) -> None:
        self.feature_mean_ = features.mean(axis=0)
        # A feature that never varies carries nothing; dividing by 1 keeps it at 0.
        spread = features.std(axis=0)
        self.feature_std_ = np.where(spread > 1e-9, spread, 1.0)

    def _learn_score_scale(self, features: Floats) -> None:
        scores = self._raw_scores(features)
        self.score_mean_, self.score_std_ = float(scores.mean()), float(max(scores.std(), 1e-12))

    def _raw_scores(self, features: Floats) -> Floats:
        return np.asarray(((features - self.feature_mean_) / self.feature_std_) @ self.head_)

    def _starting_head(self, warm_start: RewardModel | None) -> Floats | None:
        """The other model's head, in this model's scale of features."""
        if warm_start is None:
            return None
        if not isinstance(warm_start, EmbeddingRewardModel) or warm_start.encoder.hash != self.encoder.hash:
            raise ModelError(
                "A warm start needs an embedding reward model on the same encoder. Fit without warm_start, or set `encoder` back."
            )
        warm_start._require_fitted()
        return np.asarray(warm_start.head_ / warm_start.feature_std_ * self.feature_std_)

    def _parts(self) -> dict[str, Any]:
        return {name: np.atleast_1d(np.asarray(getattr(self, f"{name}_"), dtype=np.float64)) for name in PARTS}

    def _take_parts(self, parts: dict[str, Floats]) -> None:
        self.head_, self.feature_mean_, self.feature_std_ = parts["head"], parts["feature_mean"], parts["feature_std"]
        self.score_mean_, self.score_std_ = float(parts["score_mean"][0]), float(parts["score_std"][0])

    def _require_fitted(self) -> None:
        if not self.head_.size:
            raise ModelError("This reward model is not fitted. Call fit, or load a folder that was saved.")


def _penalty(n_features: int, context_penalty: float) -> Floats:
    dimension = (n_features - N_SURFACE) // 2
    return np.repeat([1.0, context_penalty, SURFACE_PENALTY], [dimension, dimension, N_SURFACE])


def _read_parts(folder: Path) -> dict[str, Floats]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / WEIGHTS_FILE
    try:
        parts = load_file(path)
    except (SafetensorError, OSError) as cause:
        raise ModelError(f"{path} cannot be read ({cause}). Fetch the model version from the registry again.") from cause
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise ModelError(
            f"{path} lacks {', '.join(missing)}. Without its normalisation a head gives wrong scores, so it is refused. Fit it again."
        )
    return {name: finite(parts[name], name) for name in PARTS}

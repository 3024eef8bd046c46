"""Defines the protocol of reward models and the checks and arithmetic that all kinds share."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.core.errors import (
    InvalidScores,
    ModelError,
    NotEnoughData,
)
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.learn.reward_model.encoder import Encoder, EncoderChoice

Floats = npt.NDArray[np.float64]


class ModelSummary(Record):
    """A reward model's parameters and fit statistics; a field a kind does not have stays empty."""

    label: str = Field(default="votes", description="what was learnt from each pair")
    n_members: int = Field(default=1, description="of the ensemble")
    loss_curve: tuple[float, ...] = Field(
        default=(), description="training objective after each step"
    )
    held_out_loss: dict[str, float] = Field(
        default={}, description="L2 -> cross-validated loss within the train split"
    )
    l2: float | None = None
    context_penalty: float | None = Field(
        default=None, description="of the completion in context, relative to its sentences'"
    )


class RewardModel(Protocol):
    """Scores completions in logits: P(one annotator prefers a) = preference_probability(score(a) -
    score(b)).

    Scores are centred on the training completions or a sample of them, so 0 is the average
    completion of the training data. A model is deterministic: the same pairs, weights and
    parameters give the same model, in any order of the pairs; scoring the same set of texts gives
    the same scores to the last bit, in any order of the texts.

    A kind that inherits from this class writes `__init__`, `fit`, `member_scores`, `features`,
    `weights_hash`, `save` and `load`; the other members have defaults.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]  # constructor parameters; the launchpad shows its fields
    encoder: Encoder | None = None
    score_std_: float = 1.0

    def __init__(
        self,
        params: Any = None,
        encoder: Encoder | None = None,
    ) -> None:
        """Create an unfitted model with `params`, of class `Params`, or with the defaults.

        `encoder` is the one from the settings; a kind without an encoder ignores it.
        """

    @property
    def summary(self) -> ModelSummary:
        """Before `fit` only the parameters, afterwards all of it."""
        return ModelSummary()

    @property
    def architecture(self) -> Mapping[str, object]:
        """Properties by name that must match for `fit` to start from another model's weights."""
        return {} if self.encoder is None else {"encoder": self.encoder.hash}

    def fit(
        self,
        pairs: pd.DataFrame,
        *,
        weights: Floats | None = None,
        warm_start: "RewardModel | None" = None,
        progress: Progress = ignore_progress,
    ) -> Self:
        """Learn from all the given PREFERENCE_PAIRS rows; the caller picks the split.

        `weights` (n,) multiplies each pair's loss; `warm_start` gives the starting weights and
        changes nothing else. Raises NotEnoughData, InvalidScores (weights), ModelError
        (`find_warm_start_obstacle` rejects the warm start).
        """

    def quick(self, **changes: Any) -> "RewardModel | None":
        """Return an unfitted model that fits in seconds, with these parameters and `changes`, for
        comparing settings by cross-validation; None if the kind has no such model.
        """
        return None

    def score(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """Reward of each completion for its prompt, (n,) in logits. Raises ModelError before `fit`,
        InvalidScores on NaN.
        """
        return np.asarray(self.member_scores(prompts, completions, progress=progress).mean(axis=0))

    def member_scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """The scores of each ensemble member, (members, n), whose mean is `score`; one row for a
        single model. See `disagreement`.
        """

    def dimension_scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Mapping[str, Floats]:
        """The score of each completion in each dimension of the rubric that the model has a head
        of: dimension -> (n,) in logits, of which only differences count. Empty for a kind without
        such heads.
        """
        return {}

    def features(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """The model's features of each completion in context, (n, d); text drift is measured on
        them.
        """

    def standardise(self, scores: Floats) -> Floats:
        """Convert `scores` to standard deviations of the training completions, which are comparable
        between model versions.
        """
        return np.asarray(scores / self.score_std_)

    @property
    def weights_hash(self) -> str:
        """Content hash of everything the model learned."""

    def save(self, folder: Path) -> None:
        """Write safetensors and config.json, including the `kind`, into `folder`, which is created
        if needed. The write is complete or does not happen.
        """

    @classmethod
    def load(cls, folder: Path, *, encoder: Encoder | None = None) -> Self:
        """Read a model that `save` wrote. Raises ModelNotFound, ModelError (a part is missing),
        ModelHashMismatch (another encoder).
        """

    def __reduce__(self) -> Any:
        """Pickled as its files, for the processes that `launch` starts."""
        with tempfile.TemporaryDirectory() as parent_folder:
            folder = Path(parent_folder) / "model"
            self.save(folder)
            files = {
                str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file()
            }
        encoder = None if self.encoder is None else (self.encoder.choice, self.encoder.max_tokens)
        return _load_files, (type(self), files, encoder)


def _load_files(
    kind: type[RewardModel],
    files: Mapping[str, bytes],
    encoder: tuple[EncoderChoice | None, int] | None,
) -> RewardModel:
    """The model that was pickled. With its weights it may hold no encoder to choose."""
    choice, max_tokens = encoder or (None, 0)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            write_atomically(Path(folder) / name, content)
        return kind.load(
            Path(folder),
            encoder=None if choice is None else Encoder(choice, max_tokens=max_tokens),
        )


def encoder_params(model: RewardModel) -> dict[str, str]:
    """The requested encoder and the one used, by the report's names; empty for a kind without an
    encoder.
    """
    choice = None if model.encoder is None else model.encoder.choice
    return {} if choice is None else choice.to_params()


def find_warm_start_obstacle(start: RewardModel, model: RewardModel) -> str | None:
    """Explain why `model` cannot be fitted from the weights of `start`; None if it can."""
    if start.name != model.name:
        return f"it is of kind {start.name}"
    for name, now in model.architecture.items():
        if (before := start.architecture.get(name)) != now:
            encoder = encoder_params(model) if name == "encoder" else {}
            instead = (
                f" ({encoder['encoder_used']} instead of {encoder['encoder_asked']})"
                if "encoder_instead_because" in encoder
                else ""
            )
            return f"its {name} is {str(before)[:12]}, now it is {str(now)[:12]}{instead}"
    return None


def require_warm_start(start: RewardModel, model: RewardModel) -> Any:
    """Return `start` typed as the kind of `model`. Raises ModelError if `model` cannot start from
    it.
    """
    obstacle = find_warm_start_obstacle(start, model)
    if obstacle is not None:
        raise ModelError(
            f"A fit of kind {model.name} cannot start from this model: {obstacle}. Fit without "
            "warm_start, or set `encoder` back."
        )
    return start


def sort_weighted_pairs(pairs: pd.DataFrame, weights: Floats | None) -> pd.DataFrame:
    """Sort PREFERENCE_PAIRS by comparison and add each pair's `weight` (1 if None). Raises
    InvalidScores unless there is one weight per pair, none negative or NaN.
    """
    weights = np.ones(len(pairs)) if weights is None else require_finite(weights, "weights")
    if len(weights) != len(pairs) or (weights < 0).any():
        raise InvalidScores(
            f"{len(weights)} weights for {len(pairs)} pairs, smallest {weights.min(initial=0)}. "
            "Give one weight of 0 or more each."
        )
    return (
        check_frame(pairs, PREFERENCE_PAIRS)
        .assign(weight=weights)
        .sort_values("comparison_id", ignore_index=True)
    )


def drop_unweighted_pairs(pairs: pd.DataFrame, name: str, min_pairs: int) -> pd.DataFrame:
    """Keep the pairs with a positive weight. Raises NotEnoughData below `min_pairs`, naming the
    kind `name`.
    """
    kept_pairs = pairs[pairs["weight"] > 0].reset_index(drop=True)
    if len(kept_pairs) < min_pairs:
        raise NotEnoughData(
            f"{len(kept_pairs)} preference pairs to fit on; the {name} reward model needs "
            f"{min_pairs}. Collect more votes or lower min_pairs."
        )
    return kept_pairs


def margins_of(
    model: RewardModel, pairs: pd.DataFrame, *, progress: Progress = ignore_progress
) -> Floats:
    """score(chosen) - score(rejected) of each pair, (n,)."""
    chosen, rejected = np.split(model.score(*both_sides(pairs), progress=progress), 2)
    return np.asarray(chosen - rejected)


def both_sides(pairs: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Prompts and completions to score: of all chosen, then of all rejected completions."""
    prompts = pairs["prompt"].tolist()
    return [*prompts, *prompts], [*pairs["chosen"], *pairs["rejected"]]


def disagreement(
    model: RewardModel,
    prompts: Sequence[str],
    a: Sequence[str],
    b: Sequence[str],
    *,
    progress: Progress = ignore_progress,
) -> Floats:
    """Standard deviation between the members' P(a preferred over b), (n,), 0 to 0.5; the same for b
    and a.

    Raises ModelError for a model with a single member: its disagreement would always be 0 and mean
    nothing.
    """
    both = model.member_scores([*prompts, *prompts], [*a, *b], progress=progress)
    if len(both) < 2:
        raise ModelError(
            "One member alone has no disagreement. Fit the reward model with n_members of 2 or "
            "more."
        )
    margins = both[:, : len(prompts)] - both[:, len(prompts) :]
    return np.asarray(preference_probability(margins).std(axis=0), dtype=np.float64)


def preference_probability(margins: Floats) -> Floats:
    """The logistic of `margins` with p(m) + p(-m) = 1 exactly, to the last bit.

    >>> float(sum(preference_probability(np.array([0.3, -0.3]))))
    1.0
    """
    return mirror(margins, lambda size: 1 / (1 + np.exp(-size)))


def mirror(margins: Floats, upper: Any) -> Floats:
    """Apply p(m) = upper(|m|) for m >= 0 and 1 - upper(|m|) below, which is exactly antisymmetric;
    `upper` returns values from 0.5 to 1.

    Raises InvalidScores if a margin is NaN or infinite.
    """
    m = require_finite(margins, "margins")
    # Round the smaller probability once and derive the larger from it, so the two sum to exactly
    # 1.0.
    smaller = 1 - np.asarray(upper(np.abs(m)), dtype=np.float64)
    return np.where(m > 0, 1 - smaller, np.where(m < 0, smaller, 0.5))


def require_finite(values: Any, what: str) -> Floats:
    """Return `values` as float64. Raises InvalidScores naming the first row that is NaN or
    infinite.
    """
    array = np.asarray(values, dtype=np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        row = int(bad.reshape(len(array), -1).any(axis=1).argmax())
        raise InvalidScores(
            f"{int(bad.sum())} of {array.size} {what} are NaN or infinite, first in row {row}. "
            "Find what made it."
        )
    return array


def check_texts(prompts: Sequence[str], completions: Sequence[str]) -> None:
    """Raise InvalidScores unless there is one prompt per completion and every row is a string."""
    if len(prompts) != len(completions):
        raise InvalidScores(
            f"{len(prompts)} prompts for {len(completions)} completions. Hand in one prompt per "
            "completion."
        )
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        if not (isinstance(prompt, str) and isinstance(completion, str)):
            raise InvalidScores(
                f"Row {row} to score is not a string (prompt {prompt!r:.40}, completion "
                f"{completion!r:.40}). Leave it out."
            )


def distinct_texts(
    prompts: Sequence[str], completions: Sequence[str]
) -> tuple[list[str], list[str], npt.NDArray[np.int64]]:
    """Return the prompts and completions of the distinct rows, sorted, and each row's index among
    them, (n,).

    The last digits of a network's output depend on the batch a text is in. In this order the same
    texts land in the same batches on either side of a pair, so the margin of b over a is exactly
    the negated margin of a over b. Raises as `check_texts`.
    """
    check_texts(prompts, completions)
    rows = sorted(set(zip(prompts, completions, strict=True)))
    number = {row: i for i, row in enumerate(rows)}
    place = np.array(
        [number[row] for row in zip(prompts, completions, strict=True)], dtype=np.int64
    )
    return [prompt for prompt, _ in rows], [completion for _, completion in rows], place

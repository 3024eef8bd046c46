"""What every reward model can do. Knows pairs, texts and scores; knows no architecture."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.errors import InvalidScores, ModelError, ModelNotFound
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.folders import find_interrupted_folders

Floats = npt.NDArray[np.float64]

CONFIG_FILE = "config.json"


class RewardModel(Protocol):
    """Scores in logits: P(a preferred by one annotator) = preference_probability(score(a) -
    score(b)).

    Scores are centred on the training completions, so that 0 is the average completion seen in
    training. A model is deterministic: the same pairs, weights and parameters give the same model,
    in whatever order the pairs come; the same texts asked together give the same scores to the last
    bit, in whatever order they come.
    """

    name: ClassVar[str]
    score_mean_: float
    score_std_: float
    loss_curve_: list[float]

    def fit(
        self,
        pairs: pd.DataFrame,
        *,
        weights: Floats | None = None,
        warm_start: "RewardModel | None" = None,
        progress: Progress = ignore_progress,
    ) -> Self:
        """Learn from PREFERENCE_PAIRS rows, all of them: the caller picks the split.

        `weights` (n,) multiplies each pair's loss; `warm_start` gives the starting weights and
        changes nothing else. Raises NotEnoughData, InvalidScores (weights), ModelError (a warm
        start of another kind).
        """
        ...

    def score(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """Reward of each completion of its prompt, (n,) in logits. Raises ModelError before `fit`,
        InvalidScores on NaN.
        """
        ...

    def member_scores(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """The scores of each member of an ensemble (members, n), whose mean is `score`; one row
        where there is one. See `disagreement`.
        """
        ...

    def features(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        progress: Progress = ignore_progress,
    ) -> Floats:
        """What the model sees of each completion in context, (n, d): drift of the texts is measured
        on it.
        """
        ...

    def standardise(self, scores: Floats) -> Floats:
        """`scores` in standard deviations of the training completions: comparable between model
        versions.
        """
        ...

    @property
    def weights_hash(self) -> str:
        """Content hash of all that was learnt."""
        ...

    def save(self, folder: Path) -> None:
        """Write safetensors and config.json into `folder`, which is made if needed; complete or not
        at all.
        """
        ...

    @classmethod
    def load(cls, folder: Path, *, encoder: Encoder | None = None) -> Self:
        """Read what `save` wrote. Raises ModelNotFound, ModelError (a part is missing),
        ModelHashMismatch (encoder).
        """
        ...


def disagreement(
    model: RewardModel,
    prompts: Sequence[str],
    a: Sequence[str],
    b: Sequence[str],
    *,
    progress: Progress = ignore_progress,
) -> Floats:
    """How far the members of `model` are apart on P(a preferred over b): their standard deviation,
    (n,), 0 to 0.5; the same for b and a.

    Raises ModelError where there is one member: it does not disagree with itself, and that says
    nothing.
    """
    both = model.member_scores([*prompts, *prompts], [*a, *b], progress=progress)
    if len(both) < 2:
        raise ModelError(
            "One member alone has no disagreement. Fit the reward model with n_members of 2 or "
            "more, or a transformer with frozen_head."
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
    """p(m) = upper(|m|) for m >= 0 and 1 - upper(|m|) below, exactly antisymmetric; `upper` gives
    values of 0.5 to 1.

    Raises InvalidScores where a margin is NaN or infinite.
    """
    m = require_finite(margins, "margins")
    # The smaller of the two probabilities is rounded once and the larger derived from it: then both
    # sum to 1.0.
    smaller = 1 - np.asarray(upper(np.abs(m)), dtype=np.float64)
    return np.where(m > 0, 1 - smaller, np.where(m < 0, smaller, 0.5))


def require_finite(values: Any, what: str) -> Floats:
    """`values` as float64. Raises InvalidScores naming the first row that is NaN or infinite."""
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
    """Raise InvalidScores where there is not one prompt per completion, or a row is no text."""
    if len(prompts) != len(completions):
        raise InvalidScores(
            f"{len(prompts)} prompts for {len(completions)} completions. Hand in one prompt per "
            "completion."
        )
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        if not (isinstance(prompt, str) and isinstance(completion, str)):
            raise InvalidScores(
                f"Row {row} to score is no text (prompt {prompt!r:.40}, completion "
                f"{completion!r:.40}). Leave it out."
            )


def distinct_texts(
    prompts: Sequence[str], completions: Sequence[str]
) -> tuple[list[str], list[str], npt.NDArray[np.int64]]:
    """Prompts and completions of the distinct rows, sorted, and which of them each row is, (n,).

    A network's last digits depend on the batch a text is in. Scored in this order, the same texts
    are in the same batches whichever side they stand on, so that the margin of b over a is that of
    a over b with its sign turned, to the last bit. Raises as `check_texts`.
    """
    check_texts(prompts, completions)
    rows = sorted(set(zip(prompts, completions, strict=True)))
    number = {row: i for i, row in enumerate(rows)}
    place = np.array(
        [number[row] for row in zip(prompts, completions, strict=True)], dtype=np.int64
    )
    return [prompt for prompt, _ in rows], [completion for _, completion in rows], place


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder. Raises ModelNotFound if it is not there, ModelError if it is
    no reward model's.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.exists():
        left = find_interrupted_folders(Path(folder))
        cure = (
            f"Rename {left[-1]} to it, which a kill left there."
            if left
            else "Fit one or fetch its version again."
        )
        raise ModelNotFound(f"No reward model at {folder}: {CONFIG_FILE} is missing. {cure}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as cause:
        raise ModelError(
            f"{path} is not JSON ({cause}). Fetch the model version from the registry again."
        ) from cause
    if not isinstance(config, dict) or "kind" not in config:
        raise ModelError(
            f"{path} names no kind of reward model. It was not written by `save`; fetch the "
            "version again."
        )
    return config

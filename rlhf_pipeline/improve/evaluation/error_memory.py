"""Keeps confident errors of earlier predictions and re-tests every new reward model on them.

Nothing is stored twice: the memory follows from the predictions, made before the votes, and from
the votes. Pairs that the model was trained on are counted apart, since it has seen their answers;
pairs of the test split are left out, since every look at them is recorded.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.frames import PREDICTIONS, PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges
from rlhf_pipeline.learn.reward_model import RewardModel

PARTS = {"train": "trained", "calib": "held_out"}  # split -> part of the memory
PREFIX = "memory_"
CONFIDENCE = 0.9  # least calibrated probability of the predicted side
MIN_VOTES, MIN_AGREEMENT = 2, 0.75  # for the majority's side


class MemoryCounts(Record):
    """Confident errors and hits of earlier predictions, and how a new model does on them."""

    n_fixed: int = Field(default=0, description="wrong before, right now")
    n_still_wrong: int = Field(default=0, description="wrong before and now")
    n_still_right: int = Field(default=0, description="right before and now")
    n_regressed: int = Field(default=0, description="right before, wrong now")

    def describe(self) -> str:
        n_errors = self.n_fixed + self.n_still_wrong
        n_hits = self.n_still_right + self.n_regressed
        fixed = f"{self.n_fixed} of {n_errors} errors fixed"
        return f"{fixed}, {self.n_regressed} of {n_hits} hits lost"


class ErrorMemory(Record):
    """A re-test of one model. The ids are of comparisons, sorted."""

    trained: MemoryCounts = MemoryCounts()
    held_out: MemoryCounts = MemoryCounts()
    still_wrong: tuple[str, ...] = ()
    regressed: tuple[str, ...] = ()

    def metrics(self) -> dict[str, float]:
        """The counts for the registry; none where nothing is remembered."""
        counts = {
            f"{PREFIX}{name.removeprefix('n_')}_{part}": float(n)
            for part in PARTS.values()
            for name, n in getattr(self, part).model_dump().items()
        }
        return counts if any(counts.values()) else {}

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> "ErrorMemory | None":
        """The counts of a registered version; None for one without."""
        if not any(name.startswith(PREFIX) for name in metrics):
            return None
        parts = {
            part: MemoryCounts(
                **{
                    name: round(metrics.get(f"{PREFIX}{name.removeprefix('n_')}_{part}", 0))
                    for name in MemoryCounts.model_fields
                }
            )
            for part in PARTS.values()
        }
        return cls(**parts)

    def describe(self) -> str:
        return (
            f"confident predictions re-tested: {self.held_out.describe()}; of those trained on "
            f"{self.trained.describe()}"
        )


def recall_predictions(
    pairs: pd.DataFrame,
    predictions: pd.DataFrame,
    *,
    taste_changes: TasteChanges = NO_CHANGES,
) -> pd.DataFrame:
    """PREFERENCE_PAIRS whose first prediction was confident and whose votes agree, outside the test
    split and since the last of `taste_changes`, with the columns reward_model, p_chosen (calibrated
    P(the majority's side)) and was_error; by comparison_id.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS)
    n_majority = checked["agreement"] * checked["n_votes"]
    selection = checked[
        checked["split"].isin(list(PARTS))
        & (n_majority >= MIN_VOTES - 1e-9)
        & (checked["agreement"] >= MIN_AGREEMENT)
        & taste_changes.is_current(checked)
    ]
    # The first prediction served when the comparison was published; a later one changes nothing.
    first = (
        check_frame(predictions, PREDICTIONS)
        .sort_values(["predicted_at", "reward_model"])
        .drop_duplicates("comparison_id")
    )
    rows = selection.merge(
        first[["comparison_id", "reward_model", "p_calibrated"]], on="comparison_id", how="inner"
    )
    p_chosen = rows["p_calibrated"].where(rows["chosen_side"] == "a", 1 - rows["p_calibrated"])
    rows = rows.assign(p_chosen=p_chosen, was_error=p_chosen < 0.5).drop(columns="p_calibrated")
    is_confident = np.maximum(p_chosen, 1 - p_chosen) >= CONFIDENCE
    return rows[is_confident].sort_values("comparison_id", ignore_index=True)


def retest(
    memory: pd.DataFrame, model: RewardModel, *, progress: Progress = ignore_progress
) -> ErrorMemory:
    """Re-test the model on the rows of `recall_predictions`. Right means a higher score for the
    majority's side; an equal one is wrong.
    """
    if memory.empty:
        return ErrorMemory()
    prompts = memory["prompt"].tolist()
    scores = model.score(
        [*prompts, *prompts],
        [*memory["chosen"], *memory["rejected"]],
        progress=progress,
    )
    n = len(memory)
    is_right = np.asarray(scores[:n]) > np.asarray(scores[n:])
    was_error = memory["was_error"].to_numpy(dtype=bool)

    def count(split: str) -> MemoryCounts:
        inside = (memory["split"] == split).to_numpy()
        return MemoryCounts(
            n_fixed=int((inside & was_error & is_right).sum()),
            n_still_wrong=int((inside & was_error & ~is_right).sum()),
            n_still_right=int((inside & ~was_error & is_right).sum()),
            n_regressed=int((inside & ~was_error & ~is_right).sum()),
        )

    ids = memory["comparison_id"]
    return ErrorMemory(
        **{part: count(split) for split, part in PARTS.items()},
        still_wrong=tuple(ids[was_error & ~is_right]),
        regressed=tuple(ids[~was_error & ~is_right]),
    )

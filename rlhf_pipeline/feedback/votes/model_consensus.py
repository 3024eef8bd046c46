"""Computes consensus from the annotator model's soft labels, and stores these labels.

Votes are weighted by the annotator's reliability, and a completion's other comparisons contribute:
`p_a` is the probability that a typical annotator without position bias prefers a in a forced
choice. The more probable side is the choice, and its probability is the share, with the model's
interval.

    open       fewer than `min_votes` people judged it by now, as with every method
    disputed   the interval holds one half, or the share is below `min_share`
    agreed     the rest

The model has no category for neither. A majority consensus on tie or both_bad is kept, with its
share of votes.
"""

from typing import Protocol

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import ArtefactError, FrameError
from rlhf_pipeline.core.frames import SOFT_LABELS, check_frame
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.votes.consensus import (
    CONSENSUS,
    MIN_SHARE,
    MODEL_COLUMNS,
    consensus,
)

# Stage and file of the labels of all judged comparisons, including the test split: for display
# only, never for training.
LABELS_FRAME = ("annotator_model", "all_votes")


class FrameStorage(Protocol):
    """The part of `Artefacts` that stores labels."""

    def read_frame(self, stage: str, day: str | None = None) -> pd.DataFrame: ...

    def write_frame(self, stage: str, frame: pd.DataFrame, day: str | None = None) -> object: ...


def consensus_by_model(
    judgements: pd.DataFrame, labels: pd.DataFrame, min_votes: int = 2
) -> pd.DataFrame:
    """CONSENSUS of a JUDGEMENTS frame, by comparison id, by SOFT_LABELS fitted to all votes up to a
    seq.

    Comparisons without a label are left out: they are flagged or were first judged after the fit.
    `n_since` counts votes after the fit.

    Raises FrameError if a frame breaks its schema or labels lack `max_seq`.
    """
    majority = consensus(judgements, "majority", min_votes).drop(columns=list(MODEL_COLUMNS))
    labels = check_frame(labels, SOFT_LABELS)
    up_to_seq = newest_known_seq(labels)
    both = majority.merge(
        labels[["comparison_id", "p_a", "p_low", "p_high"]], on="comparison_id"
    ).assign(up_to_seq=up_to_seq)
    p, low, high = (both[name].to_numpy(dtype=np.float64) for name in ("p_a", "p_low", "p_high"))
    is_a = p > 0.5
    is_equal = (both["state"] == "agreed") & both["choice"].isin([Choice.TIE, Choice.BOTH_BAD])
    share = np.maximum(p, 1 - p)
    is_decided = ((low > 0.5) | (high < 0.5)) & (share >= MIN_SHARE - 1e-12)
    state = np.where(
        both["n_votes"] < min_votes, "open", np.where(is_decided, "agreed", "disputed")
    )
    sides = pd.DataFrame(
        {
            "state": state,
            "choice": pd.Series(np.where(is_a, Choice.A.value, Choice.B.value), dtype="str").where(
                p != 0.5
            ),
            "share": share,
            "low": np.where(is_a, low, 1 - high),
            "high": np.where(is_a, high, 1 - low),
        }
    )
    both[list(sides.columns)] = both[list(sides.columns)].where(is_equal, sides)
    since = judgements.loc[judgements["seq"] > up_to_seq, "comparison_id"].value_counts()
    return check_frame(both.assign(n_since=both["comparison_id"].map(since).fillna(0)), CONSENSUS)


def newest_known_seq(labels: pd.DataFrame) -> int:
    """The highest vote seq used by these SOFT_LABELS; 0 if there are none."""
    return 0 if labels.empty else int(labels["max_seq"].max())


def store_labels(files: FrameStorage, labels: pd.DataFrame, *, newest_seq: int) -> int | None:
    """Store SOFT_LABELS of all votes for display. If the stored ones use later votes, keep them and
    return their seq.

    A replay or a repeated run may fit fewer votes than the stored labels did. Stored labels are
    replaced if they cannot be read, or if they use votes above `newest_seq`, the store's highest:
    they belong to another store. Raises as `Artefacts.write_frame`.
    """
    stage, part = LABELS_FRAME
    try:
        lying = newest_known_seq(files.read_frame(stage, part))
    except (ArtefactError, FrameError):
        lying = 0
    if newest_known_seq(labels) < lying <= newest_seq:
        return lying
    files.write_frame(stage, labels, part)
    return None

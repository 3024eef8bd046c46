"""Builds the targets that a reward model learns from: votes, their majority, or the annotator
model.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.errors import FrameError, NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, SOFT_LABELS, check_frame
from rlhf_pipeline.reward_model.losses import LossParams, Targets

Floats = npt.NDArray[np.float64]
Label = Literal["votes", "majority", "annotators"]


class LabelParams(LossParams):
    """The label to learn, and the loss."""

    label: Label = Field(
        default="votes",
        description="votes: the share of votes for each side (probabilities of one vote); "
        "majority: its side as if it were certain; annotators: the annotator model's "
        "soft label, which knows who voted",
    )


def join_soft_labels(
    pairs: pd.DataFrame, labels: pd.DataFrame, *, up_to_seq: int | None = None
) -> pd.DataFrame:
    """Join the annotator model's labels to `pairs` by comparison: P(chosen preferred) as
    `soft_label` and the last vote behind it as `label_seq`; missing for pairs without a label.

    `labels` are SOFT_LABELS, with `p_a` for side a as displayed; a pair's chosen side may be the
    less likely one there. Raises FrameError for frames that break their schema, and for labels that
    depend on votes after `up_to_seq` or do not name their last vote.
    """
    pairs, labels = check_frame(pairs, PREFERENCE_PAIRS), check_frame(labels, SOFT_LABELS)
    if up_to_seq is not None:
        _refuse_later_labels(labels, up_to_seq)
    p_a, seq = (
        pairs["comparison_id"].map(labels.set_index("comparison_id")[name]).astype("float64")
        for name in ("p_a", "max_seq")
    )
    p_chosen = p_a.where(pairs["chosen_side"] == "a", 1 - p_a)
    return check_frame(pairs.assign(soft_label=p_chosen, label_seq=seq), PREFERENCE_PAIRS)


def _refuse_later_labels(labels: pd.DataFrame, up_to_seq: int) -> None:
    """Raise FrameError for labels that depend on later votes. Every label depends on all votes
    through the annotators' reliabilities, so one label with a later vote means that all have it.
    """
    latest = _column(labels, "max_seq")
    if len(labels) and not (latest <= up_to_seq).all():
        rests_on = (
            "do not say on which votes they rest"
            if np.isnan(latest).any()
            else f"rest on votes up to seq {latest.max():.0f}"
        )
        raise FrameError(
            f"The soft labels {rests_on}, but only votes up to seq {up_to_seq} are to be learnt "
            f"from. Fit the annotator model again with up_to_seq {up_to_seq}."
        )


def last_seq(pairs: pd.DataFrame, label: str) -> int:
    """The highest vote seq behind `pairs`, including their soft labels if `label` is annotators."""
    seen = pairs["max_seq"].to_numpy(dtype=np.float64)
    if label == "annotators":
        seen = np.fmax(seen, _column(pairs, "label_seq"))  # NaN if it was not stored
    return int(seen.max())


def targets_of(pairs: pd.DataFrame, params: LabelParams) -> Targets:
    """The targets of `pairs` in their order, chosen first.

    Raises NotEnoughData if label is annotators and no pair has a soft label. Raises FrameError
    naming the first pair without one if others have it: half the pairs with one label and half with
    another would be no consistent label.
    """
    agreement = pairs["agreement"].to_numpy(dtype=np.float64)
    n_ties = _numbers(pairs, "n_ties")
    judged = np.maximum(pairs["n_votes"].to_numpy(dtype=np.float64) + n_ties, 1.0)
    strength = pairs["margin"].to_numpy(dtype=np.float64)
    if params.label == "majority":
        p = np.where(agreement > 0.5, 1.0, 0.5)
        return Targets(p, ties=(n_ties > judged / 2).astype(np.float64), strength=strength)
    return Targets(
        _soft_labels(pairs) if params.label == "annotators" else agreement,
        ties=n_ties / judged,
        strength=strength,
    )


def vote_weights(pairs: pd.DataFrame, params: LabelParams) -> Floats:
    """The weight of each pair, (n,). For a share or a soft label it is the number of judgements,
    which include ties only if the label uses them (davidson, the annotator model's labels); it is 1
    if the preferred side is taken as certain.
    """
    if params.label == "majority" or params.loss in ("bradley_terry", "margin"):
        return np.ones(len(pairs))
    n_votes = pairs["n_votes"].to_numpy(dtype=np.float64)
    with_ties = params.label == "annotators" or params.loss == "davidson"
    return np.asarray(
        n_votes + _numbers(pairs, "n_ties") if with_ties else n_votes, dtype=np.float64
    )


def _soft_labels(pairs: pd.DataFrame) -> Floats:
    labels = _column(pairs, "soft_label")
    missing = np.isnan(labels)
    if missing.all() and len(pairs):
        raise NotEnoughData(
            "No pair has a soft label. Hand in `soft_labels` of the annotator model, or learn "
            "label votes or majority."
        )
    if missing.any():
        row = int(missing.argmax())
        raise FrameError(
            f"{int(missing.sum())} of {len(pairs)} pairs have no soft label, first "
            f"{pairs['comparison_id'].iloc[row]}. Fit the annotator model on the votes of all "
            "these days, or learn label votes or majority."
        )
    return labels


def _numbers(pairs: pd.DataFrame, name: str) -> Floats:
    return np.nan_to_num(_column(pairs, name))


def _column(pairs: pd.DataFrame, name: str) -> Floats:
    """An optional column as floats, NaN where it is missing."""
    if name not in pairs:
        return np.full(len(pairs), np.nan)
    return np.asarray(pairs[name].to_numpy(dtype=np.float64, na_value=np.nan))

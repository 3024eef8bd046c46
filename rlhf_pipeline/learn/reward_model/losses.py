"""Builds the targets that a reward model learns, and computes the loss of a margin against them.

A margin m is score(first) - score(second) in logits; P(first preferred) = logistic(m). The loss is
the cross-entropy with the target p, the share for the first side:

    -p log logistic(m) - (1 - p) log logistic(-m)

With label `majority` p is 1, and this is the loss of Bradley and Terry (1952). `pair_losses` takes
NumPy arrays or torch tensors alike, and gives back the same (autograd goes through it); `slopes`
are its derivatives in closed form.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.core.errors import FrameError, NotEnoughData
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, SOFT_LABELS, check_frame

Floats = npt.NDArray[np.float64]

Label = Literal["votes", "majority", "annotators"]


class LabelParams(BaseModel):
    """The label to learn."""

    model_config = ConfigDict(allow_inf_nan=False)

    label: Label = Field(
        default="votes",
        description="votes: the share of votes for each side (probabilities of one vote); "
        "majority: its side as if it were certain (Bradley and Terry); annotators: the annotator "
        "model's soft label, which knows who voted",
    )


def pair_losses(margins: Any, targets: Any) -> Any:
    """Loss of each row (n,) in nats, unweighted, with targets 0 to 1 (n,); >= 0, and 0 only for a
    certain and correct prediction.

    >>> float(pair_losses(np.zeros(1), np.ones(1))[0])
    0.6931471805599453
    """
    return targets * _softplus(-margins) + (1 - targets) * _softplus(margins)


def slopes(margins: Floats, targets: Floats) -> Floats:
    """Derivatives of `pair_losses` by each margin, NumPy only, (n,)."""
    return np.asarray(0.5 * (1 + np.tanh(np.asarray(margins) / 2)) - targets, dtype=np.float64)


def _softplus(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np.logaddexp(0.0, x)
    import torch

    return torch.logaddexp(torch.zeros_like(x), x)


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
        raise FrameError(
            f"The soft labels rest on votes up to seq {latest.max():.0f}, but only votes up to seq "
            f"{up_to_seq} are to be learnt from. Fit the annotator model again with up_to_seq "
            f"{up_to_seq}."
        )


def last_seq(pairs: pd.DataFrame, label: str) -> int:
    """The highest vote seq behind `pairs`, including their soft labels if `label` is annotators."""
    seqs = pairs["max_seq"].to_numpy(dtype=np.float64)
    if label == "annotators":
        seqs = np.fmax(seqs, _column(pairs, "label_seq"))  # NaN if it was not stored
    return int(seqs.max())


def targets_of(pairs: pd.DataFrame, label: Label) -> Floats:
    """The targets of `pairs` in their order, (n,): the share for the chosen side, 0 to 1.

    Raises NotEnoughData if label is annotators and no pair has a soft label. Raises FrameError
    naming the first pair without one if others have it: half the pairs with one label and half with
    another would be no consistent label.
    """
    if label == "annotators":
        return _soft_labels(pairs)
    agreement = pairs["agreement"].to_numpy(dtype=np.float64)
    return np.where(agreement > 0.5, 1.0, 0.5) if label == "majority" else agreement


def vote_weights(pairs: pd.DataFrame, label: Label) -> Floats:
    """The weight of each pair, (n,). For a share or a soft label it is the number of judgements,
    which include ties only for the annotator model's labels; it is 1 if the preferred side is taken
    as certain.
    """
    if label == "majority":
        return np.ones(len(pairs))
    n_votes = pairs["n_votes"].to_numpy(dtype=np.float64)
    with_ties = n_votes + _numbers(pairs, "n_ties")
    return with_ties if label == "annotators" else np.asarray(n_votes)


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

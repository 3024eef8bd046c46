"""Builds the targets that a reward model learns, and computes the loss of a margin against them.

A margin m is score(first) - score(second) in logits; P(first | no tie) = logistic(m) under every
loss here.

    bradley_terry   -log logistic(m) of the side that was preferred, as if it were certain (Bradley
                    and Terry 1952)
    soft            cross-entropy with the share p for the first:
                    -p log logistic(m) - (1 - p) log logistic(-m)
    margin          bradley_terry that is content only once m exceeds the strength people felt
                    (Touvron et al. 2023, section 3.2.2)
    davidson        first, second and tie with weights exp(m/2), exp(-m/2) and tie width (Davidson
                    1970); the width is learnt

`pair_losses` takes NumPy arrays or torch tensors alike, and gives back the same (autograd goes
through it); `slopes` are its derivatives in closed form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.errors import ConfigurationError, FrameError, NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, SOFT_LABELS, check_frame

Floats = npt.NDArray[np.float64]

Label = Literal["votes", "majority", "annotators"]
LossName = Literal["bradley_terry", "soft", "margin", "davidson"]
LOSSES: tuple[LossName, ...] = get_args(LossName)
# At equal scores one third of the judgements are ties; the search for the width starts here.
FIRST_LOG_TIE_WIDTH = 0.0


class LossParams(BaseModel):
    """The loss, and its scale."""

    model_config = ConfigDict(allow_inf_nan=False)

    loss: LossName = Field(
        default="soft",
        description="bradley_terry: the preferred side as if certain; soft: the label's share for "
        "each side; margin: as bradley_terry, but ahead by the strength people felt; "
        "davidson: ties as a third outcome",
    )
    margin_scale: float = Field(
        default=1.0,
        ge=0,
        le=20,
        description="Loss margin: logits that a vote of full strength is to be ahead by",
    )


class LabelParams(LossParams):
    """The label to learn, and the loss."""

    label: Label = Field(
        default="votes",
        description="votes: the share of votes for each side (probabilities of one vote); "
        "majority: its side as if it were certain; annotators: the annotator model's "
        "soft label, which knows who voted",
    )


@dataclass(frozen=True)
class Targets:
    """The votes on each pair in the form a loss takes, (n,) each, NumPy or torch like the margins.

    `p` is the share for the first side among the votes for a side, 0 to 1; `ties` is the share of
    ties among all judgements (0 if None); `strength` is the strength of the preference for the
    preferred side, 0 to 1 (0 if None).
    """

    p: Any
    ties: Any = None
    strength: Any = None

    def select(self, mask: Any) -> "Targets":
        """Select the rows in `mask` (a mask, an index or a slice)."""
        return self._map(lambda part: part[mask])

    def to_torch(self, *, dtype: Any = None, device: Any = None) -> "Targets":
        """The same targets as tensors, float32 by default."""
        import torch

        dtype = dtype or torch.float32
        return self._map(lambda part: torch.tensor(np.array(part), dtype=dtype, device=device))

    def _map(self, change: Callable[[Any], Any]) -> "Targets":
        parts = (self.p, self.ties, self.strength)
        return Targets(*(None if part is None else change(part) for part in parts))


def pair_losses(
    margins: Any, targets: Targets, params: LossParams, *, log_tie_width: Any = None
) -> Any:
    """Loss of each row (n,) in nats, unweighted; >= 0, and 0 only for a certain and correct
    prediction.

    Only davidson needs `log_tie_width` (a number or a tensor with one value) and learns it with the
    weights. Raises ConfigurationError if it is missing.

    >>> float(pair_losses(np.zeros(1), Targets(np.ones(1)), LossParams(loss="bradley_terry"))[0])
    0.6931471805599453
    """
    if params.loss == "davidson":
        return _davidson_loss(margins, targets, _require_tie_width(log_tie_width))
    p, shift = _target(margins, targets, params)
    return p * _softplus(shift - margins) + (1 - p) * _softplus(shift + margins)


def slopes(
    margins: Floats, targets: Targets, params: LossParams, *, log_tie_width: float | None = None
) -> tuple[Floats, Floats]:
    """Derivatives of `pair_losses` by each margin and by the logarithm of the tie width (0 except
    for davidson), NumPy only, (n,) each.
    """
    m = np.asarray(margins, dtype=np.float64)
    if params.loss == "davidson":
        width = _require_tie_width(log_tie_width)
        first, second, tie = _chances(m, width)
        ties = _tie_shares(m, targets)
        return 0.5 * (first - second) - (1 - ties) * (np.asarray(targets.p) - 0.5), tie - ties
    p, shift = _target(m, targets, params)
    return (1 - p) * _logistic(m + shift) - p * _logistic(shift - m), np.zeros_like(m)


def _target(m: Any, targets: Targets, params: LossParams) -> tuple[Any, Any]:
    """The share to learn, and the margin by which the preferred side should lead."""
    if params.loss == "soft":
        return targets.p, 0.0
    xp = _array_library(m)
    certain = 0.5 + 0.5 * xp.sign(targets.p - 0.5)  # 0.5 for an even split
    if params.loss == "bradley_terry" or targets.strength is None:
        return certain, 0.0
    return certain, params.margin_scale * targets.strength


def _davidson_loss(m: Any, targets: Targets, log_width: Any) -> Any:
    ties = _tie_shares(m, targets)
    sided = (1 - ties) * (targets.p - 0.5) * m  # p · m/2 - (1 - p) · m/2
    return _log_total(m, log_width) - sided - ties * log_width


def _log_total(m: Any, log_width: Any) -> Any:
    """log(exp(m/2) + exp(-m/2) + width), without overflow."""
    xp = _array_library(m)
    return xp.logaddexp(xp.logaddexp(m / 2, -m / 2), log_width + xp.zeros_like(m))


def _chances(m: Floats, log_width: float) -> tuple[Floats, Floats, Floats]:
    """Davidson's probabilities of first, second and tie."""
    total = _log_total(m, log_width)
    return np.exp(m / 2 - total), np.exp(-m / 2 - total), np.exp(log_width - total)


def _tie_shares(m: Any, targets: Targets) -> Any:
    return _array_library(m).zeros_like(m) if targets.ties is None else targets.ties


def _require_tie_width(log_tie_width: Any) -> Any:
    if log_tie_width is None:
        raise ConfigurationError(
            "The loss davidson needs the logarithm of the tie width. Hand in `log_tie_width`, "
            "learnt with the weights."
        )
    return log_tie_width


def _softplus(x: Any) -> Any:
    xp = _array_library(x)
    return xp.logaddexp(xp.zeros_like(x), x)


def _logistic(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), dtype=np.float64)


def _array_library(x: Any) -> Any:
    """NumPy for NumPy arrays, torch for tensors; both use the same names for these functions."""
    if isinstance(x, np.ndarray):
        return np
    import torch

    return torch


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

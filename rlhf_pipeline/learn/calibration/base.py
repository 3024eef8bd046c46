"""The protocol of a calibrator, and the checks of its fit data.

A calibrator is antisymmetric: p(m) + p(-m) = 1 exactly, because the sides a and b are assigned at
random. So it has no intercept: it is a function of |m|, mirrored at 0.
"""

from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.learn.reward_model.base import require_finite

Floats = npt.NDArray[np.float64]

MIN_ROWS = 10


class Calibrator(Protocol):
    """Turns margins score(a) - score(b) into P(a preferred).

    The constructor takes an instance of its `Params`, or nothing for the defaults.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def __init__(self, params: Any = None) -> None: ...

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        """Learn from margins (n,) in logits and outcomes (n,), 1 where a was preferred and 0 where
        b was.

        Swapping a and b in any row changes nothing. Raises NotEnoughData for too few rows or a
        single class of outcomes, InvalidScores for NaN or infinite margins and weights.
        """

    def transform(self, margins: Floats) -> Floats:
        """P(a preferred), (n,). Raises InvalidScores for NaN or infinite margins."""

    def to_json(self) -> dict[str, Any]:
        """The fitted parameters as plain JSON, with the name as `method`."""

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """The fitted calibrator whose `to_json` gave `state`."""


def check_rows(margins: Any, outcomes: Any, weights: Any) -> tuple[Floats, Floats, Floats]:
    """Margins, outcomes and weights as float64. Raises as `Calibrator.fit` says."""
    m, y = require_finite(margins, "margins"), require_finite(outcomes, "outcomes")
    w = np.ones_like(m) if weights is None else require_finite(weights, "weights")
    if not (len(m) == len(y) == len(w)):
        raise InvalidScores(
            f"{len(m)} margins, {len(y)} outcomes, {len(w)} weights. Pass one of each per row."
        )
    if ((y != 0) & (y != 1)).any() or (w < 0).any():
        raise InvalidScores("Outcomes are 1 (a preferred) or 0 (b preferred), weights 0 or more.")
    m = m[w > 0]
    y = y[w > 0]
    w = w[w > 0]
    if len(m) < MIN_ROWS:
        raise NotEnoughData(
            f"{len(m)} rows to calibrate on ({MIN_ROWS} needed). Collect votes on more prompts."
        )
    if len(np.unique(y)) < 2:
        side = "a" if y[0] == 1 else "b"
        raise NotEnoughData(
            f"All {len(y)} rows to calibrate on prefer side {side}; votes for both sides are "
            "needed. Check that sides are shuffled."
        )
    return m, y, w

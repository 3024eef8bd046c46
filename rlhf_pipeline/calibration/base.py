"""What every calibrator can do. Knows margins and outcomes; knows no model and no frame.

A calibrator is antisymmetric: p(m) + p(-m) = 1 exactly, because which completion is called a is a
coin's work. So none has an intercept, and each is a function of |m| that is mirrored.
"""

from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.reward_model.base import require_finite

Floats = npt.NDArray[np.float64]

MIN_ROWS = 10


class Calibrator(Protocol):
    """Turns margins score(a) - score(b) into P(a preferred)."""

    name: ClassVar[str]

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        """Learn from margins (n,) in logits and outcomes (n,), 1 where a was preferred and 0 where
        b was.

        Swapping a and b in any row changes nothing. Raises NotEnoughData for too few rows or a
        single class of outcomes, InvalidScores for NaN or infinite margins and weights.
        """
        ...

    def transform(self, margins: Floats) -> Floats:
        """P(a preferred), (n,). Raises InvalidScores for NaN or infinite margins."""
        ...

    def to_json(self) -> dict[str, Any]:
        """All that was learnt, with `method`; what `from_json` takes."""
        ...

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self: ...


def check_rows(margins: Any, outcomes: Any, weights: Any) -> tuple[Floats, Floats, Floats]:
    """Margins, outcomes and weights as float64, refused where nothing can be learnt from them; see
    `Calibrator.fit`.
    """
    m, y = require_finite(margins, "margins"), require_finite(outcomes, "outcomes")
    w = np.ones_like(m) if weights is None else require_finite(weights, "weights")
    if not (len(m) == len(y) == len(w)):
        raise InvalidScores(
            f"{len(m)} margins, {len(y)} outcomes, {len(w)} weights. Hand in one of each per row."
        )
    if ((y != 0) & (y != 1)).any() or (w < 0).any():
        raise InvalidScores("Outcomes are 1 (a preferred) or 0 (b preferred), weights 0 or more.")
    m, y, w = m[w > 0], y[w > 0], w[w > 0]
    if len(m) < MIN_ROWS:
        raise NotEnoughData(
            f"{len(m)} rows to calibrate on; {MIN_ROWS} are the least. Collect votes on more "
            "prompts."
        )
    if len(np.unique(y)) < 2:
        side = "a" if y[0] == 1 else "b"
        raise NotEnoughData(
            f"All {len(y)} rows to calibrate on prefer side {side}. Votes for both sides are "
            "needed; are sides shuffled?"
        )
    return m, y, w


def fold(margins: Floats, outcomes: Floats) -> tuple[Floats, Floats]:
    """|margin|, and whether the side the model prefers was preferred: the same rows with the higher
    score as side a.
    """
    return np.abs(margins), np.where(margins >= 0, outcomes, 1 - outcomes)

"""Isotonic regression of outcome on margin, made antisymmetric by fitting rows both ways round."""

from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.learn.calibration.base import Floats, check_rows
from rlhf_pipeline.learn.reward_model.base import mirror


class IsotonicCalibration:
    """The best non-decreasing map (Zadrozny and Elkan 2002), linear between its steps, constant
    beyond them.

    Fitted on (m, y) and (-m, 1 - y) together, so that no side is favoured. Kept between 1/(n+2) and
    (n+1)/(n+2), n the weight of the rows: a step on which all n votes agree is not certain. Flat
    steps can give several margins one probability; pairs are never reordered.
    """

    name: ClassVar[str] = "isotonic"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        self.sizes_, self.probabilities_ = np.array([0.0]), np.array([0.5])

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        from sklearn.isotonic import IsotonicRegression

        m, y, w = check_rows(margins, outcomes, weights)
        limit = (w.sum() + 1) / (w.sum() + 2)
        both = IsotonicRegression(y_min=1 - limit, y_max=limit, increasing=True)
        both.fit(np.concatenate([m, -m]), np.concatenate([y, 1 - y]), np.concatenate([w, w]))
        upper = both.X_thresholds_ >= 0
        self.sizes_ = np.asarray(both.X_thresholds_[upper], dtype=np.float64)
        self.probabilities_ = np.clip(both.y_thresholds_[upper], 0.5, limit).astype(np.float64)
        return self

    def transform(self, margins: Floats) -> Floats:
        # From 0.5 at margin 0, so that the mirrored halves meet.
        sizes, probabilities = np.append(0.0, self.sizes_), np.append(0.5, self.probabilities_)
        return mirror(margins, lambda size: np.interp(size, sizes, probabilities))

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "sizes": self.sizes_.tolist(),
            "probabilities": self.probabilities_.tolist(),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        fitted = cls()
        fitted.sizes_ = np.asarray(state["sizes"], dtype=np.float64)
        fitted.probabilities_ = np.asarray(state["probabilities"], dtype=np.float64)
        return fitted

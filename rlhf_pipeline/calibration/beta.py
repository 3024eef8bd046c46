"""Beta calibration made antisymmetric: evidence for and against a side weighs differently."""

from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.calibration.base import Floats, check_rows, fit_slopes, fold
from rlhf_pipeline.plugins import NoParams
from rlhf_pipeline.reward_model.base import preference_probability


class BetaCalibration:
    """logit P(a preferred) = sign(m) · (gain · ln(2p) - loss · ln(2(1 - p))), p = sigmoid(|m|).

    Kull, Silva Filho and Flach 2017 fit logit = a ln p - b ln(1 - p) + c. With c = ln 2 (a - b) a
    probability of 0.5 stays 0.5; mirrored at margin 0, the map favours no side. With gain = loss
    it is a temperature; the slope is (gain + loss) / 2 at margin 0 and `loss` far from it. Both
    are at least 0, so that pairs are never reordered. The targets are smoothed as in Platt scaling.
    """

    name: ClassVar[str] = "beta"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        self.gain_, self.loss_ = 1.0, 1.0

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        m, y, w = check_rows(margins, outcomes, weights)
        size, right = fold(m, y)
        basis = np.stack(_gain_and_loss(size), axis=1)
        self.gain_, self.loss_ = fit_slopes(basis, right, w)
        return self

    def transform(self, margins: Floats) -> Floats:
        m = np.asarray(margins, dtype=np.float64)
        gained, lost = _gain_and_loss(np.abs(m))
        return preference_probability(np.sign(m) * (self.gain_ * gained + self.loss_ * lost))

    def to_json(self) -> dict[str, Any]:
        return {"method": self.name, "gain": self.gain_, "loss": self.loss_}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        fitted = cls()
        fitted.gain_, fitted.loss_ = float(state["gain"]), float(state["loss"])
        return fitted


def _gain_and_loss(size: Floats) -> tuple[Floats, Floats]:
    """ln(2p) and -ln(2(1 - p)) of p = sigmoid(size); their sum is `size`."""
    gained = np.log(2.0) - np.log1p(np.exp(-size))
    return gained, size - gained

"""Temperature scaling: divides all margins by one number."""

from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.learn.calibration.base import Floats, check_rows
from rlhf_pipeline.learn.reward_model.base import preference_probability

BOUNDS = (0.01, 100.0)  # beyond these bounds every margin means certainty, or nothing


class TemperatureScaling:
    """P(a preferred) = logistic(margin / temperature).

    Guo et al. 2017: one temperature cannot reorder pairs, so accuracy stays and only confidence
    moves.
    """

    name: ClassVar[str] = "temperature"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        self.temperature_ = 1.0

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        from scipy.optimize import minimize_scalar

        m, y, w = check_rows(margins, outcomes, weights)

        def loss(log_temperature: float) -> float:
            logits = m * np.exp(-log_temperature)
            return float(w @ (np.logaddexp(0.0, logits) - y * logits) / w.sum())

        best = minimize_scalar(
            loss,
            bounds=(np.log(BOUNDS[0]), np.log(BOUNDS[1])),
            method="bounded",
            options={"xatol": 1e-6},
        )
        self.temperature_ = float(np.exp(best.x))
        return self

    def transform(self, margins: Floats) -> Floats:
        return preference_probability(np.asarray(margins, dtype=np.float64) / self.temperature_)

    def to_json(self) -> dict[str, Any]:
        return {"method": self.name, "temperature": self.temperature_}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        fitted = cls()
        fitted.temperature_ = float(state["temperature"])
        return fitted

"""The null calibrator: the reward model's own probabilities."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel

from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.learn.calibration.base import Floats, check_rows
from rlhf_pipeline.learn.reward_model.base import preference_probability


class NoCalibration:
    """The logistic of the margin."""

    name: ClassVar[str] = "none"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        pass

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        check_rows(margins, outcomes, weights)
        return self

    def transform(self, margins: Floats) -> Floats:
        return preference_probability(margins)

    def to_json(self) -> dict[str, Any]:
        return {"method": self.name}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        return cls()

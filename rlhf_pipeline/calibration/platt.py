"""Platt scaling made antisymmetric: an odd sigmoid step replaces the intercept."""

from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.calibration.base import Floats, check_rows, fit_slopes, fold
from rlhf_pipeline.plugins import NoParams
from rlhf_pipeline.reward_model.base import preference_probability


class PlattScaling:
    """logit P(a preferred) = far · m + (near - far) · scale · tanh(m / scale), `scale` the median
    |margin| in the fit.

    Platt 1999 fits slope and intercept. An intercept would favour a side for being called a; the
    tanh is its odd counterpart: away from 0 it adds a constant to the confidence, at 0 nothing.
    `near` is the slope at margin 0, `far` the slope of large margins; both are at least 0, so the
    map never reorders pairs. Platt's smoothed targets (n + 1) / (n + 2) keep it finite where all
    predictions are right.
    """

    name: ClassVar[str] = "platt"
    Params: ClassVar[type[BaseModel]] = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        self.near_ = 1.0
        self.far_ = 1.0
        self.scale_ = 1.0

    def fit(self, margins: Floats, outcomes: Floats, weights: Floats | None = None) -> Self:
        m, y, w = check_rows(margins, outcomes, weights)
        size, right = fold(m, y)
        self.scale_ = max(float(np.median(size)), 1e-6)
        step = self.scale_ * np.tanh(size / self.scale_)
        basis = np.stack([step, size - step], axis=1)
        self.near_, self.far_ = fit_slopes(basis, right, w)
        return self

    def transform(self, margins: Floats) -> Floats:
        m = np.asarray(margins, dtype=np.float64)
        step = self.scale_ * np.tanh(m / self.scale_)
        return preference_probability(self.near_ * step + self.far_ * (m - step))

    def to_json(self) -> dict[str, Any]:
        return {"method": self.name, "near": self.near_, "far": self.far_, "scale": self.scale_}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        fitted = cls()
        fitted.near_, fitted.far_ = float(state["near"]), float(state["far"])
        fitted.scale_ = float(state["scale"])
        return fitted

"""Drift detection method (DDM): compares the error rate with its own lowest level."""

import math
from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.base import Signal, require_error
from rlhf_pipeline.parameters import Parameters


class DDMParams(Parameters):
    """Parameters of DDM."""

    ddm_warning_level: float = Field(
        default=2.0,
        gt=0,
        description="DDM: standard deviations above the lowest error rate at which a warning "
        "begins",
    )
    ddm_drift_level: float = Field(
        default=3.0,
        gt=0,
        description="DDM: standard deviations at which drift is detected; above the warning level",
    )
    ddm_min_votes: int = Field(
        default=100,
        ge=30,
        description="DDM: votes before the first check; with fewer, a lucky start passes for the "
        "model's true level",
    )

    @model_validator(mode="after")
    def _check_ddm_levels(self) -> Self:
        if self.ddm_warning_level >= self.ddm_drift_level:
            raise ValueError("ddm_warning_level must be below ddm_drift_level")
        return self


class DDM:
    """Drift detection method over a stream of errors, with the results of Frouros' DDM.

    Fires when rate + deviation exceeds the lowest such sum so far by `ddm_drift_level` deviations.
    The change is dated at the onset of the warning that led to it.

    Gama, Medas, Castillo, Rodrigues 2004, Learning with Drift Detection.

    >>> detector = DDM(DDMParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> signals[0].level, signals[-1].level, 400 < signals[-1].seq < 700
    ('warning', 'drift', True)
    """

    name: ClassVar[str] = "ddm"
    Params: ClassVar[type[BaseModel]] = DDMParams

    def __init__(self, params: DDMParams) -> None:
        self.params = params
        self._reset()

    def _reset(self) -> None:
        self._n = 0
        self._error_rate = 0.0
        self._min_error_rate = self._min_std = math.inf
        self._warning_seq: int | None = None

    def update(self, value: float, seq: int) -> Signal | None:
        p = self.params
        self._n += 1
        self._error_rate += (require_error(value, self.name, seq) - self._error_rate) / self._n
        if self._n < p.ddm_min_votes:
            return None
        rate = self._error_rate
        std = math.sqrt(rate * (1 - rate) / self._n)
        if rate + std < self._min_error_rate + self._min_std:
            self._min_error_rate, self._min_std = rate, std
        if rate + std > self._min_error_rate + p.ddm_drift_level * self._min_std:
            change_seq = seq if self._warning_seq is None else self._warning_seq
            signal = self._signal("drift", seq, change_seq)
            self._reset()
            return signal
        if rate + std <= self._min_error_rate + p.ddm_warning_level * self._min_std:
            self._warning_seq = None
        elif self._warning_seq is None:
            self._warning_seq = seq
            return self._signal("warning", seq, seq)
        return None

    def _signal(self, level: Any, seq: int, change_seq: int) -> Signal:
        rise = self._error_rate - self._min_error_rate
        evidence = {
            "n_votes": self._n,
            "error_before": self._min_error_rate,
            "error_rate": self._error_rate,
            "deviations": rise / self._min_std if self._min_std > 0 else 0.0,
        }
        return Signal(level=level, seq=seq, change_seq=change_seq, evidence=evidence)

    def state(self) -> dict[str, Any]:
        # before the first check both minima are infinite, which JSON cannot hold
        is_checked = self._n >= self.params.ddm_min_votes
        return {
            "n": self._n,
            "error_rate": self._error_rate,
            "min_error_rate": self._min_error_rate if is_checked else None,
            "min_std": self._min_std if is_checked else None,
            "warning_seq": self._warning_seq,
        }

    @classmethod
    def from_state(cls, params: DDMParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        detector._n = state["n"]
        detector._error_rate = state["error_rate"]
        if state["min_std"] is not None:
            detector._min_error_rate = state["min_error_rate"]
            detector._min_std = state["min_std"]
        detector._warning_seq = state["warning_seq"]
        return detector

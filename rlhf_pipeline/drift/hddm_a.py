"""HDDM-A: compares the mean error since the best cut with Hoeffding's bound."""

import math
from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.base import Signal, require_error
from rlhf_pipeline.parameters import Parameters


class HDDMAParams(Parameters):
    """Parameters of HDDM-A."""

    hddm_a_drift_alpha: float = Field(
        default=0.001, gt=0, lt=1, description="HDDM-A: significance at which drift is detected"
    )
    hddm_a_warning_alpha: float = Field(
        default=0.005,
        gt=0,
        lt=1,
        description="HDDM-A: significance at which a warning begins; above the drift significance",
    )
    hddm_a_min_votes: int = Field(
        default=30, ge=10, description="HDDM-A: votes before the first check"
    )

    @model_validator(mode="after")
    def _check_hddm_a_alphas(self) -> Self:
        if self.hddm_a_warning_alpha <= self.hddm_a_drift_alpha:
            raise ValueError("hddm_a_warning_alpha must be above hddm_a_drift_alpha")
        return self


class HDDMA:
    """Hoeffding drift detection, A-test, one-sided: only a rise of the error rate counts. Its
    results are those of Frouros' HDDMA.

    Fires when the mean of all votes exceeds the mean up to the best cut by more than Hoeffding's
    bound allows. The change is dated at the onset of the warning that led to it.

    Frías-Blanco et al. 2015, Online and Non-Parametric Drift Detection Methods Based on Hoeffding's
    Bounds.

    >>> detector = HDDMA(HDDMAParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> signals[0].level, signals[-1].level, 400 < signals[-1].seq < 700
    ('warning', 'drift', True)
    """

    name: ClassVar[str] = "hddm_a"
    Params: ClassVar[type[BaseModel]] = HDDMAParams

    def __init__(self, params: HDDMAParams) -> None:
        self.params = params
        self._log_drift = math.log(1 / params.hddm_a_drift_alpha)
        self._log_warning = math.log(1 / params.hddm_a_warning_alpha)
        self._reset()

    def _reset(self) -> None:
        self._n = self._n_cut = 0  # all votes, and those up to the best cut
        self._mean = self._mean_cut = 0.0
        self._warning_seq: int | None = None

    def update(self, value: float, seq: int) -> Signal | None:
        error = require_error(value, self.name, seq)
        evidence = self._evidence(error)
        self._n = n = self._n + 1
        self._mean += (error - self._mean) / n
        if self._n_cut == 0:
            self._n_cut, self._mean_cut = n, self._mean
        bound, bound_cut = (math.sqrt(self._log_drift / (2 * count)) for count in (n, self._n_cut))
        if self._mean + bound <= self._mean_cut + bound_cut:
            self._n_cut, self._mean_cut = n, self._mean
        if n < self.params.hddm_a_min_votes:
            return None
        rise, n_after = self._mean - self._mean_cut, n - self._n_cut
        spread = n_after / (2 * self._n_cut * n)
        if n_after and rise >= math.sqrt(spread * self._log_drift):
            change_seq = seq if self._warning_seq is None else self._warning_seq
            self._reset()
            return Signal(level="drift", seq=seq, change_seq=change_seq, evidence=evidence)
        if not n_after or rise < math.sqrt(spread * self._log_warning):
            self._warning_seq = None
        elif self._warning_seq is None:
            self._warning_seq = seq
            return Signal(level="warning", seq=seq, change_seq=seq, evidence=evidence)
        return None

    def _evidence(self, error: float) -> dict[str, float]:
        """Means before and after the cut so far, with this vote counted."""
        n, n_cut = self._n + 1, self._n_cut
        after = (self._mean * self._n + error - self._mean_cut * n_cut) / (n - n_cut)
        return {
            "n_votes": n,
            "n_before": n_cut,
            "error_before": self._mean_cut,
            "error_after": after,
        }

    def state(self) -> dict[str, Any]:
        return {
            "n": self._n,
            "cut": {"n": self._n_cut, "mean": self._mean_cut},
            "all": {"n": self._n, "mean": self._mean},
            "warning_seq": self._warning_seq,
        }

    @classmethod
    def from_state(cls, params: HDDMAParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        detector._n, detector._mean = state["all"]["n"], state["all"]["mean"]
        detector._n_cut, detector._mean_cut = state["cut"]["n"], state["cut"]["mean"]
        detector._warning_seq = state["warning_seq"]
        return detector

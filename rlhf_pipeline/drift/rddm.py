"""Reactive drift detection method (RDDM): DDM that drops the old votes of a long run."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.frouros_detector import FrourosDetector
from rlhf_pipeline.parameters import Parameters


class RDDMParams(Parameters):
    """Parameters of RDDM."""

    rddm_warning_level: float = Field(
        default=2.0,
        gt=0,
        description="RDDM: standard deviations above the lowest error rate at which a warning "
        "begins",
    )
    rddm_drift_level: float = Field(
        default=3.0,
        gt=0,
        description="RDDM: standard deviations at which drift is detected; above the warning level",
    )
    rddm_min_votes: int = Field(
        default=100, ge=30, description="RDDM: votes before the first check"
    )
    rddm_max_votes: int = Field(
        default=4000,
        ge=100,
        description="RDDM: votes without drift after which old ones are dropped",
    )
    rddm_kept_votes: int = Field(
        default=1000, ge=30, description="RDDM: latest votes that are then kept"
    )
    rddm_max_warned: int = Field(
        default=1000, ge=10, description="RDDM: votes in warning after which it is drift"
    )

    @model_validator(mode="after")
    def _check_rddm(self) -> Self:
        if self.rddm_warning_level >= self.rddm_drift_level:
            raise ValueError("rddm_warning_level must be below rddm_drift_level")
        if self.rddm_kept_votes >= self.rddm_max_votes:
            raise ValueError("rddm_kept_votes must be below rddm_max_votes")
        return self


class RDDM(FrourosDetector):
    """Reactive drift detection method over a stream of errors; Frouros does the arithmetic.

    DDM slows down as votes add up. RDDM drops all but the latest `rddm_kept_votes` after
    `rddm_max_votes` without drift, and takes a warning of `rddm_max_warned` votes for drift. The
    change is dated at the onset of the warning that led to it.

    Barros, Cabral, Gonçalves, Santos 2017, RDDM: Reactive Drift Detection Method.

    >>> detector = RDDM(RDDMParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> signals[0].level, signals[-1].level, 400 < signals[-1].seq < 700
    ('warning', 'drift', True)
    """

    name: ClassVar[str] = "rddm"
    Params: ClassVar[type[BaseModel]] = RDDMParams
    frouros = "RDDM"
    config = {
        "warning_level": "rddm_warning_level",
        "drift_level": "rddm_drift_level",
        "max_concept_size": "rddm_max_votes",
        "min_concept_size": "rddm_kept_votes",
        "max_num_instances_warning": "rddm_max_warned",
        "min_num_instances": "rddm_min_votes",
    }
    numbers = {
        "n": "num_instances",
        "n_mean": "error_rate.num_values",
        "mean": "error_rate.mean",
        "min_error_rate": "min_error_rate",
        "min_std": "min_std",
        "n_warned": "num_warnings",
        "drops_old": "rddm_drift",
    }

    def state(self) -> dict[str, Any]:
        kept = self._frouros.predictions
        places = range(kept.first, kept.first + kept.count)
        latest = [kept.queue[place % kept.max_len] for place in places]
        return super().state() | {"latest": latest}

    @classmethod
    def from_state(cls, params: RDDMParams, state: dict[str, Any]) -> Self:
        detector = super().from_state(params, state)
        for error in state["latest"]:
            detector._frouros.predictions.enqueue(value=error)
        return detector

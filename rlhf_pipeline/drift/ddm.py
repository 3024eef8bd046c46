"""Drift detection method (DDM): compares the error rate with its own lowest level."""

from typing import ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.frouros_detector import FrourosDetector
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


class DDM(FrourosDetector):
    """Drift detection method over a stream of errors; Frouros does the arithmetic.

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
    frouros = "DDM"
    config = {
        "warning_level": "ddm_warning_level",
        "drift_level": "ddm_drift_level",
        "min_num_instances": "ddm_min_votes",
    }
    numbers = {
        "n": "num_instances",
        "n_mean": "error_rate.num_values",
        "mean": "error_rate.mean",
        "min_error_rate": "min_error_rate",
        "min_std": "min_std",
    }

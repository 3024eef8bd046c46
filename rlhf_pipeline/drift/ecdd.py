"""ECDD: an exponentially weighted moving average of the errors against their overall mean."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.frouros_detector import FrourosDetector
from rlhf_pipeline.parameters import Parameters


class ECDDParams(Parameters):
    """Parameters of ECDD."""

    ecdd_weight: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="ECDD: weight of the latest vote in the average; larger is faster and noisier",
    )
    ecdd_warning_level: float = Field(
        default=2.5,
        gt=0,
        description="ECDD: standard deviations of the average above the mean at which a warning "
        "begins",
    )
    ecdd_drift_level: float = Field(
        default=3.5,
        gt=0,
        description="ECDD: standard deviations at which drift is detected; above the warning level",
    )
    ecdd_min_votes: int = Field(default=50, ge=10, description="ECDD: votes before the first check")

    @model_validator(mode="after")
    def _check_ecdd_levels(self) -> Self:
        if self.ecdd_warning_level >= self.ecdd_drift_level:
            raise ValueError("ecdd_warning_level must be below ecdd_drift_level")
        return self


class ECDD(FrourosDetector):
    """EWMA for concept drift detection over a stream of errors; Frouros does the arithmetic.

    Fires when the moving average exceeds the mean of all errors by `ecdd_drift_level` of its
    standard deviations. The change is dated at the onset of the warning that led to it.

    Ross, Adams, Tasoulis, Hand 2012, Exponentially Weighted Moving Average Charts for Detecting
    Concept Drift. Their control limits are polynomials of the error rate for a false alarm every
    100, 400 or 1,000 votes, fitted for rates below about 0.3; at 0.5 the last of them is negative.
    Hence one level for all rates here.

    >>> detector = ECDD(ECDDParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> signals[0].level, signals[-1].level, 400 < signals[-1].seq < 600
    ('warning', 'drift', True)
    """

    name: ClassVar[str] = "ecdd"
    Params: ClassVar[type[BaseModel]] = ECDDParams
    numbers = {
        "n": "num_instances",
        "n_mean": "p.num_values",
        "mean": "p.mean",
        "average": "z.mean",
    }

    def _make(self) -> Any:
        from frouros.detectors.concept_drift import ECDDWT, ECDDWTConfig

        p = self.params
        config = ECDDWTConfig(
            lambda_=p.ecdd_weight,
            warning_level=p.ecdd_warning_level / p.ecdd_drift_level,
            min_num_instances=p.ecdd_min_votes,
        )
        config.control_limit_func = lambda p: self.params.ecdd_drift_level
        return ECDDWT(config=config)

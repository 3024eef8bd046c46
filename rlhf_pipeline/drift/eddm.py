"""Early drift detection method (EDDM): compares the distance between errors with its largest."""

from typing import ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.frouros_detector import FrourosDetector
from rlhf_pipeline.parameters import Parameters


class EDDMParams(Parameters):
    """Parameters of EDDM."""

    eddm_warning_ratio: float = Field(
        default=0.9,
        gt=0,
        lt=1,
        description="EDDM: share of the largest distance below which a warning begins",
    )
    eddm_drift_ratio: float = Field(
        default=0.8,
        gt=0,
        lt=1,
        description="EDDM: share below which drift is detected; below the warning ratio",
    )
    eddm_min_errors: int = Field(
        default=100,
        ge=30,
        description="EDDM: errors before the first check, and votes before the "
        "largest distance is kept",
    )

    @model_validator(mode="after")
    def _check_eddm_ratios(self) -> Self:
        if self.eddm_drift_ratio >= self.eddm_warning_ratio:
            raise ValueError("eddm_drift_ratio must be below eddm_warning_ratio")
        return self


class EDDM(FrourosDetector):
    """Early drift detection method over a stream of errors; Frouros does the arithmetic.

    Fires when the mean number of votes from error to error plus two deviations falls below
    `eddm_drift_ratio` of the largest such sum so far. Only errors of exactly 1 count as errors. The
    change is dated at the onset of the warning that led to it.

    Baena-García et al. 2006, Early Drift Detection Method.

    >>> import numpy as np
    >>> detector = EDDM(EDDMParams())
    >>> draws = np.random.default_rng(0).random(1000)
    >>> stream = [*(draws[:600] < 0.25).astype(float), *(draws[600:] < 0.6).astype(float)]
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> signals[0].level, signals[-1].level, 600 < signals[-1].seq < 900
    ('warning', 'drift', True)
    """

    name: ClassVar[str] = "eddm"
    Params: ClassVar[type[BaseModel]] = EDDMParams
    frouros = "EDDM"
    config = {
        "alpha": "eddm_warning_ratio",
        "beta": "eddm_drift_ratio",
        "min_num_misclassified_instances": "eddm_min_errors",
    }
    numbers = {
        "n": "num_instances",
        "n_errors": "num_misclassified_instances",
        "last_error": "last_distance_error",
        "mean": "mean_distance_error",
        "variance": "variance_distance_error",
        "largest": "max_distance_threshold",
    }

    def _suspects_rise(self, error: float) -> bool:
        # Frouros lowers its warning flag at each correct vote, which says nothing
        return bool(self._frouros.warning) if error == 1 else self._onset is not None

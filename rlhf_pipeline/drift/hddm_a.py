"""HDDM-A: compares the mean error since the best cut with Hoeffding's bound."""

from typing import ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.frouros_detector import FrourosDetector
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


class HDDMA(FrourosDetector):
    """Hoeffding drift detection, A-test, one-sided: only a rise of the error rate counts; Frouros
    does the arithmetic.

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
    frouros = "HDDMA"
    config = {
        "alpha_d": "hddm_a_drift_alpha",
        "alpha_w": "hddm_a_warning_alpha",
        "min_num_instances": "hddm_a_min_votes",
    }
    numbers = {
        "n": "num_instances",
        "n_all": "test_type.z.num_values",
        "mean_all": "test_type.z.mean",
        "n_cut": "test_type.x.num_values",
        "mean_cut": "test_type.x.mean",
    }

"""HDDM-W: compares weighted mean errors before and after the best cut with McDiarmid's bound."""

from typing import ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.frouros_detector import FrourosDetector
from rlhf_pipeline.parameters import Parameters


class HDDMWParams(Parameters):
    """Parameters of HDDM-W."""

    hddm_w_drift_alpha: float = Field(
        default=0.001, gt=0, lt=1, description="HDDM-W: significance at which drift is detected"
    )
    hddm_w_warning_alpha: float = Field(
        default=0.005,
        gt=0,
        lt=1,
        description="HDDM-W: significance at which a warning begins; above the drift significance",
    )
    hddm_w_weight: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="HDDM-W: weight of the latest vote in the means; larger is faster and noisier",
    )
    hddm_w_min_votes: int = Field(
        default=30, ge=10, description="HDDM-W: votes before the first check"
    )

    @model_validator(mode="after")
    def _check_hddm_w_alphas(self) -> Self:
        if self.hddm_w_warning_alpha <= self.hddm_w_drift_alpha:
            raise ValueError("hddm_w_warning_alpha must be above hddm_w_drift_alpha")
        return self


class HDDMW(FrourosDetector):
    """Hoeffding drift detection, W-test, one-sided: only a rise of the error rate counts; Frouros
    does the arithmetic.

    Fires when the exponentially weighted mean since the best cut exceeds the one up to it by more
    than McDiarmid's bound allows. The change is dated at the onset of the warning that led to it.

    Frías-Blanco et al. 2015, Online and Non-Parametric Drift Detection Methods Based on Hoeffding's
    Bounds.

    >>> detector = HDDMW(HDDMWParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 1, 0] * 100
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> signals[0].level, signals[-1].level, 400 < signals[-1].seq < 600
    ('warning', 'drift', True)
    """

    name: ClassVar[str] = "hddm_w"
    Params: ClassVar[type[BaseModel]] = HDDMWParams
    frouros = "HDDMW"
    config = {
        "alpha_d": "hddm_w_drift_alpha",
        "alpha_w": "hddm_w_warning_alpha",
        "lambda_": "hddm_w_weight",
        "min_num_instances": "hddm_w_min_votes",
    }
    numbers = {
        "n": "num_instances",
        "lowest": "test_type.increase_cut_point",
        **{
            f"{sample}_{key}": f"test_type.{attribute}.{path}"
            for sample, attribute in (
                ("all", "total"),
                ("before", "sample_increase_1"),
                ("after", "sample_increase_2"),
            )
            for key, path in (("mean", "ewma.mean"), ("bound", "independent_bound_condition"))
        },
    }

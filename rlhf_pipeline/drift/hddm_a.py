"""HDDM-A: compares the mean error since the best cut with Hoeffding's bound."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rlhf_pipeline.drift.base import Signal, require_error


class HDDMAParams(BaseModel):
    """Parameters of HDDM-A."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

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

    def __init__(self, params: HDDMAParams) -> None:
        self.params = params
        self._reset()

    def _reset(self) -> None:
        from frouros.detectors.concept_drift import HDDMA as Frouros
        from frouros.detectors.concept_drift import HDDMAConfig

        p = self.params
        config = HDDMAConfig(
            alpha_d=p.hddm_a_drift_alpha,
            alpha_w=p.hddm_a_warning_alpha,
            min_num_instances=p.hddm_a_min_votes,
        )
        self._hddm = Frouros(config=config)
        self._warning_seq: int | None = None

    def update(self, value: float, seq: int) -> Signal | None:
        error = require_error(value, self.name, seq)
        evidence = self._evidence(error)
        self._hddm.update(value=error)
        if self._hddm.drift:
            change_seq = seq if self._warning_seq is None else self._warning_seq
            self._reset()
            return Signal(level="drift", seq=seq, change_seq=change_seq, evidence=evidence)
        if not self._hddm.warning:
            self._warning_seq = None
        elif self._warning_seq is None:
            self._warning_seq = seq
            return Signal(level="warning", seq=seq, change_seq=seq, evidence=evidence)
        return None

    def _evidence(self, error: float) -> dict[str, float]:
        """Means before and after the cut with this vote counted. Computed first, because Frouros
        drops both means when it fires.
        """
        x, z = self._hddm.test_type.x, self._hddm.test_type.z
        n_after = z.num_values + 1 - x.num_values
        after = (z.mean * z.num_values + error - x.mean * x.num_values) / n_after
        return {
            "n_votes": z.num_values + 1,
            "n_before": x.num_values,
            "error_before": float(x.mean),
            "error_after": float(after),
        }

    def state(self) -> dict[str, Any]:
        test = self._hddm.test_type
        return {
            "n": self._hddm.num_instances,
            "cut": {"n": test.x.num_values, "mean": float(test.x.mean)},
            "all": {"n": test.z.num_values, "mean": float(test.z.mean)},
            "warning_seq": self._warning_seq,
        }

    @classmethod
    def from_state(cls, params: HDDMAParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        hddm = detector._hddm
        hddm.num_instances = state["n"]
        for mean, saved in ((hddm.test_type.x, state["cut"]), (hddm.test_type.z, state["all"])):
            mean.num_values, mean.mean = saved["n"], saved["mean"]
        detector._warning_seq = state["warning_seq"]
        hddm.warning = detector._warning_seq is not None
        return detector

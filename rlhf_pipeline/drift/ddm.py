"""Drift detection method (DDM): compares the error rate with its own lowest level."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rlhf_pipeline.drift.base import Signal, require_error


class DDMParams(BaseModel):
    """Parameters of DDM."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

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

    def __init__(self, params: DDMParams) -> None:
        self.params = params
        self._reset()

    def _reset(self) -> None:
        from frouros.detectors.concept_drift import DDM as Frouros
        from frouros.detectors.concept_drift import DDMConfig

        p = self.params
        config = DDMConfig(
            warning_level=p.ddm_warning_level,
            drift_level=p.ddm_drift_level,
            min_num_instances=p.ddm_min_votes,
        )
        self._ddm = Frouros(config=config)
        self._warning_seq: int | None = None

    def update(self, value: float, seq: int) -> Signal | None:
        self._ddm.update(value=require_error(value, self.name, seq))
        if self._ddm.drift:
            signal = self._signal(
                "drift", seq, seq if self._warning_seq is None else self._warning_seq
            )
            self._reset()
            return signal
        if not self._ddm.warning:
            self._warning_seq = None
        elif self._warning_seq is None:
            self._warning_seq = seq
            return self._signal("warning", seq, seq)
        return None

    def _signal(self, level: Any, seq: int, change_seq: int) -> Signal:
        ddm = self._ddm
        evidence = {
            "n_votes": ddm.num_instances,
            "error_before": float(ddm.min_error_rate),
            "error_rate": float(ddm.error_rate.mean),
            "deviations": float((ddm.error_rate.mean - ddm.min_error_rate) / ddm.min_std)
            if ddm.min_std > 0
            else 0.0,
        }
        return Signal(level=level, seq=seq, change_seq=change_seq, evidence=evidence)

    def state(self) -> dict[str, Any]:
        ddm = self._ddm
        # before that both minima are infinite, which JSON cannot hold
        looked = ddm.num_instances >= self.params.ddm_min_votes
        return {
            "n": ddm.num_instances,
            "error_rate": float(ddm.error_rate.mean),
            "min_error_rate": float(ddm.min_error_rate) if looked else None,
            "min_std": float(ddm.min_std) if looked else None,
            "warning_seq": self._warning_seq,
        }

    @classmethod
    def from_state(cls, params: DDMParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        ddm = detector._ddm
        ddm.num_instances = ddm.error_rate.num_values = state["n"]
        ddm.error_rate.mean = state["error_rate"]
        if state["min_std"] is not None:
            ddm.min_error_rate, ddm.min_std = state["min_error_rate"], state["min_std"]
        detector._warning_seq = state["warning_seq"]
        ddm.warning = detector._warning_seq is not None
        return detector

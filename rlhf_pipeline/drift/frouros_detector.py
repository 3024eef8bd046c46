"""The common part of detectors whose state is a few numbers of a Frouros detector."""

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar, Self

from pydantic import BaseModel

from rlhf_pipeline.drift.base import Signal, require_error


class FrourosDetector:
    """Feeds a Frouros detector, dates its drift at the onset of the suspicion that led to it, and
    starts afresh after it.

    A subclass names the Frouros class, its configuration and its numbers that change; it satisfies
    DriftDetector.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    frouros: ClassVar[str]  # name of its class; `config` is its field -> parameter
    config: ClassVar[Mapping[str, str]]
    # key in the state -> path of an attribute of the Frouros detector
    numbers: ClassVar[Mapping[str, str]]
    has_warnings: ClassVar[bool] = True

    def __init__(self, params: Any) -> None:
        self.params = params
        self._reset()

    def _make(self) -> Any:
        """A new Frouros detector with these parameters."""
        from frouros.detectors import concept_drift

        given = {field: getattr(self.params, name) for field, name in self.config.items()}
        config = getattr(concept_drift, f"{self.frouros}Config")(**given)
        return getattr(concept_drift, self.frouros)(config=config)

    def _suspects_rise(self, error: float) -> bool:
        """Whether a rise is suspected after this vote."""
        return bool(self._frouros.warning)

    def _reset(self) -> None:
        self._frouros = self._make()
        self._n, self._errors = 0, 0.0
        # the vote at which the current suspicion began, and votes and errors before it
        self._onset: tuple[int, int, float] | None = None

    def update(self, value: float, seq: int) -> Signal | None:
        error = require_error(value, self.name, seq)
        here = (seq, self._n, self._errors)
        self._n, self._errors = self._n + 1, self._errors + error
        self._frouros.update(value=error)
        if self._frouros.drift:
            signal = self._signal("drift", seq, self._onset or here)
            self._reset()
            return signal
        if not self._suspects_rise(error):
            self._onset = None
        elif self._onset is None:
            self._onset = here
            return self._signal("warning", seq, here) if self.has_warnings else None
        return None

    def _signal(self, level: Any, seq: int, onset: tuple[int, int, float]) -> Signal:
        change_seq, n_before, before = onset
        evidence = {
            "n_votes": float(self._n),
            "n_before": float(n_before),
            "error_after": (self._errors - before) / (self._n - n_before),
        }
        if n_before:
            evidence["error_before"] = before / n_before
        return Signal(level=level, seq=seq, change_seq=change_seq, evidence=evidence)

    def state(self) -> dict[str, Any]:
        return {
            "n": self._n,
            "errors": self._errors,
            "onset": None if self._onset is None else list(self._onset),
            "numbers": {key: self._number(path) for key, path in self.numbers.items()},
        }

    def _number(self, path: str) -> int | float | None:
        """None for an infinite limit, as a new detector has it: JSON holds no infinity."""
        value = attrgetter(path)(self._frouros)
        if isinstance(value, int):
            return value
        return float(value) if math.isfinite(value) else None

    @classmethod
    def from_state(cls, params: Any, state: dict[str, Any]) -> Self:
        detector = cls(params)
        detector._n, detector._errors = state["n"], state["errors"]
        detector._onset = None if state["onset"] is None else tuple(state["onset"])
        for key, path in cls.numbers.items():
            if state["numbers"][key] is not None:
                owner, _, attribute = path.rpartition(".")
                of = attrgetter(owner)(detector._frouros) if owner else detector._frouros
                setattr(of, attribute, state["numbers"][key])
        return detector


class SummingDetector(FrourosDetector):
    """A detector that sums errors above their mean: it suspects a rise while the sum is positive,
    and has no warnings.
    """

    has_warnings = False
    numbers = {
        "n": "num_instances",
        "n_mean": "mean_error_rate.num_values",
        "mean": "mean_error_rate.mean",
        "sum": "sum_",
    }

    def _suspects_rise(self, error: float) -> bool:
        return bool(self._frouros.sum_ > 0)

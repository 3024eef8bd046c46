"""What a drift detector is: fed one error at a time in vote order, it says when the error rate
rose. Knows no storage.
"""

import math
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from rlhf_pipeline.errors import InvalidScores
from rlhf_pipeline.records import Record, content_id, fields_to_hash

P = TypeVar("P", bound=BaseModel)
Floats = npt.NDArray[np.floating[Any]]
# By detector: the parameters it had first. Events and states in people's homes are found by their
# hash.
FIRST_PARAMS = {
    "ddm": ("ddm_warning_level", "ddm_drift_level", "ddm_min_votes"),
    "adwin": ("adwin_delta", "adwin_clock", "adwin_min_votes"),
    "hddm_a": ("hddm_a_drift_alpha", "hddm_a_warning_alpha", "hddm_a_min_votes"),
}


class Signal(Record):
    """What a detector says at one vote. `seq` is that vote, `change_seq` the vote at which the
    change is thought to begin.
    """

    level: Literal["warning", "drift"]
    seq: int
    change_seq: int
    evidence: dict[str, float]


class DriftDetector(Protocol):
    """A change detector over a stream of errors in [0, 1], restartable from its JSON state.

    `update` returns a Signal with level `warning` where a warning begins (once, not while it lasts)
    and with level `drift` where a rise of the error rate is detected, after which the detector
    starts afresh with the next vote; else None. It raises InvalidScores for NaN, bool, text or a
    value outside [0, 1]. A fall of the error rate is no drift. `from_state(params, state())`
    continues exactly as the detector would have: state is plain JSON, never a pickle.
    """

    name: ClassVar[str]

    @property
    def params(self) -> BaseModel: ...

    def update(self, value: float, seq: int) -> Signal | None: ...

    def state(self) -> dict[str, Any]: ...

    @classmethod
    def from_state(cls, params: Any, state: dict[str, Any]) -> Self: ...


def params_hash(detector: DriftDetector) -> str:
    """Identifies detector and parameters: another value, another stream of events. One added to
    ours counts where it is not at its default.
    """
    params = detector.params
    return content_id(
        detector.name,
        fields_to_hash(params, FIRST_PARAMS.get(detector.name, tuple(type(params).model_fields))),
    )


def select_params(kind: type[P], params: BaseModel) -> P:
    """The fields of `kind` out of a larger set of parameters, so that one detector's hash ignores
    the others' knobs.
    """
    return kind.model_validate(params.model_dump(include=set(kind.model_fields)))


def require_error(value: object, detector: str, seq: int) -> float:
    """`value` as a float, or InvalidScores: Frouros takes NaN and then never fires again."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not is_number
        or math.isnan(value)  # type: ignore[arg-type]
        or not 0 <= value <= 1  # type: ignore[operator]
    ):
        raise InvalidScores(
            f"{detector}: error {value!r} at vote {seq} is not a number in [0, 1]. Give 1 where "
            "the prediction was wrong, 0 where it was right, and drop votes that are neither "
            "(ties, skips)."
        )
    return float(value)  # type: ignore[arg-type]

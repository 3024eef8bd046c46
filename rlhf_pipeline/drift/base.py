"""The protocol of a drift detector: it reads errors in vote order and reports a rising rate."""

import math
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from rlhf_pipeline.errors import InvalidScores
from rlhf_pipeline.records import Record, content_id

Floats = npt.NDArray[np.floating[Any]]


class Signal(Record):
    """A detector's finding at vote `seq`; `change_seq` is the vote at which the change probably
    began.
    """

    level: Literal["warning", "drift"]
    seq: int
    change_seq: int
    evidence: dict[str, float]


class DriftDetector(Protocol):
    """A change detector over a stream of errors in [0, 1], restartable from its JSON state.

    It is made with an instance of its `Params`, whose field names begin with the detector's name,
    because the launchpad shows all detectors together.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def __init__(self, params: Any) -> None: ...

    @property
    def params(self) -> BaseModel: ...

    def update(self, value: float, seq: int) -> Signal | None:
        """Read one error; `seq` is its vote.

        Returns a Signal of level `warning` where a warning begins (once, not while it lasts), one
        of level `drift` where the error rate has risen, else None. After `drift` the detector
        starts afresh with the next vote. A falling error rate gives no signal. Raises InvalidScores
        for NaN, a bool, a text or a value outside [0, 1]; see `require_error`.
        """
        ...

    def state(self) -> dict[str, Any]:
        """The detector's state as plain JSON."""
        ...

    @classmethod
    def from_state(cls, params: Any, state: dict[str, Any]) -> Self:
        """A detector that continues exactly where the one that gave `state` stopped."""
        ...


def params_hash(detector: DriftDetector) -> str:
    """Identifies a detector and its parameters: a changed value starts a new stream of events."""
    return content_id(detector.name, detector.params.model_dump(mode="json"))


def require_error(value: object, detector: str, seq: int) -> float:
    """`value` as a float. Raises InvalidScores: Frouros accepts NaN and never fires again."""
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

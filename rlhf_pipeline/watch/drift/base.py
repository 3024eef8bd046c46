"""The protocol of a drift detector: it reads the votes on a model's predictions in vote order."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from rlhf_pipeline.core.records import Record, content_id

Floats = npt.NDArray[np.floating[Any]]


class StreamVote(NamedTuple):
    """A vote for one side of a comparison that the model predicted; `error` is 1 if it is for the
    other side than predicted, `stated` the log odds of an error that the prediction states.
    """

    seq: int
    day: str  # ISO date
    annotator_id: str
    comparison_id: str
    category: str
    stated: float
    error: float


class Signal(Record):
    """A rise of errors that a detector found at vote `seq`; `change_seq` is the vote at which it
    probably began, and `category` is None if all votes show it.
    """

    seq: int
    change_seq: int
    category: str | None = None
    evidence: dict[str, float]


class DriftDetector(Protocol):
    """Finds rises of the chance of an error over what a model's predictions state.

    It is made with an instance of its `Params`, whose field names begin with the detector's name,
    because the launchpad shows all detectors together.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def __init__(self, params: Any) -> None: ...

    @property
    def params(self) -> BaseModel: ...

    def find_rises(
        self, votes: Iterable[StreamVote], reference: Sequence[StreamVote] = ()
    ) -> Iterator[Signal]:
        """The signals of all votes on one model, in seq order.

        A signal depends on `reference` (votes on held-out predictions of the model) and on the
        votes up to its own, so that more votes never change earlier signals. A falling error rate
        gives no signal.
        """


def params_hash(detector: DriftDetector) -> str:
    """Identifies a detector and its parameters: a changed value starts a new stream of events."""
    return content_id(detector.name, detector.params.model_dump(mode="json"))

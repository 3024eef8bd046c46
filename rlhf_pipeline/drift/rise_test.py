"""Sequential test for a rise of the error rate over its learnt level, with a known false-alarm
rate.
"""

import math
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.drift.base import Signal, require_error
from rlhf_pipeline.drift.change_date import ChangeDate

KNOWN_FROM = 100  # predictions of a reference that make the level known
LOWEST, HIGHEST = 0.02, 0.9  # levels between which a rise is tested


class RiseTestParams(BaseModel):
    """Parameters of the rise test."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    rise_test_threshold: float = Field(
        default=3.8,
        gt=0,
        le=50,
        description="Rise test: log likelihood ratio at which drift is detected. At the default it "
        "reports 2 to 12 false rises in 100,000 votes (`benchmarks/bench_detectors.py`); the "
        "trigger dismisses most of them",
    )
    rise_test_step: float = Field(
        default=0.055,
        gt=0,
        lt=0.5,
        description="Rise test: rise of the error rate that it is fastest for",
    )
    rise_test_guard: float = Field(
        default=1.75,
        ge=0,
        description="Rise test: standard errors of the learnt error rate that are added to it, so "
        "that a lucky start is not taken for the true level",
    )
    rise_test_min_votes: int = Field(
        default=400,
        ge=30,
        description="Rise test: votes that the level is learnt from at least; a reference of "
        f"{KNOWN_FROM} predictions is enough too",
    )


class RiseTest:
    """CUSUM of the log likelihood ratio of a rise against the level learnt so far.

    The level is the error rate up to the last vote at which the statistic was zero, so votes after
    a change do not raise it. A level may be known beforehand, from predictions on a reference
    window. The change is dated by the likelihood of all splits of the votes read.

    Page 1954, Continuous Inspection Schemes; Hawkins 1987, Self-Starting CUSUM Charts for Location
    and Scale.

    >>> detector = RiseTest(RiseTestParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> [(s.level, 400 < s.seq < 600) for s in signals]
    [('drift', True)]
    """

    name: ClassVar[str] = "rise_test"
    Params: ClassVar[type[BaseModel]] = RiseTestParams

    def __init__(self, params: RiseTestParams) -> None:
        self.params = params
        self._reset()

    def _reset(self) -> None:
        self._n_level = self._wrong_level = 0.0
        self._n_since = self._wrong_since = self.statistic = 0.0
        self._date = ChangeDate()
        self._is_known = False
        self._set_ratios()

    def start_from(self, n: float, error_rate: float) -> None:
        """Take the level from `n` predictions that no vote of the stream belongs to."""
        self._n_level, self._wrong_level = float(n), n * error_rate
        self._date = ChangeDate(float(n), n * error_rate)
        self._is_known = n >= KNOWN_FROM
        self._set_ratios()

    def _set_ratios(self) -> None:
        level = (self._wrong_level + 1) / (self._n_level + 4)
        spread = math.sqrt(level * (1 - level) / max(self._n_level, 1))
        level = max(level + self.params.rise_test_guard * spread, LOWEST)
        if level + self.params.rise_test_step > HIGHEST:  # such a rate cannot rise
            self._if_wrong = self._if_right = 0.0
            return
        raised = level + self.params.rise_test_step
        self._if_wrong = math.log(raised / level)
        self._if_right = math.log((1 - raised) / (1 - level))

    def accumulate(self, error: float, seq: int) -> float:
        """Read one error; returns the statistic and never fires."""
        is_learning = not self._is_known and self._n_level < self.params.rise_test_min_votes
        self._date.add(error, seq)
        self._n_since += 1
        self._wrong_since += error
        if not is_learning:
            self.statistic += error * self._if_wrong + (1 - error) * self._if_right
        if self.statistic <= 0:
            self._n_level += self._n_since
            self._wrong_level += self._wrong_since
            self._n_since = self._wrong_since = self.statistic = 0.0
            self._set_ratios()
        return self.statistic

    def update(self, value: float, seq: int) -> Signal | None:
        if (
            self.accumulate(require_error(value, self.name, seq), seq)
            < self.params.rise_test_threshold
        ):
            return None
        return self.fire(seq, self.params.rise_test_threshold)

    def fire(self, seq: int, threshold: float) -> Signal:
        """The signal of the current rise; starts afresh."""
        signal = Signal(
            level="drift",
            seq=seq,
            change_seq=self._date.estimate(),
            evidence={
                "n_votes": self._n_level + self._n_since,
                "n_before": self._n_level,
                "error_before": self._wrong_level / max(self._n_level, 1),
                "error_after": self._wrong_since / max(self._n_since, 1),
                "statistic": self.statistic,
                "threshold": threshold,
            },
        )
        self._reset()
        return signal

    def state(self) -> dict[str, Any]:
        return {
            "level": [self._n_level, self._wrong_level],
            "since": [self._n_since, self._wrong_since],
            "statistic": self.statistic,
            "date": self._date.state(),
            "is_known": self._is_known,
        }

    @classmethod
    def from_state(cls, params: RiseTestParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        detector._n_level, detector._wrong_level = state["level"]
        detector._n_since, detector._wrong_since = state["since"]
        detector.statistic = state["statistic"]
        detector._date = ChangeDate.from_state(state["date"])
        detector._is_known = state["is_known"]
        detector._set_ratios()
        return detector

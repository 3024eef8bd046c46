"""ADWIN: an error window that shrinks when its older and newer parts differ."""

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from rlhf_pipeline.drift.base import Floats, Signal, require_error
from rlhf_pipeline.parameters import Parameters

# of a Frouros window, beside its buckets
FLOATS = ("total", "variance")
NUMBERS = ("num_instances", "width", "num_buckets", "num_max_buckets", *FLOATS)


class ADWINParams(Parameters):
    """Parameters of ADWIN."""

    adwin_delta: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="ADWIN: confidence of one cut; larger is earlier and less certain",
    )
    adwin_clock: int = Field(default=8, ge=1, description="ADWIN: votes between two checks")
    adwin_min_votes: int = Field(
        default=30, ge=10, description="ADWIN: votes before the first check"
    )


class ADWIN:
    """Adaptive windowing over a stream of errors; Frouros keeps and cuts the window.

    ADWIN itself is two-sided and cuts its window only as far as its bound demands, which on votes
    leaves hundreds of old ones. So a cut where the error rate fell only shortens the window and is
    no signal, and the change is dated at the most likely split (binomial likelihood) of what the
    cut left, not at its start. ADWIN has no warnings.

    Bifet, Gavaldà 2007, Learning from Time-Changing Data with Adaptive Windowing.

    >>> detector = ADWIN(ADWINParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> [(s.level, 400 < s.seq < 700) for s in signals]
    [('drift', True)]
    """

    name: ClassVar[str] = "adwin"
    Params: ClassVar[type[BaseModel]] = ADWINParams

    def __init__(self, params: ADWINParams) -> None:
        self.params = params
        self._reset()

    def _reset(self) -> None:
        from frouros.detectors.concept_drift import ADWIN as Frouros
        from frouros.detectors.concept_drift import ADWINConfig

        p = self.params
        self._frouros = Frouros(
            config=ADWINConfig(
                clock=p.adwin_clock, delta=p.adwin_delta, min_num_instances=p.adwin_min_votes
            )
        )
        # Position in the stream -> vote seq, kept only where a bucket begins: buckets only ever
        # merge, so no other is needed.
        self._seq_at: dict[int, int] = {}

    def update(self, value: float, seq: int) -> Signal | None:
        error, window = require_error(value, self.name, seq), self._frouros
        n, total = window.width + 1, window.total + error
        self._seq_at[window.num_instances + 1] = seq
        with np.errstate(divide="ignore", invalid="ignore"):
            window.update(value=error)
        if window.num_instances % self.params.adwin_clock == 0:
            starts = self._buckets()[0]
            self._seq_at = {position: self._seq_at[position] for position in starts.tolist()}
        if not window.drift:
            return None
        window.drift = False
        evidence, change_seq = self._locate_change(total - window.total, n - window.width)
        if evidence["error_after"] <= evidence["error_before"]:
            return None
        self._reset()
        return Signal(level="drift", seq=seq, change_seq=change_seq, evidence=evidence)

    def _buckets(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
        """First position, number of votes and errors of every bucket, the oldest first."""
        rows = [
            (2**level, total)
            for level, bucket in reversed(list(enumerate(self._frouros.buckets)))
            for total in bucket.total[: bucket.idx]
        ]
        sizes = np.array([size for size, _ in rows])
        starts = self._frouros.num_instances - self._frouros.width + 1 + np.cumsum(sizes) - sizes
        return starts, sizes, np.array([total for _, total in rows])

    def _locate_change(self, cut_total: float, n_cut: int) -> tuple[dict[str, float], int]:
        """Error rates before and after the most likely change in the rest of the window, and its
        seq.

        `cut_total` errors in `n_cut` votes were already cut off; they count as before the change.
        """
        starts, sizes, totals = self._buckets()
        n_before, before = n_cut + np.cumsum(sizes) - sizes, cut_total + np.cumsum(totals) - totals
        n_after, after = n_before[-1] + sizes[-1] - n_before, before[-1] + totals[-1] - before
        likelihood = _log_likelihood(before, n_before) + _log_likelihood(after, n_after)
        best = int(np.argmax(likelihood))
        evidence = {
            "n_votes": float(n_before[best] + n_after[best]),
            "n_before": float(n_before[best]),
            "error_before": float(before[best] / n_before[best]),
            "error_after": float(after[best] / n_after[best]),
        }
        return evidence, self._seq_at[int(starts[best])]

    def state(self) -> dict[str, Any]:
        return {
            "numbers": {name: float(getattr(self._frouros, name)) for name in NUMBERS},
            "buckets": [
                [bucket.total[: bucket.idx].tolist(), bucket.variance[: bucket.idx].tolist()]
                for bucket in self._frouros.buckets
            ],
            "seq_at": [[position, seq] for position, seq in self._seq_at.items()],
        }

    @classmethod
    def from_state(cls, params: ADWINParams, state: dict[str, Any]) -> Self:
        from frouros.detectors.concept_drift.streaming.window_based.adwin import Bucket

        detector = cls(params)
        for name, value in state["numbers"].items():
            setattr(detector._frouros, name, value if name in FLOATS else int(value))
        detector._frouros.buckets.clear()
        for totals, variances in state["buckets"]:
            bucket = Bucket(m=detector._frouros.config.m)
            for total, variance in zip(totals, variances, strict=True):
                bucket.insert_data(value=total, variance=variance)
            detector._frouros.buckets.append(bucket)
        detector._seq_at = {position: seq for position, seq in state["seq_at"]}
        return detector


def _log_likelihood(total: Floats, n: npt.NDArray[np.int64]) -> Floats:
    """Log likelihood of `total` errors in `n` votes at their own rate; 0 without votes."""
    rate = np.clip(total / np.maximum(n, 1), 1e-12, 1 - 1e-12)
    likelihood: Floats = total * np.log(rate) + (n - total) * np.log(1 - rate)
    return likelihood

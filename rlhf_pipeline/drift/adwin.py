"""ADWIN: an error window that shrinks when its older and newer parts differ."""

from collections import deque
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.drift.base import Floats, Signal, require_error


class ADWINParams(BaseModel):
    """Parameters of ADWIN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

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
    """Adaptive windowing over a stream of errors; Frouros does the arithmetic.

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
        self._adwin = Frouros(
            config=ADWINConfig(
                clock=p.adwin_clock, delta=p.adwin_delta, min_num_instances=p.adwin_min_votes
            )
        )
        # Position in the stream -> vote seq, kept only where a bucket begins: buckets only ever
        # merge, so no other is needed.
        self._seq_at: dict[int, int] = {}

    def update(self, value: float, seq: int) -> Signal | None:
        adwin = self._adwin
        error = require_error(value, self.name, seq)
        total, width = adwin.total + error, adwin.width + 1
        self._seq_at[adwin.num_instances + 1] = seq
        # Frouros divides by zero for its smallest window, which gives an infinite bound and hence
        # no cut, which is correct.
        with np.errstate(divide="ignore", invalid="ignore"):
            adwin.update(value=error)
        if adwin.num_instances % self.params.adwin_clock == 0:
            self._forget_merged()
        if not adwin.drift:
            return None
        evidence, change_seq = self._locate_change(total - adwin.total, width - adwin.width)
        if evidence["error_after"] <= evidence["error_before"]:
            adwin.drift = False
            return None
        self._reset()
        return Signal(level="drift", seq=seq, change_seq=change_seq, evidence=evidence)

    def _buckets(self) -> list[tuple[int, int, float]]:
        """(position of the first vote, votes, sum of errors) of every bucket, oldest first."""
        position = int(self._adwin.num_instances - self._adwin.width + 1)
        rows = []
        for level in range(len(self._adwin.buckets) - 1, -1, -1):
            bucket = self._adwin.buckets[level]
            for total in bucket.total[: bucket.idx]:
                rows.append((position, 2**level, float(total)))
                position += 2**level
        return rows

    def _forget_merged(self) -> None:
        self._seq_at = {position: self._seq_at[position] for position, _, _ in self._buckets()}

    def _locate_change(self, cut_total: float, n_cut: int) -> tuple[dict[str, float], int]:
        """Error rates before and after the most likely change in the rest of the window, and its
        seq.

        `cut_total` errors in `n_cut` votes were already cut off; they count as before the change.
        """
        positions, sizes, totals = (
            np.array(column, dtype=float) for column in zip(*self._buckets(), strict=True)
        )
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
        return evidence, self._seq_at[int(positions[best])]

    def state(self) -> dict[str, Any]:
        adwin = self._adwin
        return {
            "n": adwin.num_instances,
            "total": float(adwin.total),
            "variance": float(adwin.variance),
            "width": int(adwin.width),
            "n_buckets": int(adwin.num_buckets),
            "n_max_buckets": int(adwin.num_max_buckets),
            "buckets": [
                [b.total[: b.idx].tolist(), b.variance[: b.idx].tolist()] for b in adwin.buckets
            ],
            "seq_at": [[position, seq] for position, seq in self._seq_at.items()],
        }

    @classmethod
    def from_state(cls, params: ADWINParams, state: dict[str, Any]) -> Self:
        from frouros.detectors.concept_drift.streaming.window_based.adwin import Bucket

        detector = cls(params)
        adwin = detector._adwin
        buckets: deque[Any] = deque()
        for totals, variances in state["buckets"]:
            bucket = Bucket(m=adwin.config.m)
            bucket.idx = len(totals)
            bucket.total[: bucket.idx], bucket.variance[: bucket.idx] = totals, variances
            buckets.append(bucket)
        adwin.num_instances = state["n"]
        adwin.width = state["width"]
        adwin.buckets = buckets
        adwin.total, adwin.variance = state["total"], state["variance"]
        adwin.num_buckets, adwin.num_max_buckets = state["n_buckets"], state["n_max_buckets"]
        detector._seq_at = {position: seq for position, seq in state["seq_at"]}
        return detector


def _log_likelihood(total: Floats, n: Floats) -> Floats:
    """Log likelihood of `total` errors in `n` votes at their own rate; 0 without votes."""
    rate = np.clip(total / np.maximum(n, 1), 1e-12, 1 - 1e-12)
    likelihood: Floats = total * np.log(rate) + (n - total) * np.log(1 - rate)
    return likelihood

"""ADWIN: an error window that shrinks when its older and newer parts differ."""

import math
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, Field

from rlhf_pipeline.drift.base import Floats, Signal, require_error
from rlhf_pipeline.parameters import Parameters

MAX_BUCKETS = 5  # of one size before the two oldest merge: M of the paper
MIN_PART = 6  # votes of either part of a cut, and the correction of Frouros' bound


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
    """Adaptive windowing over a stream of errors, with the results of Frouros' ADWIN.

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
        self._n = self._width = self._n_buckets = self._n_max_buckets = 0
        self._total = self._variance = 0.0
        # (sums, variances) of the buckets of 2**level votes, oldest first
        self._levels: list[tuple[list[float], list[float]]] = [([], [])]
        # Position in the stream -> vote seq, kept only where a bucket begins: buckets only ever
        # merge, so no other is needed.
        self._seq_at: dict[int, int] = {}

    def update(self, value: float, seq: int) -> Signal | None:
        p = self.params
        self._insert(require_error(value, self.name, seq))
        self._seq_at[self._n] = seq
        if self._n % p.adwin_clock:
            return None
        self._forget_merged()
        if self._width <= p.adwin_min_votes:
            return None
        total, width = self._total, self._width
        while self._find_cut():
            self._delete_oldest()
        if self._width == width:
            return None
        evidence, change_seq = self._locate_change(total - self._total, width - self._width)
        if evidence["error_after"] <= evidence["error_before"]:
            return None
        self._reset()
        return Signal(level="drift", seq=seq, change_seq=change_seq, evidence=evidence)

    def _insert(self, error: float) -> None:
        self._n += 1
        self._add_bucket(0, error, 0.0)
        self._n_max_buckets = max(self._n_max_buckets, self._n_buckets)
        self._width += 1
        if self._width > 1:
            distance = error - self._total / (self._width - 1)
            self._variance += (self._width - 1) * distance * distance / self._width
        self._total += error
        level = 0
        while len(self._levels[level][0]) > MAX_BUCKETS:
            totals, variances = self._levels[level]
            size = 2**level
            distance = totals[0] / size - totals[1] / size
            within = size * size * distance * distance / (size * 2)
            self._add_bucket(level + 1, totals[0] + totals[1], variances[0] + variances[1] + within)
            del totals[:2], variances[:2]
            level += 1

    def _add_bucket(self, level: int, total: float, variance: float) -> None:
        if level == len(self._levels):
            self._levels.append(([], []))
        self._levels[level][0].append(total)
        self._levels[level][1].append(variance)
        self._n_buckets += 1

    def _find_cut(self) -> bool:
        """Whether the window differs before and after some bucket by more than its bound."""
        confidence = math.log(2 * math.log(self._width) / self.params.adwin_delta)
        scale = 2 * (self._variance / self._width) * confidence
        n_old, n_new, old, new = 0, self._width, 0.0, self._total
        for level in range(len(self._levels) - 1, -1, -1):
            size = 2**level
            for total in self._levels[level][0][:-1]:
                n_old += size
                n_new -= size
                old += total
                new -= total
                if n_old <= MIN_PART or n_new <= MIN_PART:
                    continue
                distance = abs(old / n_old - new / n_new)
                spread = 1 / (n_old - MIN_PART) + 1 / (n_new - MIN_PART)
                # The first term alone is the cheaper half of the bound: a million votes in
                # bench_detectors.
                if distance * distance > spread * scale and distance > (
                    math.sqrt(spread * scale) + 2 / 3 * confidence * spread
                ):
                    return True
        return False

    def _delete_oldest(self) -> None:
        totals, variances = self._levels[-1]
        size = 2 ** (len(self._levels) - 1)
        self._width -= size
        self._total -= totals[0]
        distance = totals[0] / size - self._total / self._width
        between = size * self._width * distance * distance / (size + self._width)
        self._variance -= variances[0] + between
        del totals[0], variances[0]
        self._n_buckets -= 1
        if not totals:
            self._levels.pop()

    def _buckets(self) -> list[tuple[int, int, float]]:
        """(position of the first vote, votes, sum of errors) of every bucket, oldest first."""
        position = self._n - self._width + 1
        rows = []
        for level in range(len(self._levels) - 1, -1, -1):
            for total in self._levels[level][0]:
                rows.append((position, 2**level, total))
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
        return {
            "n": self._n,
            "total": self._total,
            "variance": self._variance,
            "width": self._width,
            "n_buckets": self._n_buckets,
            "n_max_buckets": self._n_max_buckets,
            "buckets": [[list(totals), list(variances)] for totals, variances in self._levels],
            "seq_at": [[position, seq] for position, seq in self._seq_at.items()],
        }

    @classmethod
    def from_state(cls, params: ADWINParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        detector._n, detector._width = state["n"], state["width"]
        detector._total, detector._variance = state["total"], state["variance"]
        detector._n_buckets, detector._n_max_buckets = state["n_buckets"], state["n_max_buckets"]
        detector._levels = [(list(totals), list(var)) for totals, var in state["buckets"]]
        detector._seq_at = {position: seq for position, seq in state["seq_at"]}
        return detector


def _log_likelihood(total: Floats, n: Floats) -> Floats:
    """Log likelihood of `total` errors in `n` votes at their own rate; 0 without votes."""
    rate = np.clip(total / np.maximum(n, 1), 1e-12, 1 - 1e-12)
    likelihood: Floats = total * np.log(rate) + (n - total) * np.log(1 - rate)
    return likelihood

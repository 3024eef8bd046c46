"""KSWIN: a Kolmogorov-Smirnov test of the latest errors against a sample of earlier ones."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from rlhf_pipeline.drift.base import Signal, require_error
from rlhf_pipeline.parameters import Parameters


class KSWINParams(Parameters):
    """Parameters of KSWIN."""

    kswin_alpha: float = Field(
        default=0.01, gt=0, lt=1, description="KSWIN: significance at which drift is detected"
    )
    kswin_window: int = Field(
        default=400, ge=60, description="KSWIN: votes in the window, the latest included"
    )
    kswin_latest: int = Field(
        default=100, ge=30, description="KSWIN: latest votes that are compared; at most half"
    )
    kswin_clock: int = Field(default=10, ge=1, description="KSWIN: votes between two checks")
    kswin_seed: int = Field(default=0, ge=0, description="KSWIN: seed of the samples")

    @model_validator(mode="after")
    def _check_kswin_latest(self) -> Self:
        if 2 * self.kswin_latest > self.kswin_window:
            raise ValueError("kswin_latest must be at most half of kswin_window")
        return self


class KSWIN:
    """Kolmogorov-Smirnov windowing over a stream of errors; Frouros draws and tests.

    Every `kswin_clock` votes the latest `kswin_latest` errors are compared with as many drawn from
    the rest of the window. The test is two-sided; a fall of the error rate is no signal. The change
    is dated at the first of the latest votes. KSWIN has no warnings. The samples of a check follow
    from the seed and the number of votes read, so that a restart draws the same.

    Raab, Heusinger, Schleif 2020, Reactive Soft Prototype Computing for Concept Drift Streams.

    >>> detector = KSWIN(KSWINParams())
    >>> stream = [0, 0, 0, 1] * 200 + [1, 1, 0] * 100
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> [(s.level, 800 < s.seq < 1000) for s in signals]
    [('drift', True)]
    """

    name: ClassVar[str] = "kswin"
    Params: ClassVar[type[BaseModel]] = KSWINParams

    def __init__(self, params: KSWINParams) -> None:
        self.params = params
        self._reset()

    def _reset(self) -> None:
        from frouros.detectors.concept_drift import KSWIN as Frouros
        from frouros.detectors.concept_drift import KSWINConfig

        p = self.params
        with _global_seed([p.kswin_seed]):  # its config seeds numpy's global generator
            config = KSWINConfig(
                alpha=p.kswin_alpha,
                min_num_instances=p.kswin_window,
                num_test_instances=p.kswin_latest,
            )
        self._kswin = Frouros(config=config)
        self._seqs: list[int] = []  # of the latest votes

    def update(self, value: float, seq: int) -> Signal | None:
        error, kswin, p = require_error(value, self.name, seq), self._kswin, self.params
        self._seqs = [*self._seqs[-p.kswin_latest + 1 :], seq]
        n = kswin.num_instances + 1
        if n < p.kswin_window or n % p.kswin_clock:
            kswin.window.append(error)  # a check per vote would take 0.5 ms
            kswin.num_instances = n
            return None
        with _global_seed([p.kswin_seed, n]):
            kswin.update(value=error)
        if not kswin.drift:
            return None
        kswin.drift = False
        errors = list(kswin.window)
        before, after = errors[: -p.kswin_latest], errors[-p.kswin_latest :]
        evidence = {
            "n_votes": float(n),
            "n_before": float(len(before)),
            "error_before": float(np.mean(before)),
            "error_after": float(np.mean(after)),
        }
        if evidence["error_after"] <= evidence["error_before"]:
            return None
        signal = Signal(level="drift", seq=seq, change_seq=self._seqs[0], evidence=evidence)
        self._reset()
        return signal

    def state(self) -> dict[str, Any]:
        return {
            "n": self._kswin.num_instances,
            "window": list(self._kswin.window),
            "seqs": self._seqs,
        }

    @classmethod
    def from_state(cls, params: KSWINParams, state: dict[str, Any]) -> Self:
        detector = cls(params)
        detector._kswin.num_instances = state["n"]
        detector._kswin.window.extend(state["window"])
        detector._seqs = list(state["seqs"])
        return detector


@contextmanager
def _global_seed(seed: Sequence[int]) -> Iterator[None]:
    """Seeds numpy's global generator, which Frouros draws from, and gives back its state after."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        with warnings.catch_warnings():
            # where SciPy's exact p-value overflows, it warns and takes the asymptotic one
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        np.random.set_state(before)

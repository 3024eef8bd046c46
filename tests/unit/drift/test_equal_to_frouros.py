"""DDM, ADWIN and HDDM-A signal at the votes at which Frouros' detectors signal."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from frouros.detectors import concept_drift as frouros

from rlhf_pipeline.drift.adwin import ADWIN
from rlhf_pipeline.drift.ddm import DDM
from rlhf_pipeline.drift.hddm_a import HDDMA

Levels = list[tuple[int, str]]


def ddm() -> Any:
    return frouros.DDM(frouros.DDMConfig(min_num_instances=100))


def hddm_a() -> Any:
    p = HDDMA.Params()
    return frouros.HDDMA(
        frouros.HDDMAConfig(
            alpha_d=p.hddm_a_drift_alpha,
            alpha_w=p.hddm_a_warning_alpha,
            min_num_instances=p.hddm_a_min_votes,
        )
    )


def adwin() -> Any:
    return frouros.ADWIN(frouros.ADWINConfig(clock=8, delta=0.1, min_num_instances=30))


def statistical_signals(make: Callable[[], Any], errors: Sequence[float]) -> Iterator[Any]:
    """Votes of Frouros' warnings (where they begin) and drifts; a new detector after a drift."""
    detector, warned = make(), False
    for i, error in enumerate(errors):
        detector.update(value=error)
        if detector.drift:
            yield i, "drift"
            detector, warned = make(), False
        else:
            if detector.warning and not warned:
                yield i, "warning"
            warned = detector.warning


def window_signals(errors: Sequence[float]) -> Iterator[Any]:
    """Votes at which Frouros' ADWIN cut a window whose newer part has more errors: those are the
    signals after which ours starts afresh.
    """
    ours, theirs = ADWIN(ADWIN.Params()), adwin()
    for i, error in enumerate(errors):
        signal = ours.update(error, i)
        with np.errstate(divide="ignore", invalid="ignore"):
            theirs.update(value=error)
        if signal is not None:
            yield theirs.drift
            theirs = adwin()
        else:
            theirs.drift = False
            state = ours.state()
            yield (state["width"], state["n_buckets"]) == (theirs.width, theirs.num_buckets)
            yield state["total"] == theirs.total
            yield state["variance"] == pytest.approx(theirs.variance, rel=1e-9, abs=1e-9)


def draw_streams(n: int) -> Iterator[list[float]]:
    """Streams of 0 and 1, or of shares, whose rate changes up to three times."""
    for seed in range(n):
        rng = np.random.default_rng(seed)
        stretches = [(rng.integers(40, 250), rng.uniform(0.05, 0.7)) for _ in range(3)]
        chances = np.concatenate([np.full(length, rate) for length, rate in stretches])
        errors = (rng.random(len(chances)) < chances).astype(float)
        if seed % 4 == 0:  # shares of a comparison's votes
            errors = np.clip(errors * 0.8 + rng.integers(0, 4, len(errors)) / 15, 0, 1)
        yield errors.tolist()


@pytest.mark.parametrize(("kind", "make"), [(DDM, ddm), (HDDMA, hddm_a)])
def test_warnings_and_drifts_are_those_of_frouros(kind: Any, make: Callable[[], Any]) -> None:
    n_signals = 0
    for errors in draw_streams(200):
        detector = kind(kind.Params())
        ours: Levels = [
            (i, signal.level)
            for i, error in enumerate(errors)
            if (signal := detector.update(error, i))
        ]
        assert ours == list(statistical_signals(make, errors))
        n_signals += len(ours)
    assert n_signals > 200


def test_windows_and_cuts_are_those_of_frouros() -> None:
    for errors in draw_streams(200):
        assert all(window_signals(errors))

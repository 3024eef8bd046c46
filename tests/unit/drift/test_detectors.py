"""Detectors: what they find, that they restart exactly, what they refuse."""

import json
from itertools import pairwise

import numpy as np
import pytest

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.base import Signal, params_hash
from rlhf_pipeline.drift.stream import DetectorParams
from rlhf_pipeline.errors import InvalidScores

PARAMS = DetectorParams()
EVERY_DETECTOR = pytest.mark.parametrize("name", DETECTORS)


def bernoulli(seed: int, *stretches: tuple[int, float]) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(rng.random() < p) for n, p in stretches for _ in range(n)]


def run(detector, stream: list[int], first: int = 0) -> list[Signal]:
    """Seqs are 3, 6, 9 …: a detector may not take positions for seqs."""
    return [s for i, e in enumerate(stream, start=first) if (s := detector.update(e, 3 * i + 3))]


def drifts(signals: list[Signal]) -> list[Signal]:
    return [s for s in signals if s.level == "drift"]


@EVERY_DETECTOR
@pytest.mark.parametrize("seed", range(25))
def test_a_restored_state_gives_the_alarms_of_an_uninterrupted_run(name, seed):
    """Stretches rise and fall, so that alarms, warnings, resets and silent cuts all lie around the
    interruptions.
    """
    stream = bernoulli(seed, (300, 0.25), (250, 0.5), (250, 0.2), (200, 0.6))
    uninterrupted = run(DETECTORS[name](PARAMS), stream)
    cuts = sorted(
        {
            0,
            len(stream),
            *np.random.default_rng([seed, 1]).integers(0, len(stream), size=12).tolist(),
        }
    )
    detector, signals = DETECTORS[name](PARAMS), []
    for start, end in pairwise(cuts):
        signals += run(detector, stream[start:end], first=start)
        saved = json.dumps(detector.state(), allow_nan=False)
        detector = DETECTORS[name].from_state(PARAMS, json.loads(saved))
        assert json.dumps(detector.state(), allow_nan=False) == saved
    assert signals == uninterrupted
    assert drifts(uninterrupted)


@EVERY_DETECTOR
def test_a_rise_is_found_after_it_happens_and_dated_near_it(name):
    found = [
        drifts(run(DETECTORS[name](PARAMS), bernoulli(seed, (1000, 0.25), (500, 0.55))))
        for seed in range(20)
    ]
    after = [next((s for s in signals if s.seq > 3000), None) for signals in found]
    assert all(after)
    delays = [(s.seq - 3000) / 3 for s in after]
    assert np.median(delays) < 200
    assert abs(np.median([(s.change_seq - 3000) / 3 for s in after])) < 80
    assert all(s.change_seq <= s.seq for s in after)


@EVERY_DETECTOR
def test_a_detector_alone_is_quiet_on_most_stationary_streams(name):
    """One detector alone may err; benchmarks/bench_detectors.py has the rates alone and
    together.
    """
    early = [
        bool(drifts(run(DETECTORS[name](PARAMS), bernoulli(seed, (1000, 0.25)))))
        for seed in range(20)
    ]
    assert sum(early) <= 6


@EVERY_DETECTOR
def test_a_falling_error_rate_is_no_drift(name):
    for seed in range(5):
        assert not drifts(run(DETECTORS[name](PARAMS), bernoulli(seed, (400, 0.7), (400, 0.3))))


@EVERY_DETECTOR
def test_a_detector_starts_afresh_after_drift(name):
    detector, fresh = DETECTORS[name](PARAMS), DETECTORS[name](PARAMS).state()
    for seq, error in enumerate(bernoulli(3, (600, 0.15), (1200, 0.6))):
        signal = detector.update(error, seq)
        if signal is not None and signal.level == "drift":
            break
    assert detector.state() == fresh


@EVERY_DETECTOR
@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), True, np.bool_(True), None, "1", -0.1, 1.5]
)
def test_what_is_no_error_is_refused_with_its_vote(name, bad):
    detector = DETECTORS[name](PARAMS)
    with pytest.raises(InvalidScores, match="vote 17"):
        detector.update(bad, 17)


@EVERY_DETECTOR
@pytest.mark.parametrize("constant", [0, 1])
def test_a_stream_of_one_class_gives_no_drift(name, constant):
    assert not drifts(run(DETECTORS[name](PARAMS), [constant] * 500))


@EVERY_DETECTOR
def test_a_warning_is_told_once_where_it_begins(name):
    signals = run(DETECTORS[name](PARAMS), bernoulli(0, (500, 0.25), (300, 0.5)))
    warnings = [s for s in signals if s.level == "warning"]
    assert len({s.seq for s in warnings}) == len(warnings)
    for drift in drifts(signals):
        if name != "adwin":
            assert drift.change_seq in {s.seq for s in warnings} | {drift.seq}


def test_the_hash_of_a_detector_ignores_the_knobs_of_the_others():
    changed = DetectorParams(adwin_delta=0.01)
    same = {
        name
        for name, kind in DETECTORS.items()
        if params_hash(kind(PARAMS)) == params_hash(kind(changed))
    }
    assert same == {"ddm", "hddm_a"}
    assert len({params_hash(kind(PARAMS)) for kind in DETECTORS.values()}) == len(DETECTORS)


def test_adwin_equals_frouros_where_the_error_rises_once():
    """Same arithmetic, only dated and reset by us: the first alarm is Frouros' own."""
    from frouros.detectors.concept_drift import ADWIN, ADWINConfig

    config = ADWINConfig(
        clock=PARAMS.adwin_clock, delta=PARAMS.adwin_delta, min_num_instances=PARAMS.adwin_min_votes
    )
    compared = 0
    for seed in range(10):
        stream = bernoulli(seed, (400, 0.2), (300, 0.6))
        theirs = ADWIN(config=config)
        with np.errstate(all="ignore"):
            first = next(
                i for i, e in enumerate(stream) if (theirs.update(value=e), theirs.drift)[1]
            )
        if first > 400:  # an earlier cut may have been a fall, which we pass over
            compared += 1
            assert drifts(run(DETECTORS["adwin"](PARAMS), stream))[0].seq == 3 * first + 3
    assert compared >= 5

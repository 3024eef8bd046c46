"""Shipped detectors: they keep the promises, find a rise early, and date it well."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.base import params_hash
from rlhf_pipeline.drift.report import DriftParams
from rlhf_pipeline.plugins import select_params
from rlhf_pipeline.testing import check_detector
from rlhf_pipeline.testing.drift import draw_errors, find_drifts, read_errors

EVERY_DETECTOR = pytest.mark.parametrize("name", DETECTORS)


def make(name: str):
    return DETECTORS[name](DETECTORS[name].Params())


@EVERY_DETECTOR
def test_a_detector_keeps_the_promises(name):
    check_detector(DETECTORS[name])


@EVERY_DETECTOR
def test_a_rise_is_found_early_and_dated_near_it(name):
    found = [
        find_drifts(read_errors(make(name), draw_errors(seed, (1000, 0.25), (500, 0.55))))
        for seed in range(20)
    ]
    after = [next(s for s in signals if s.seq > 3000) for signals in found]
    assert np.median([(s.seq - 3000) / 3 for s in after]) < 200
    assert abs(np.median([(s.change_seq - 3000) / 3 for s in after])) < 80


@pytest.mark.parametrize("name", ["ddm", "hddm_a", "eddm", "rddm", "hddm_w", "ecdd"])
def test_a_change_is_dated_at_the_warning_before_it(name):
    signals = read_errors(make(name), draw_errors(0, (500, 0.25), (300, 0.5)))
    warned = {s.seq for s in signals if s.level == "warning"}
    assert all(drift.change_seq in warned | {drift.seq} for drift in find_drifts(signals))


def hashes(params: Mapping[str, Any]) -> dict[str, str]:
    given = DriftParams(**params)
    return {
        name: params_hash(kind(select_params(kind.Params, given)))
        for name, kind in DETECTORS.items()
    }


def test_the_hash_of_a_detector_ignores_the_parameters_of_others():
    before, after = hashes({}), hashes({"adwin_delta": 0.01})
    assert {name for name in DETECTORS if before[name] == after[name]} == set(DETECTORS) - {"adwin"}
    assert len(set(before.values())) == len(DETECTORS)


def test_rddm_drops_old_votes_and_restarts_exactly_around_it():
    kind = DETECTORS["rddm"]
    params = kind.Params(rddm_max_votes=300, rddm_kept_votes=100, rddm_max_warned=60)
    stream = draw_errors(0, (900, 0.25), (300, 0.4))
    whole, kept, signals, longest = kind(params), kind(params), [], 0
    for seq, error in enumerate(stream):
        signals.append(kept.update(error, seq))
        kept = kind.from_state(params, json.loads(json.dumps(kept.state())))
        assert whole.update(error, seq) == signals[-1]
        longest = max(longest, kept.state()["numbers"]["n"])
    assert 300 <= longest < 300 + 60  # while a warning lasts, nothing is dropped
    assert find_drifts([s for s in signals if s])[-1].seq > 900

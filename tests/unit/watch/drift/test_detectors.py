"""Shipped detectors: they keep the promises, find a rise early, and date it well."""

import numpy as np
import pytest

from rlhf_pipeline.simulation.testing import check_detector
from rlhf_pipeline.simulation.testing.drift import draw_votes, find_rises
from rlhf_pipeline.watch.drift import DETECTORS
from rlhf_pipeline.watch.drift.base import params_hash
from rlhf_pipeline.watch.drift.frouros_detectors import _couple

EVERY_DETECTOR = pytest.mark.parametrize("name", DETECTORS)


@EVERY_DETECTOR
def test_detector_conforms_to_the_protocol(name):
    check_detector(DETECTORS[name])


@EVERY_DETECTOR
def test_a_rise_is_found_early_and_dated_near_it(name):
    kind = DETECTORS[name]
    signals_by_seed = [
        find_rises(kind, draw_votes(seed, (1000, 0.25), (500, 0.55))) for seed in range(10)
    ]
    after = [next(s for s in signals if s.seq > 3000) for signals in signals_by_seed]
    assert np.median([(s.seq - 3000) / 3 for s in after]) < 200
    assert abs(np.median([(s.change_seq - 3000) / 3 for s in after])) < 80


def test_detectors_have_hashes_of_their_own():
    kinds = DETECTORS.values()
    assert len({params_hash(kind(kind.Params())) for kind in kinds}) == len(DETECTORS)


def test_errors_are_normalised_to_one_rate():
    rng = np.random.default_rng(1)
    votes = draw_votes(1, (20_000, 0.0))
    for p in (0.1, 0.4):
        drawn = [
            _couple(v._replace(stated=np.log(p / (1 - p)), error=float(rng.random() < p)), 0.0, 0.2)
            for v in votes
        ]
        assert np.mean(drawn) == pytest.approx(0.2, abs=0.01)

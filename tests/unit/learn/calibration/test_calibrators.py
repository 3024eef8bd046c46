"""Shipped calibrators: they keep the promises and mend overconfidence."""

import numpy as np
import pytest

from rlhf_pipeline.core.errors import ModelError
from rlhf_pipeline.learn.calibration import CALIBRATORS, binned_gap, calibrator_from_json
from rlhf_pipeline.simulation.testing import check_calibrator
from rlhf_pipeline.simulation.testing.models import draw_votes


@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrator_conforms_to_the_protocol(name):
    check_calibrator(CALIBRATORS[name])


def test_errorless_model_never_predicts_certainty():
    margins = np.random.default_rng(4).normal(0, 1, 200)
    outcomes = (margins > 0).astype(float)
    for name in ("temperature", "isotonic"):
        p = CALIBRATORS[name]().fit(margins, outcomes).transform(margins)
        assert np.isfinite(p).all()
        assert ((p > 0.5) == (margins > 0)).all()
    assert CALIBRATORS["isotonic"]().fit(margins, outcomes).transform(np.array([9.0]))[0] < 0.996


@pytest.mark.parametrize("name", ["temperature", "isotonic"])
def test_overconfidence_vanishes_on_unseen_rows(name):
    fitted = CALIBRATORS[name]().fit(*draw_votes(0))
    margins, outcomes = draw_votes(1)
    before = binned_gap(CALIBRATORS["none"]().transform(margins), outcomes)
    assert binned_gap(fitted.transform(margins), outcomes) < 0.5 * before


def test_the_temperature_of_tripled_logits_is_three():
    assert CALIBRATORS["temperature"]().fit(*draw_votes(n=20_000)).to_json()[
        "temperature"
    ] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    "state",
    [{}, {"method": "oracle"}, {"method": "temperature"}, {"method": "isotonic", "sizes": "x"}],
)
def test_invalid_stored_calibrator_is_refused(state):
    with pytest.raises(ModelError, match="again"):
        calibrator_from_json(state)

"""Shipped calibrators: they keep the promises and mend overconfidence."""

import numpy as np
import pytest

from rlhf_pipeline.calibration import CALIBRATORS, calibrator_from_json, ece_equal_mass
from rlhf_pipeline.errors import ModelError
from rlhf_pipeline.testing import check_calibrator
from rlhf_pipeline.testing.models import draw_votes


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_calibrator_keeps_the_promises(name):
    check_calibrator(CALIBRATORS[name])


def test_a_model_that_is_always_right_stays_short_of_certainty():
    margins = np.random.default_rng(4).normal(0, 1, 200)
    outcomes = (margins > 0).astype(float)
    for name in ("temperature", "platt", "beta", "isotonic"):
        p = CALIBRATORS[name]().fit(margins, outcomes).transform(margins)
        assert np.isfinite(p).all()
        assert ((p > 0.5) == (margins > 0)).all()
    assert CALIBRATORS["isotonic"]().fit(margins, outcomes).transform(np.array([9.0]))[0] < 0.996


@pytest.mark.parametrize("name", ["temperature", "platt", "beta", "isotonic"])
def test_overconfidence_goes_on_rows_not_fitted_on(name):
    fitted = CALIBRATORS[name]().fit(*draw_votes(0))
    margins, outcomes = draw_votes(1)
    before = ece_equal_mass(CALIBRATORS["none"]().transform(margins), outcomes)
    assert ece_equal_mass(fitted.transform(margins), outcomes) < 0.5 * before


def test_the_temperature_of_tripled_logits_is_three():
    assert CALIBRATORS["temperature"]().fit(*draw_votes(n=20_000)).to_json()[
        "temperature"
    ] == pytest.approx(3, rel=0.05)


def test_a_map_that_one_temperature_cannot_undo_is_undone_by_two_slopes():
    rng = np.random.default_rng(6)
    margins = rng.normal(0, 2, 20_000)
    true_logits = 1.2 * np.tanh(margins)  # confidence saturates
    outcomes = (rng.random(20_000) < 1 / (1 + np.exp(-true_logits))).astype(float)
    error = {
        name: np.abs(
            CALIBRATORS[name]().fit(margins, outcomes).transform(margins)
            - 1 / (1 + np.exp(-true_logits))
        ).mean()
        for name in ("temperature", "platt", "beta")
    }
    assert max(error["platt"], error["beta"]) < 0.5 * error["temperature"]


def test_beta_with_equal_slopes_is_a_temperature():
    margins = np.linspace(-8, 8, 101)
    beta = calibrator_from_json({"method": "beta", "gain": 0.5, "loss": 0.5})
    assert beta.transform(margins) == pytest.approx(
        calibrator_from_json({"method": "temperature", "temperature": 2.0}).transform(margins)
    )


def test_beta_finds_the_slopes_that_made_the_votes():
    rng = np.random.default_rng(8)
    margins = rng.normal(0, 3, 40_000)
    truth = calibrator_from_json({"method": "beta", "gain": 2.0, "loss": 0.4})
    outcomes = (rng.random(40_000) < truth.transform(margins)).astype(float)
    learnt = CALIBRATORS["beta"]().fit(margins, outcomes).to_json()
    assert (learnt["gain"], learnt["loss"]) == (
        pytest.approx(2.0, abs=0.15),
        pytest.approx(0.4, abs=0.05),
    )


@pytest.mark.parametrize(
    "state",
    [{}, {"method": "oracle"}, {"method": "temperature"}, {"method": "isotonic", "sizes": "x"}],
)
def test_a_stored_calibrator_that_makes_no_sense_is_refused(state):
    with pytest.raises(ModelError, match="again"):
        calibrator_from_json(state)

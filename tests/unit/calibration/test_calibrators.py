import json

import numpy as np
import pytest

from rlhf_pipeline.calibration import CALIBRATORS, calibrator_from_json, ece_equal_mass
from rlhf_pipeline.errors import InvalidScores, ModelError, NotEnoughData

EDGES = np.array([0.0, -0.0, 1e-300, 1e-9, 0.3, 5.0, 37.0, 710.0, 1e6])


def world(seed: int = 0, n: int = 2000, sharpen: float = 3.0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.2, n)
    return sharpen * logits, (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)


@pytest.fixture(params=list(CALIBRATORS))
def method(request):
    return CALIBRATORS[request.param]


def test_both_probabilities_of_a_pair_sum_to_one_exactly(method):
    margins = np.concatenate([np.random.default_rng(1).normal(0, 4, 5000), EDGES])
    fitted = method().fit(*world())
    assert (fitted.transform(margins) + fitted.transform(-margins) == 1.0).all()


def test_calling_the_sides_the_other_way_round_changes_nothing(method):
    margins, outcomes = world(n=300)
    flip = np.random.default_rng(2).random(300) < 0.5
    one = method().fit(margins, outcomes)
    two = method().fit(np.where(flip, -margins, margins), np.where(flip, 1 - outcomes, outcomes))
    grid = np.linspace(-8, 8, 41)
    np.testing.assert_allclose(one.transform(grid), two.transform(grid), atol=1e-6)


def test_pairs_are_never_reordered(method):
    grid = np.linspace(-30, 30, 2001)
    assert (np.diff(method().fit(*world(n=200)).transform(grid)) >= 0).all()


def test_json_brings_it_back_unchanged(method):
    fitted = method().fit(*world())
    again = calibrator_from_json(json.loads(json.dumps(fitted.to_json())))
    grid = np.linspace(-5, 5, 101)
    np.testing.assert_array_equal(again.transform(grid), fitted.transform(grid))


def test_weights_are_votes(method):
    margins, outcomes = world(n=100)
    weights = np.random.default_rng(3).integers(1, 4, 100)
    weighted = method().fit(margins, outcomes, weights.astype(float))
    repeated = method().fit(np.repeat(margins, weights), np.repeat(outcomes, weights))
    grid = np.linspace(-5, 5, 21)
    np.testing.assert_allclose(weighted.transform(grid), repeated.transform(grid), atol=0.02)


def test_one_class_of_outcomes_is_not_enough(method):
    with pytest.raises(NotEnoughData, match="prefer side a"):
        method().fit(np.linspace(-1, 1, 50), np.ones(50))


def test_too_few_rows_are_not_enough(method):
    with pytest.raises(NotEnoughData, match="9 rows"):
        method().fit(np.linspace(-1, 1, 9), np.arange(9) % 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinite_margins_are_refused(method, bad):
    margins, outcomes = world(n=50)
    margins[7] = bad
    with pytest.raises(InvalidScores, match="row 7"):
        method().fit(margins, outcomes)
    with pytest.raises(InvalidScores, match="row 7"):
        method().transform(margins)


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
    fitted = CALIBRATORS[name]().fit(*world(0))
    margins, outcomes = world(1)
    before = ece_equal_mass(CALIBRATORS["none"]().transform(margins), outcomes)
    assert ece_equal_mass(fitted.transform(margins), outcomes) < 0.5 * before


def test_the_temperature_of_tripled_logits_is_three():
    assert CALIBRATORS["temperature"]().fit(*world(n=20_000)).to_json()[
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

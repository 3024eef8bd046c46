import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rlhf_pipeline.errors import ModelError
from rlhf_pipeline.reward_model import (
    LearningData,
    fit_reward_model,
    load_reward_model,
    reward_model_params,
)
from rlhf_pipeline.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.reward_model.evaluation import (
    fit_length_slope,
    log_lengths,
    measure_length_effect,
)
from tests.unit.reward_model.word_pairs import WordEncoder, make_pairs

FEW = {"l2_grid": [0.03], "context_penalty_grid": [3.0]}


def longer_wins(n: int = 500, share: float = 0.9):
    """The chosen completion of nearly every pair is padded; what it says is liked as well."""
    rng = np.random.default_rng(0)
    pairs = make_pairs(n)
    longer = rng.random(n) < share
    pad = np.array([" very" * int(k) for k in rng.integers(5, 40, n)])
    return pairs.assign(
        chosen=np.where(longer, pairs["chosen"] + pad, pairs["chosen"]),
        rejected=np.where(longer, pairs["rejected"], pairs["rejected"] + pad),
    )


def test_the_slope_is_that_of_a_line_through_the_origin():
    gaps = np.array([1.0, -2.0, 0.5])
    assert fit_length_slope(3 * gaps, gaps) == pytest.approx(3.0)
    assert fit_length_slope(3 * gaps, gaps, np.array([1.0, 0.0, 2.0])) == pytest.approx(3.0)
    assert fit_length_slope(np.ones(3), np.zeros(3)) == 0.0
    assert log_lengths(["", "abc"]).tolist() == [0.0, pytest.approx(np.log(4))]


def test_the_length_effect_is_removed_in_either_direction():
    rng = np.random.default_rng(1)
    gaps = rng.normal(size=500)
    rest = rng.normal(size=500)
    turned = rng.random(500) < 0.5
    margins = 2 * gaps + rest
    before = measure_length_effect(margins, gaps, turned, 2.0, is_debiased=False)
    after = measure_length_effect(margins - 2 * gaps, gaps, turned, 2.0, is_debiased=True)
    assert before.correlation_before == pytest.approx(after.correlation_before)
    assert before.correlation_before > 0.8
    assert abs(before.correlation_after) < 0.1
    assert (before.accuracy_before, before.accuracy_after) == (
        after.accuracy_before,
        after.accuracy_after,
    )


def test_texts_of_equal_length_have_no_correlation():
    effect = measure_length_effect(
        np.ones(3), np.zeros(3), np.zeros(3, dtype=bool), 0.0, is_debiased=False
    )
    assert effect.correlation_before is None


def test_debiasing_shows_its_effect_and_keeps_what_people_like():
    pairs = longer_wins(900)
    biased, debiased = (
        fit_reward_model(
            LearningData(pairs), reward_model_params(debias_length=on, **FEW), encoder=WordEncoder()
        )
        for on in (False, True)
    )
    one, two = biased.report.length, debiased.report.length
    assert (one.is_debiased, two.is_debiased) == (False, True)
    assert one.slope == pytest.approx(two.slope)
    assert one.correlation_before == pytest.approx(two.correlation_before)
    assert one.correlation_after == pytest.approx(two.correlation_after)
    assert two.correlation_before > 0.7
    assert abs(two.correlation_after) < 0.2
    assert two.accuracy_before == biased.report.test.accuracy.value
    assert two.accuracy_after == debiased.report.test.accuracy.value
    kind, curt = debiased.model.score(["q"] * 2, ["kind", "curt"])
    assert kind > curt
    short, padded = debiased.model.score(["q"] * 2, ["kind", "kind" + " very" * 30])
    of_biased = biased.model.score(["q"] * 2, ["kind", "kind" + " very" * 30])
    assert padded - short < 0.5 * (of_biased[1] - of_biased[0])


def test_the_slope_is_saved_with_a_debiased_model_and_refused_when_missing(tmp_path):
    model = EmbeddingRewardModel(EmbeddingParams(debias_length=True, **FEW), WordEncoder()).fit(
        longer_wins(200)
    )
    model.save(tmp_path)
    loaded = load_reward_model(tmp_path, encoder=WordEncoder())
    np.testing.assert_array_equal(
        loaded.score(["q"], ["kind very very"]), model.score(["q"], ["kind very very"])
    )
    parts = load_file(tmp_path / "model.safetensors")
    del parts["length_slope"]
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="lacks length_slope"):
        load_reward_model(tmp_path, encoder=WordEncoder())

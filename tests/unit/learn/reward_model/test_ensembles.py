import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from rlhf_pipeline.core.errors import InvalidScores, ModelError
from rlhf_pipeline.learn.reward_model import disagreement, load_reward_model
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs

FEW = {"l2_grid": [0.1], "context_penalty_grid": [3.0]}
FOUR = EmbeddingParams(n_members=4, **FEW)


@pytest.fixture(scope="module")
def ensemble() -> EmbeddingRewardModel:
    return EmbeddingRewardModel(FOUR, WordEncoder()).fit(make_pairs())


def test_the_score_is_the_mean_of_the_members_and_they_differ(ensemble):
    model, texts = ensemble, make_pairs(40, seed=1)["chosen"].tolist()
    each = model.member_scores(texts, texts)
    assert each.shape == (FOUR.n_members, 40)
    np.testing.assert_allclose(model.score(texts, texts), each.mean(axis=0))
    assert each.std(axis=0).min() > 1e-4
    assert model.member_scores([], []).shape == (FOUR.n_members, 0)


def test_an_ensemble_depends_on_pairs_and_seed_only(ensemble):
    again = EmbeddingRewardModel(FOUR, WordEncoder()).fit(
        make_pairs().sample(frac=1, random_state=3)
    )
    assert again.weights_hash == ensemble.weights_hash
    other = EmbeddingRewardModel(FOUR.model_copy(update={"seed": 1}), WordEncoder()).fit(
        make_pairs()
    )
    assert other.weights_hash != again.weights_hash


def test_disagreement_is_symmetric_and_zero_for_identical_texts(ensemble):
    model, texts = ensemble, make_pairs(60, seed=2)
    prompts, a, b = (texts[name].tolist() for name in ("prompt", "chosen", "rejected"))
    doubts = disagreement(model, prompts, a, b)
    assert (doubts > 0).all()
    assert (doubts <= 0.5).all()
    np.testing.assert_allclose(doubts, disagreement(model, prompts, b, a))
    assert disagreement(model, ["q"], ["kind right"], ["kind right"])[0] == 0.0


def test_members_disagree_more_where_data_is_sparse():
    """Nobody cares for `warm`, which stands in hundreds of pairs, nor for `cold`, which stands in
    eight.
    """
    others = ["kind long", "curt short", "vague right", "sourced wrong"] * 5
    ratios = []
    for seed in range(4):
        pairs = make_pairs(800, seed=seed)
        has_cold = (pairs["chosen"] + " " + pairs["rejected"]).str.contains("cold")
        uneven = pd.concat([pairs[~has_cold], pairs[has_cold].head(8)], ignore_index=True)
        model = EmbeddingRewardModel(FOUR.model_copy(update={"n_members": 20}), WordEncoder()).fit(
            uneven
        )
        often, rarely = (
            disagreement(model, ["q"] * 20, [f"{text} {word}" for text in others], others)
            for word in ("warm", "cold")
        )
        ratios.append(rarely.mean() / often.mean())
    assert min(ratios) > 1.1
    assert np.mean(ratios) > 1.4


def test_one_member_alone_has_no_disagreement():
    model = EmbeddingRewardModel(EmbeddingParams(**FEW), WordEncoder()).fit(make_pairs(100))
    with pytest.raises(ModelError, match="n_members"):
        disagreement(model, ["q"], ["kind"], ["curt"])


@pytest.mark.parametrize("part", ["head", "score_mean", "feature_std"])
def test_weights_that_are_nan_are_refused(ensemble, tmp_path, part):
    ensemble.save(tmp_path)
    parts = load_file(tmp_path / "model.safetensors")
    parts[part].flat[0] = np.nan
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(InvalidScores, match=part):
        load_reward_model(tmp_path, encoder=WordEncoder())

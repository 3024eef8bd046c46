import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file
from threadpoolctl import threadpool_info, threadpool_limits

from rlhf_pipeline.errors import InvalidScores, ModelError, ModelHashMismatch
from rlhf_pipeline.reward_model import disagreement, load_reward_model
from rlhf_pipeline.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.reward_model.heads import HIDDEN_PARTS, HeadProblem, fit_head
from rlhf_pipeline.reward_model.losses import Targets
from tests.unit.reward_model.word_pairs import WORDS, WordEncoder, make_pairs

FEW = {"l2_grid": [0.1], "context_penalty_grid": [3.0]}
KINDS = {
    "linear": EmbeddingParams(n_members=4, **FEW),
    "mlp": EmbeddingParams(head="mlp", hidden=8, n_members=3, mlp_epochs=6, **FEW),
}


@pytest.fixture(scope="module")
def ensembles() -> dict[str, EmbeddingRewardModel]:
    return {
        name: EmbeddingRewardModel(params, WordEncoder()).fit(make_pairs())
        for name, params in KINDS.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_the_mean_of_the_members_and_they_differ(ensembles, kind):
    model, texts = ensembles[kind], make_pairs(40, seed=1)["chosen"].tolist()
    each = model.member_scores(texts, texts)
    assert each.shape == (KINDS[kind].n_members, 40)
    np.testing.assert_allclose(model.score(texts, texts), each.mean(axis=0))
    assert each.std(axis=0).min() > 1e-4
    assert model.member_scores([], []).shape == (KINDS[kind].n_members, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_depends_on_pairs_and_seed_only(ensembles, kind):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = EmbeddingRewardModel(KINDS[kind], WordEncoder()).fit(
            make_pairs().sample(frac=1, random_state=3)
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert again.weights_hash == ensembles[kind].weights_hash
    other = EmbeddingRewardModel(KINDS[kind].model_copy(update={"seed": 1}), WordEncoder()).fit(
        make_pairs()
    )
    assert other.weights_hash != again.weights_hash


def test_the_threads_of_linear_algebra_show_in_the_last_digits_alone():
    """Of enough pairs that it uses them: sums are then split differently."""
    rng = np.random.default_rng(0)
    differences = rng.normal(size=(3000, 400))
    problem = HeadProblem(differences, Targets(rng.random(3000)), np.ones(3000), np.ones(400))
    found = []
    for n in (1, 2):
        with threadpool_limits(n, user_api="blas"):
            assert {
                pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"
            } == {n}
            found.append(fit_head(problem, 0.1)[0].weights)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
    assert np.abs(found[0]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_is_saved_whole(ensembles, kind, tmp_path):
    model = ensembles[kind]
    model.save(tmp_path)
    loaded = load_reward_model(tmp_path, encoder=WordEncoder())
    assert loaded.weights_hash == model.weights_hash
    np.testing.assert_array_equal(
        loaded.member_scores(["q"] * 2, WORDS[:2]), model.member_scores(["q"] * 2, WORDS[:2])
    )


def test_disagreement_is_symmetric_and_zero_for_identical_texts(ensembles):
    model, texts = ensembles["linear"], make_pairs(60, seed=2)
    prompts, a, b = (texts[name].tolist() for name in ("prompt", "chosen", "rejected"))
    apart = disagreement(model, prompts, a, b)
    assert (apart > 0).all()
    assert (apart <= 0.5).all()
    np.testing.assert_allclose(apart, disagreement(model, prompts, b, a))
    assert disagreement(model, ["q"], ["kind right"], ["kind right"])[0] == 0.0


def test_members_disagree_more_about_what_few_pairs_taught():
    """Nobody cares for `warm`, which stands in hundreds of pairs, nor for `cold`, which stands in
    eight.
    """
    others = ["kind long", "curt short", "vague right", "sourced wrong"] * 5
    ratios = []
    for seed in range(4):
        pairs = make_pairs(800, seed=seed)
        has_cold = (pairs["chosen"] + " " + pairs["rejected"]).str.contains("cold")
        kept = pd.concat([pairs[~has_cold], pairs[has_cold].head(8)], ignore_index=True)
        model = EmbeddingRewardModel(
            KINDS["linear"].model_copy(update={"n_members": 20}), WordEncoder()
        ).fit(kept)
        often, rarely = (
            disagreement(model, ["q"] * 20, [f"{text} {word}" for text in others], others)
            for word in ("warm", "cold")
        )
        ratios.append(rarely.mean() / often.mean())
    assert min(ratios) > 1.1
    assert np.mean(ratios) > 1.4


def test_members_with_fewer_pairs_disagree_more():
    few, many = (
        EmbeddingRewardModel(KINDS["linear"], WordEncoder()).fit(make_pairs(n)) for n in (80, 1200)
    )
    texts = make_pairs(100, seed=5)
    of = [
        disagreement(
            m, texts["prompt"].tolist(), texts["chosen"].tolist(), texts["rejected"].tolist()
        ).mean()
        for m in (few, many)
    ]
    assert of[0] > 1.5 * of[1]


def test_one_member_alone_has_no_disagreement():
    model = EmbeddingRewardModel(EmbeddingParams(**FEW), WordEncoder()).fit(make_pairs(100))
    with pytest.raises(ModelError, match="n_members"):
        disagreement(model, ["q"], ["kind"], ["curt"])


def test_a_hidden_layer_finds_what_no_linear_head_can():
    """People like what is either kind or warm, and not both; all texts are of one length."""
    rng = np.random.default_rng(1)

    def drawn(n: int, *liked: str) -> list[str]:
        return [f"{rng.choice(liked)} {rng.integers(1000, 10_000)}" for _ in range(n)]

    pairs = make_pairs(600, n_votes=1)
    chosen, rejected = drawn(600, "kind cold", "curt warm"), drawn(600, "kind warm", "curt cold")
    pairs = pairs.assign(chosen=chosen, rejected=rejected, prompt="ask", agreement=1.0)
    good, bad = drawn(100, "kind cold", "curt warm"), drawn(100, "kind warm", "curt cold")
    right = {}
    for head in ("linear", "mlp"):
        params = EmbeddingParams(head=head, hidden=16, mlp_learning_rate=0.01, **FEW)
        model = EmbeddingRewardModel(params, WordEncoder()).fit(pairs)
        right[head] = (model.score(["ask"] * 100, good) > model.score(["ask"] * 100, bad)).mean()
    assert right["mlp"] > 0.95
    assert right["linear"] < 0.7


@pytest.mark.parametrize("part", HIDDEN_PARTS)
def test_an_incomplete_hidden_layer_is_refused(ensembles, tmp_path, part):
    ensembles["mlp"].save(tmp_path)
    parts = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: value for name, value in parts.items() if name != part},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelError, match=f"lacks {part}"):
        load_reward_model(tmp_path, encoder=WordEncoder())
    save_file(parts | {part: parts[part][:1]}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="shapes"):
        load_reward_model(tmp_path, encoder=WordEncoder())


@pytest.mark.parametrize("part", ["head", "score_mean", "feature_std"])
def test_weights_that_are_nan_are_refused(ensembles, tmp_path, part):
    ensembles["linear"].save(tmp_path)
    parts = load_file(tmp_path / "model.safetensors")
    parts[part].flat[0] = np.nan
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(InvalidScores, match=part):
        load_reward_model(tmp_path, encoder=WordEncoder())


def test_a_member_that_was_exchanged_is_refused(ensembles, tmp_path):
    ensembles["linear"].save(tmp_path)
    parts = load_file(tmp_path / "model.safetensors")
    parts["head"] = np.ascontiguousarray(parts["head"][::-1])
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(ModelHashMismatch, match="weights"):
        load_reward_model(tmp_path, encoder=WordEncoder())

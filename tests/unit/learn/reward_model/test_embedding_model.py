import json

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from rlhf_pipeline.core.errors import (
    ConfigurationError,
    InvalidScores,
    ModelError,
    ModelHashMismatch,
    NotEnoughData,
)
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.learn.reward_model import (
    REWARD_MODELS,
    load_reward_model,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.learn.reward_model.training import LearningData, fit_reward_model
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs


@pytest.fixture(scope="module")
def fitted() -> EmbeddingRewardModel:
    return EmbeddingRewardModel(EmbeddingParams(), WordEncoder()).fit(make_pairs())


def test_embedding_model_learns_preferences(fitted):
    scores = fitted.score(["ask"] * 3, ["kind right", "curt right", "curt wrong"])
    assert scores[0] > scores[1] + 1
    assert scores[1] > scores[2]


def test_training_scores_are_centred_and_standardised(fitted):
    pairs = make_pairs()
    prompts = [*pairs["prompt"], *pairs["prompt"]]
    scores = fitted.score(prompts, [*pairs["chosen"], *pairs["rejected"]])
    assert abs(scores.mean()) < 1e-9
    assert fitted.standardise(scores).std() == pytest.approx(1.0)


def test_warm_start_converges_in_fewer_steps(fitted):
    more = make_pairs(600, seed=1)
    cold = EmbeddingRewardModel(EmbeddingParams(), WordEncoder()).fit(more)
    warm = EmbeddingRewardModel(EmbeddingParams(), WordEncoder()).fit(more, warm_start=fitted)
    texts = more["chosen"].tolist()
    np.testing.assert_allclose(cold.score(texts, texts), warm.score(texts, texts), atol=1e-4)
    assert cold.l2_ == warm.l2_
    assert warm.loss_curve_[0] < cold.loss_curve_[0]
    same = EmbeddingRewardModel(EmbeddingParams(), WordEncoder()).fit(
        make_pairs(), warm_start=fitted
    )
    assert len(same.loss_curve_) < len(fitted.loss_curve_)


def test_scoring_one_at_a_time_equals_scoring_together(fitted):
    texts = make_pairs()["chosen"].tolist()[:8]
    together = fitted.score(["ask"] * 8, texts)
    alone = [fitted.score(["ask"], [text])[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-9)
    assert fitted.score([], []).shape == (0,)


def test_a_wrong_encoder_is_refused(fitted, tmp_path):
    fitted.save(tmp_path)
    with pytest.raises(ModelHashMismatch, match="fitted on encoder word-encoder"):
        load_reward_model(tmp_path, encoder=WordEncoder("another-encoder"))


@pytest.mark.parametrize("part", ["score_mean", "score_std", "feature_mean", "feature_std", "head"])
def test_a_model_without_its_normalisation_is_refused(fitted, tmp_path, part):
    fitted.save(tmp_path)
    parts = load_file(tmp_path / "model.safetensors")
    del parts[part]
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"lacks {part}"):
        load_reward_model(tmp_path, encoder=WordEncoder())


def test_changed_weights_are_refused(fitted, tmp_path):
    fitted.save(tmp_path)
    parts = load_file(tmp_path / "model.safetensors")
    parts["head"] = parts["head"] * 1.001
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(ModelHashMismatch, match="weights"):
        load_reward_model(tmp_path, encoder=WordEncoder())


@pytest.mark.parametrize("damage", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_a_model_error(fitted, tmp_path, damage):
    fitted.save(tmp_path)
    (tmp_path / damage).write_bytes(b"half a fi")
    with pytest.raises(ModelError):
        load_reward_model(tmp_path, encoder=WordEncoder())


def test_an_unknown_kind_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"kind": "oracle"}))
    with pytest.raises(ModelError, match="oracle"):
        load_reward_model(tmp_path)
    assert {"embedding", "transformer"} <= set(REWARD_MODELS)


def test_embeddings_of_nan_never_become_scores(fitted, tmp_path):
    class BrokenEncoder(WordEncoder):
        def encode(self, texts, *, progress=None):
            return np.full((len(texts), 16), np.nan, dtype=np.float32)

    fitted.save(tmp_path)
    broken = load_reward_model(tmp_path, encoder=BrokenEncoder())
    with pytest.raises(InvalidScores, match="scores"):
        broken.score(["q"], ["text"])


def test_too_few_pairs_name_the_cure():
    with pytest.raises(NotEnoughData, match="lower min_pairs"):
        EmbeddingRewardModel(EmbeddingParams(), WordEncoder()).fit(make_pairs(10))


def test_report_beats_baselines_and_names_its_data():
    pairs = make_pairs(1500)
    fit = fit_reward_model(LearningData(pairs), reward_model_params(), encoder=WordEncoder())
    report = fit.report
    assert (report.n_train, report.n_calib, report.n_test) == tuple(
        (pairs["split"] == s).sum() for s in ("train", "calib", "test")
    )
    assert report.test.over_longer.low > 0
    assert report.test.vote_accuracy.value < report.test.accuracy.value
    assert report.max_seq == pairs["max_seq"].max()
    assert (
        report.data_hash
        == fit_reward_model(
            LearningData(pairs.iloc[::-1]), reward_model_params(), encoder=WordEncoder()
        ).report.data_hash
    )
    assert report.parent_weights_hash is None


def test_the_test_split_is_never_learnt_from():
    pairs = make_pairs(600)
    flipped = pairs.copy()
    unseen = flipped["split"] != "train"
    flipped.loc[unseen, ["chosen", "rejected"]] = pairs.loc[
        unseen, ["rejected", "chosen"]
    ].to_numpy()
    first, second = (
        fit_reward_model(LearningData(p), reward_model_params(), encoder=WordEncoder())
        for p in (pairs, flipped)
    )
    assert first.report.weights_hash == second.report.weights_hash


def test_warm_start_report_differs_by_parent_and_start_only():
    pairs = make_pairs(600)
    parent = fit_reward_model(
        LearningData(make_pairs(400, seed=2)), reward_model_params(), encoder=WordEncoder()
    ).model
    cold = fit_reward_model(
        LearningData(pairs), reward_model_params(), encoder=WordEncoder()
    ).report
    warm = fit_reward_model(
        LearningData(pairs), reward_model_params(), encoder=WordEncoder(), warm_start=parent
    ).report
    assert warm.parent_weights_hash == parent.weights_hash
    started = {"parent_weights_hash", "loss_curve", "weights_hash", "test"}
    assert cold.model_dump(exclude=started) == warm.model_dump(exclude=started)
    assert warm.test.accuracy == cold.test.accuracy
    assert warm.loss_curve[-1] == pytest.approx(cold.loss_curve[-1], abs=1e-9)


def test_votes_before_a_change_of_taste_count_less():
    before, after = make_pairs(800, seed=3, liked="kind"), make_pairs(200, seed=4, liked="sourced")
    after = after.assign(max_seq=after["max_seq"] + 10_000)
    pairs = pd.concat([before, after], ignore_index=True)
    blind = fit_reward_model(
        LearningData(pairs), reward_model_params(), encoder=WordEncoder()
    ).model
    weighted = fit_reward_model(
        LearningData(pairs, taste_changes=TasteChanges(10_000)),
        reward_model_params(weight_before_change=0.02),
        encoder=WordEncoder(),
    )
    kind, sourced = blind.score(["q"] * 2, ["kind", "sourced"])
    assert kind > sourced
    kind, sourced = weighted.model.score(["q"] * 2, ["kind", "sourced"])
    assert sourced > kind
    assert weighted.report.n_before_change == (before["split"] == "train").sum()
    assert weighted.report.test_since_change.n == (after["split"] == "test").sum()
    assert weighted.report.test_since_change.accuracy.value > weighted.report.test.accuracy.value


def test_the_weight_of_old_votes_is_chosen_on_new_ones():
    old = make_pairs(400, seed=3, liked="kind")
    for liked, is_worth_little in (("sourced", True), ("kind", False)):
        new = make_pairs(150, seed=4, liked=liked)
        pairs = pd.concat([old, new.assign(max_seq=new["max_seq"] + 10_000)], ignore_index=True)
        report = fit_reward_model(
            LearningData(pairs, taste_changes=TasteChanges(10_000)),
            reward_model_params(),
            encoder=WordEncoder(),
        ).report
        assert (report.weight_before_change < 0.1) is is_worth_little
        assert report.weights_tried[f"{report.weight_before_change:g}"] == min(
            report.weights_tried.values()
        )


def test_mixed_kinds_of_annotators_are_refused_by_default():
    pairs = pd.concat(
        [make_pairs(200, seed=5), make_pairs(200, seed=6, kind="simulated")], ignore_index=True
    )
    with pytest.raises(ConfigurationError, match="human: 200, simulated: 200"):
        fit_reward_model(LearningData(pairs), reward_model_params(), encoder=WordEncoder())
    fit_reward_model(
        LearningData(pairs), reward_model_params(allow_mixed_annotators=True), encoder=WordEncoder()
    )
    with pytest.raises(ConfigurationError, match="mixed"):
        fit_reward_model(
            LearningData(make_pairs(200, kind="mixed")),
            reward_model_params(),
            encoder=WordEncoder(),
        )


def test_two_prompts_are_two_folds() -> None:
    """As of 5,300 votes on two debates."""
    pairs = make_pairs(200)
    pairs["prompt_id"] = np.where(np.arange(200) < 100, "first", "second")
    params = EmbeddingParams(n_members=3)
    model = EmbeddingRewardModel(params, WordEncoder()).fit(pairs)
    assert len(model.summary.held_out_loss) > 1
    with pytest.raises(NotEnoughData, match="All pairs are of one prompt"):
        EmbeddingRewardModel(params, WordEncoder()).fit(pairs.assign(prompt_id="only"))

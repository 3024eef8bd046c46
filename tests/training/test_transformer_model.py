import json

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ModelError,
    ModelHashMismatch,
    NotEnoughData,
)
from rlhf_pipeline.learn.reward_model import (
    REWARD_MODELS,
    TransformerParams,
    TransformerRewardModel,
    load_reward_model,
)
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert, save_tiny_llama, word_pairs

SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 6,
    "texts_per_prompt": 6,
    "learning_rate": 3e-3,
    "epochs": 2,
    "precision": "float32",
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


def model_on(folder, **params) -> TransformerRewardModel:
    return TransformerRewardModel(
        TransformerParams(**(SMALL | params)), Encoder(folder, max_tokens=24)
    )


@pytest.fixture(scope="module")
def fitted(bert):
    return model_on(bert).fit(word_pairs())


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def accuracy(model, pairs) -> float:
    prompts = pairs["prompt"].tolist()
    right = model.score(prompts, pairs["chosen"].tolist()) > model.score(
        prompts, pairs["rejected"].tolist()
    )
    return float(right[pairs["agreement"] == 1].mean())


def test_transformer_learns_preferences_on_unseen_prompts(fitted):
    assert accuracy(fitted, word_pairs(seed=1)) > 0.9
    scores = fitted.score(["ask 3", "ask 3"], ["kind long warm cold", "curt long warm cold"])
    assert scores[0] > scores[1]


def test_causal_model_learns_preferences(llama):
    model = model_on(llama, learning_rate=5e-3, epochs=8).fit(word_pairs(24))
    assert accuracy(model, word_pairs(seed=1)) > 0.9


def test_last_token_is_read_for_any_padding(llama):
    model = model_on(llama, steps=2).fit(word_pairs())
    together = model.score(["ask 1"] * 3, ["kind", "kind warm cold", "curt right wrong long short"])
    alone = [
        model.score(["ask 1"], [text])[0]
        for text in ("kind", "kind warm cold", "curt right wrong long short")
    ]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_the_same_pairs_in_another_order_give_the_same_weights(bert, fitted):
    assert (
        model_on(bert).fit(word_pairs().sample(frac=1, random_state=3)).weights_hash
        == fitted.weights_hash
    )
    assert model_on(bert, seed=1).fit(word_pairs()).weights_hash != fitted.weights_hash


def test_each_text_is_scored_once(bert):
    model = model_on(bert, steps=2, n_members=2).fit(word_pairs())
    totals: list[int] = []

    def score(texts: list[str]) -> np.ndarray:
        return model.member_scores(
            ["ask 1"] * len(texts),
            texts,
            progress=lambda done, total, note="": totals.append(total),
        )

    first = score(["kind warm", "curt cold"])
    assert totals == [2, 2]  # once for each member
    again = score(["curt cold", "long", "kind warm"])
    assert totals == [2, 2, 1, 1]
    np.testing.assert_array_equal(again[:, [2, 0]], first)
    model.fit(word_pairs(seed=2))
    assert np.abs(score(["kind warm"]) - first[:, :1]).max() > 0
    assert score([]).shape == (2, 0)


def test_save_and_load_give_the_same_scores(fitted, saved):
    loaded = load_reward_model(saved)
    np.testing.assert_array_equal(
        loaded.score(["ask 1"], ["kind warm"]), fitted.score(["ask 1"], ["kind warm"])
    )
    assert (loaded.weights_hash, loaded.score_mean_, loaded.score_std_) == (
        fitted.weights_hash,
        fitted.score_mean_,
        fitted.score_std_,
    )
    assert loaded.records_ == fitted.records_


def changed(folder, name="head.weight", change=lambda part: part + 1):
    path = folder / "member-0.safetensors"
    parts = load_file(path)
    parts[name] = change(parts[name])
    save_file({key: part for key, part in parts.items() if part is not None}, path)


def test_weights_with_another_hash_are_refused(saved):
    changed(saved)
    with pytest.raises(ModelHashMismatch, match=r"are not those its config\.json was written for"):
        load_reward_model(saved)


def test_nan_weights_are_refused_by_name(saved):
    changed(saved, change=lambda part: part * float("nan"))
    with pytest.raises(ModelError, match=r"NaN or infinite numbers, first in head\.weight"):
        load_reward_model(saved)


def test_another_tokenizer_is_refused(saved):
    path = saved / "backbone" / "tokenizer.json"
    path.write_text(path.read_text().replace('"kind":', '"kinder":'))
    with pytest.raises(ModelHashMismatch, match="are not those that were saved"):
        load_reward_model(saved)


def test_an_ensemble_is_saved_whole(bert, tmp_path):
    model = model_on(bert, n_members=2, steps=2).fit(word_pairs())
    model.save(tmp_path)
    assert load_reward_model(tmp_path).weights_hash == model.weights_hash
    (tmp_path / "member-1.safetensors").unlink()
    with pytest.raises(ModelError, match="member-1"):
        load_reward_model(tmp_path)


def test_texts_beyond_the_window_are_cut_by_the_rule(bert, caplog):
    model = model_on(bert, max_tokens=12)  # two of them special
    prompts = ["ask 1", "1 2 3 4 5 6 7 8 9", "1 2 3 4 5 6"]
    ids = model.reader.encode(prompts, ["kind", "10 11", " ".join(map(str, range(20, 40)))])
    assert [model.reader.tokenizer.decode(of) for of in ids] == [
        "[CLS] ask 1 [SEP] kind [SEP]",
        "[CLS] 3 4 5 6 7 8 9 [SEP] 10 11 [SEP]",  # the prompt loses its beginning
        # a quarter is left to it, and the completion loses its end
        "[CLS] 5 6 [SEP] 20 21 22 23 24 25 26 [SEP]",
    ]
    assert "2 of 3 texts" in caplog.text


def test_a_heavier_pair_counts_more(bert):
    pairs = word_pairs()
    against = pairs.assign(
        chosen=pairs["rejected"],
        rejected=pairs["chosen"],
        comparison_id=pairs["comparison_id"] + "x",
    )
    both = pd.concat([pairs, against], ignore_index=True)
    weights = np.repeat([1.0, 0.01], len(pairs))
    assert accuracy(model_on(bert).fit(both, weights=weights), word_pairs(seed=1)) > 0.85


def test_ties_count_as_half_votes_and_unjudged_pairs_do_not_count(bert):
    pairs = word_pairs().head(4).assign(n_votes=[3, 0, 0, 2], n_ties=[1, 4, 0, 0])
    assert model_on(bert).vote_weights_of(pairs).tolist() == [4.0, 4.0, 0.0, 2.0]
    assert model_on(bert, label="majority").vote_weights_of(pairs).tolist() == [1.0] * 4
    with pytest.raises(NotEnoughData, match="0 preference pairs"):
        model_on(bert).fit(word_pairs().assign(n_votes=0))


@pytest.mark.skipif("__import__('torch').cuda.is_available()")
def test_gpu_model_scores_without_a_gpu_but_is_not_fitted(bert, saved, fitted):
    config = json.loads((saved / "config.json").read_text())
    config["params"]["device"] = "cuda"
    (saved / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(
        load_reward_model(saved).score(["ask 1"], ["kind"]), fitted.score(["ask 1"], ["kind"])
    )
    with pytest.raises(ConfigurationError, match="sees no CUDA"):
        model_on(bert, device="cuda").fit(word_pairs())


def test_frozen_layers_stay_as_they_are(bert, fitted):
    from transformers import AutoModel

    network = model_on(bert, frozen_layers=1, steps=3).fit(word_pairs()).networks_[0]
    before = AutoModel.from_pretrained(bert).state_dict()
    after = network.backbone.state_dict()
    same = {name for name in after if bool((before[name] == after[name]).all())}
    assert all(
        name in same for name in after if name.startswith(("embeddings.", "encoder.layer.0."))
    )
    assert not any(
        name in same
        for name in after
        if name.startswith("encoder.layer.1.") and "key.bias" not in name
    )


def test_warm_start_does_not_change_its_parent(bert, fitted):
    before = fitted.weights_hash
    model_on(bert, steps=2).fit(word_pairs(4, seed=5, first_seq=10_000), warm_start=fitted)
    assert fitted.weights_hash == before


def test_a_warm_start_from_another_kind_or_encoder_is_refused(fitted, tmp_path):
    with pytest.raises(ModelError, match="its encoder is"):
        model_on(save_tiny_bert(tmp_path, seed=4)).fit(word_pairs(), warm_start=fitted)
    with pytest.raises(ModelError, match="it is of kind embedding"):
        model_on(fitted.encoder.folder).fit(
            word_pairs(), warm_start=REWARD_MODELS["embedding"](encoder=fitted.encoder)
        )


def test_labels_of_the_annotator_model_are_learnt(bert):
    pairs = word_pairs()
    model = model_on(bert, label="annotators").fit(pairs.assign(soft_label=1 - pairs["agreement"]))
    assert accuracy(model, word_pairs(seed=1)) < 0.15


def test_few_votes_are_not_certain_and_ties_are_halves(bert):
    pairs = word_pairs().head(30).assign(agreement=1.0, n_votes=3, n_ties=2, weight=1.0)
    targets = model_on(bert)._targets(pairs)
    np.testing.assert_allclose(targets, (3 + 1 + 1) / (5 + 2))
    np.testing.assert_allclose(model_on(bert, label="majority")._targets(pairs), 1.0)

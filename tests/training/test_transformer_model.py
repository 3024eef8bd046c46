import json
import shutil

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from rlhf_pipeline.errors import (
    ConfigurationError,
    InvalidScores,
    ModelError,
    ModelHashMismatch,
    ModelNotFound,
    NotEnoughData,
)
from rlhf_pipeline.reward_model import (
    REWARD_MODELS,
    TransformerParams,
    TransformerRewardModel,
    load_reward_model,
)
from rlhf_pipeline.reward_model.base import disagreement
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.network import pad
from rlhf_pipeline.reward_model.token_ids import TokenReader
from tests.unit.reward_model.tiny_networks import save_tiny_bert, save_tiny_llama, word_pairs

SMALL = {
    "max_tokens": 24,
    "texts_per_batch": 6,
    "texts_per_prompt": 6,
    "learning_rate": 3e-3,
    "epochs": 2,
    "precision": "float32",
    "start_from_probe": True,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


def model_on(folder, **given) -> TransformerRewardModel:
    return TransformerRewardModel(
        TransformerParams(**(SMALL | given)), Encoder(folder, max_tokens=24)
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


def test_it_learns_what_people_like_on_prompts_it_never_saw(fitted):
    assert accuracy(fitted, word_pairs(seed=1)) > 0.9
    scores = fitted.score(["ask 3", "ask 3"], ["kind long warm cold", "curt long warm cold"])
    assert scores[0] > scores[1] + 0.5


def test_a_causal_model_with_adapters_learns_it_too(llama):
    model = model_on(llama, adapter="lora", lora_rank=8, learning_rate=5e-3, epochs=8).fit(
        word_pairs(24)
    )
    assert accuracy(model, word_pairs(seed=1)) > 0.9
    trained = {name for name, part in model.networks_[0].named_parameters() if part.requires_grad}
    assert trained
    assert all("lora_" in name or name == "head.weight" for name in trained)


def test_the_adapters_alone_are_saved_and_need_their_backbone(llama, tmp_path):
    model = model_on(llama, adapter="lora", lora_rank=4, steps=2).fit(word_pairs())
    model.save(tmp_path / "model")
    parts = load_file(tmp_path / "model" / "member-0.safetensors")
    assert all(
        "lora_" in name or name in ("head.weight", "score_mean", "score_std") for name in parts
    )
    again = load_reward_model(tmp_path / "model")
    assert again.weights_hash == model.weights_hash
    np.testing.assert_array_equal(
        again.score(["ask 1"], ["kind warm"]), model.score(["ask 1"], ["kind warm"])
    )
    other = Encoder(save_tiny_llama(tmp_path / "other", seed=9), max_tokens=24)
    with pytest.raises(ModelHashMismatch, match="Set `encoder` back"):
        load_reward_model(tmp_path / "model", encoder=other)


def test_the_last_token_is_read_whatever_the_padding(llama):
    model = model_on(llama, steps=2).fit(word_pairs())
    together = model.score(["ask 1"] * 3, ["kind", "kind warm cold", "curt right wrong long short"])
    alone = [
        model.score(["ask 1"], [text])[0]
        for text in ("kind", "kind warm cold", "curt right wrong long short")
    ]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_scoring_one_at_a_time_equals_scoring_together(fitted):
    pairs = word_pairs(seed=2)
    together = fitted.score(pairs["prompt"].tolist(), pairs["chosen"].tolist())
    alone = [
        fitted.score([prompt], [text])[0]
        for prompt, text in zip(pairs["prompt"], pairs["chosen"], strict=True)
    ]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert fitted.score([], []).shape == (0,)


def test_training_scores_are_centred_and_standardised(fitted):
    pairs = word_pairs()
    scores = fitted.score(
        [*pairs["prompt"], *pairs["prompt"]], [*pairs["chosen"], *pairs["rejected"]]
    )
    assert abs(scores.mean()) < 1e-5
    assert fitted.standardise(scores).std() == pytest.approx(1.0, abs=1e-5)


def test_the_same_pairs_in_another_order_give_the_same_weights(bert, fitted):
    assert (
        model_on(bert).fit(word_pairs().sample(frac=1, random_state=3)).weights_hash
        == fitted.weights_hash
    )
    assert model_on(bert, seed=1).fit(word_pairs()).weights_hash != fitted.weights_hash


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


def test_a_loaded_model_can_be_saved_again_without_the_folder_it_came_from(fitted, saved, tmp_path):
    loaded = load_reward_model(saved)
    saved.rename(tmp_path / "gone")
    loaded.save(tmp_path / "copy")
    assert load_reward_model(tmp_path / "copy").weights_hash == fitted.weights_hash


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


@pytest.mark.parametrize("name", ["score_mean", "score_std"])
def test_a_model_without_its_normalisation_is_refused(saved, name):
    changed(saved, name, change=lambda part: None)
    with pytest.raises(ModelError, match=f"lacks {name}"):
        load_reward_model(saved)


def test_a_missing_weight_is_refused_by_name(saved):
    changed(saved, change=lambda part: None)
    with pytest.raises(ModelError, match=r"do not fit the network: head\.weight"):
        load_reward_model(saved)


def test_an_incomplete_folder_is_refused(saved):
    (saved / "member-0.safetensors").unlink()
    with pytest.raises(ModelError, match=r"member-0\.safetensors cannot be read"):
        load_reward_model(saved)
    (saved / "config.json").unlink()
    with pytest.raises(ModelNotFound):
        load_reward_model(saved)


def test_another_tokenizer_is_refused(saved):
    path = saved / "backbone" / "tokenizer.json"
    path.write_text(path.read_text().replace('"kind":', '"kinder":'))
    with pytest.raises(ModelHashMismatch, match="are not those that were saved"):
        load_reward_model(saved)


def test_a_folder_of_another_kind_is_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"kind": "embedding"}))
    with pytest.raises(ModelError, match="Use load_reward_model"):
        TransformerRewardModel.load(saved)


def test_members_differ_their_mean_is_the_score_and_they_disagree(bert):
    model = model_on(bert, n_members=2, steps=4).fit(word_pairs())
    texts = (["ask 1", "ask 2"], ["kind warm", "curt cold"])
    members = model.member_scores(*texts)
    assert members.shape == (2, 2)
    assert not np.allclose(members[0], members[1])
    np.testing.assert_allclose(model.score(*texts), members.mean(axis=0))
    assert (disagreement(model, texts[0], texts[1], ["right wrong", "vague"]) > 0).all()
    assert model.member_scores([], []).shape == (2, 0)


def test_an_ensemble_is_saved_whole(bert, tmp_path):
    model = model_on(bert, n_members=2, steps=2).fit(word_pairs())
    model.save(tmp_path)
    assert load_reward_model(tmp_path).weights_hash == model.weights_hash
    (tmp_path / "member-1.safetensors").unlink()
    with pytest.raises(ModelError, match="member-1"):
        load_reward_model(tmp_path)


def test_texts_beyond_the_window_are_cut_by_the_rule_and_counted(bert):
    model = model_on(bert, max_tokens=12)  # two of them special
    prompts = ["ask 1", "1 2 3 4 5 6 7 8 9", "1 2 3 4 5 6"]
    ids, n_cut = model.reader.encode(prompts, ["kind", "10 11", " ".join(map(str, range(20, 40)))])
    assert [model.reader.tokenizer.decode(of) for of in ids] == [
        "[CLS] ask 1 [SEP] kind [SEP]",
        "[CLS] 3 4 5 6 7 8 9 [SEP] 10 11 [SEP]",  # the prompt loses its beginning
        # a quarter is left to it, and the completion loses its end
        "[CLS] 5 6 [SEP] 20 21 22 23 24 25 26 [SEP]",
    ]
    assert n_cut == 2
    model.fit(word_pairs())
    before = model.encoder.n_truncated
    model.score(["1 2 3"] * 3, ["kind", "kind " * 30, "kind " * 30])
    assert model.encoder.n_truncated == before + 1  # distinct texts


def test_weights_of_zero_leave_a_pair_out(bert):
    pairs = word_pairs()
    weights = np.ones(len(pairs))
    weights[::3] = 0
    part = pairs[weights > 0]
    assert (
        model_on(bert, steps=3).fit(pairs, weights=weights).weights_hash
        == model_on(bert, steps=3).fit(part).weights_hash
    )


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


def test_pairs_count_by_their_votes(bert):
    """Of every two completions few say one thing and many the other."""
    few = word_pairs().assign(n_votes=1)
    many = few.assign(
        chosen=few["rejected"],
        rejected=few["chosen"],
        comparison_id=few["comparison_id"] + "x",
        n_votes=60,
    )
    both = pd.concat([few, many], ignore_index=True).assign(agreement=1.0)
    assert accuracy(model_on(bert, smoothing=0.0).fit(both), word_pairs(seed=1)) < 0.15
    alike = model_on(bert, smoothing=0.0, steps=3).fit(word_pairs().assign(n_votes=5))
    assert (
        alike.weights_hash
        != model_on(bert, smoothing=0.0, steps=3)
        .fit(word_pairs().assign(n_votes=[5, 50] * 60))
        .weights_hash
    )


def test_ties_count_as_half_votes_and_unjudged_pairs_do_not_count(bert):
    pairs = word_pairs().head(4).assign(n_votes=[3, 0, 0, 2], n_ties=[1, 4, 0, 0])
    assert model_on(bert).vote_weights_of(pairs).tolist() == [4.0, 4.0, 0.0, 2.0]
    assert model_on(bert, ties_as_halves=False).vote_weights_of(pairs).tolist() == [
        3.0,
        0.0,
        0.0,
        2.0,
    ]
    assert model_on(bert, label="majority").vote_weights_of(pairs).tolist() == [1.0] * 4
    with pytest.raises(NotEnoughData, match="0 preference pairs"):
        model_on(bert).fit(word_pairs().assign(n_votes=0))


def opposite_duplicates(pairs):
    swapped = pairs.assign(
        chosen=pairs["rejected"],
        rejected=pairs["chosen"],
        comparison_id=pairs["comparison_id"] + "x",
    )
    return pd.concat([pairs, swapped], ignore_index=True).assign(agreement=1.0)


def a_cycle(pairs):
    """A over B over C over A, in prompts of three completions."""
    pairs = word_pairs(12, 3).assign(agreement=1.0)
    texts = (
        pairs.groupby("prompt_id")[["chosen", "rejected"]]
        .agg(list)
        .apply(lambda row: sorted({*row["chosen"], *row["rejected"]}), axis=1)
    )
    place = pairs.groupby("prompt_id").cumcount()
    chosen = [texts[prompt][i % 3] for prompt, i in zip(pairs["prompt_id"], place, strict=True)]
    rejected = [
        texts[prompt][(i + 1) % 3] for prompt, i in zip(pairs["prompt_id"], place, strict=True)
    ]
    return pairs.assign(chosen=chosen, rejected=rejected)


@pytest.mark.parametrize(
    "contradict",
    [lambda pairs: pairs.assign(agreement=0.5), opposite_duplicates, a_cycle],
    ids=["ties", "opposite", "cycle"],
)
def test_votes_that_contradict_each_other_teach_no_preference(bert, contradict):
    pairs = contradict(word_pairs())
    model = model_on(bert, texts_per_batch=3 if contradict is a_cycle else 6).fit(pairs)
    prompts = pairs["prompt"].tolist()
    margins = model.score(prompts, pairs["chosen"].tolist()) - model.score(
        prompts, pairs["rejected"].tolist()
    )
    assert np.abs(margins).max() < 0.1


def test_bad_input_is_named(bert, fitted):
    with pytest.raises(NotEnoughData, match="needs 30"):
        model_on(bert).fit(word_pairs().head(5))
    with pytest.raises(InvalidScores, match="one weight"):
        model_on(bert).fit(word_pairs(), weights=np.ones(3))
    with pytest.raises(InvalidScores, match="Row 1 to score is not a string"):
        fitted.score(["a", "b"], ["c", None])
    with pytest.raises(InvalidScores, match="one prompt per completion"):
        fitted.score(["a"], ["b", "c"])
    with pytest.raises(ModelError, match="not fitted"):
        model_on(bert).score(["a"], ["b"])
    with pytest.raises(ConfigurationError, match="has 2 layers"):
        model_on(bert, frozen_layers=7).fit(word_pairs())


@pytest.mark.skipif("__import__('torch').cuda.is_available()")
def test_a_gpu_model_scores_without_a_gpu_but_is_not_fitted_there(bert, saved, fitted):
    config = json.loads((saved / "config.json").read_text())
    config["params"]["device"] = "cuda"
    (saved / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(
        load_reward_model(saved).score(["ask 1"], ["kind"]), fitted.score(["ask 1"], ["kind"])
    )
    with pytest.raises(ConfigurationError, match="sees no CUDA"):
        model_on(bert, device="cuda").fit(word_pairs())


def test_dropout_is_off(bert):
    network = model_on(bert, steps=1).fit(word_pairs()).networks_[0].train()
    ids = model_on(bert).reader.encode(["ask 1"], ["kind warm cold"])[0]
    first, again = (network(*pad(ids, 0)).logits.item() for _ in range(2))
    assert first == again
    assert network.config.hidden_dropout_prob == 0.1  # it would not be, by itself


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


def test_a_warm_start_learns_new_pairs_and_replays_as_many_old_ones(bert, fitted):
    old, new = word_pairs(), word_pairs(4, seed=5, first_seq=10_000)
    both = pd.concat([old, new], ignore_index=True)
    model = model_on(bert, replay=0.5)
    model.fit(both, warm_start=fitted)
    assert model.n_replayed_ == len(new) // 2
    cold = model_on(bert).fit(both)
    assert model.records_[0].n_steps < cold.records_[0].n_steps
    assert accuracy(model, word_pairs(seed=1)) > 0.9


def test_few_new_pairs_are_enough_where_data_abound(bert, fitted):
    """The votes are counted, not what the replay leaves of them, and it leaves enough."""
    both = pd.concat([word_pairs(), word_pairs(1, 3, seed=5, first_seq=10_000)], ignore_index=True)
    model = model_on(bert, replay=0.0, steps=2).fit(both, warm_start=fitted)
    assert model.n_replayed_ == 30 - 3
    with pytest.raises(NotEnoughData, match="3 preference pairs to fit on"):
        model_on(bert).fit(word_pairs(1, 3, seed=5, first_seq=10_000), warm_start=fitted)


def test_a_warm_start_changes_nothing_in_the_model_it_starts_from(bert, fitted):
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


def test_the_majority_is_learnt_as_certain(bert):
    model = model_on(bert, label="majority").fit(word_pairs().assign(n_ties=1))
    assert accuracy(model, word_pairs(seed=1)) > 0.85


def test_labels_of_the_annotator_model_are_learnt(bert):
    pairs = word_pairs()
    model = model_on(bert, label="annotators").fit(pairs.assign(soft_label=1 - pairs["agreement"]))
    assert accuracy(model, word_pairs(seed=1)) < 0.15


def test_a_few_votes_are_not_certainty_and_ties_are_halves(bert):
    pairs = word_pairs().head(30).assign(agreement=1.0, n_votes=3, n_ties=2, weight=1.0)
    found = model_on(bert, smoothing=1.0)._targets(pairs)
    np.testing.assert_allclose(found, (3 + 1 + 1) / (5 + 2))
    np.testing.assert_allclose(
        model_on(bert, smoothing=0.0, ties_as_halves=False)._targets(pairs), 1.0
    )
    np.testing.assert_allclose(model_on(bert, label="majority")._targets(pairs), 1.0)


def test_a_tokenizer_without_padding_or_end_is_refused(llama, tmp_path):
    shutil.copytree(llama, tmp_path / "bare")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = tmp_path / "bare" / name
        if path.exists():
            config = {
                k: v
                for k, v in json.loads(path.read_text()).items()
                if k not in ("pad_token", "eos_token")
            }
            path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="neither a padding nor an end token"):
        TokenReader.from_folder(tmp_path / "bare", 24, is_causal=True)


def test_a_checkpoint_folder_that_holds_something_else_is_refused(bert, tmp_path):
    for place in (tmp_path, tmp_path / "member-0"):
        place.mkdir(exist_ok=True)
        (place / "thesis.tex").write_text("years of work")
        model = TransformerRewardModel(
            model_on(bert).params, Encoder(bert, max_tokens=24), checkpoints=tmp_path
        )
        with pytest.raises(ConfigurationError, match=r"thesis\.tex"):
            model.fit(word_pairs())
        assert (place / "thesis.tex").exists()
        (place / "thesis.tex").unlink()


def test_whatever_window_an_encoder_has_the_models_is_used(llama, tmp_path):
    """One encoder serves a project; models cut where their own parameters say."""
    params = TransformerParams(**(SMALL | {"adapter": "lora", "lora_rank": 4, "steps": 1}))
    wide, narrow = (TransformerRewardModel(params, Encoder(llama, max_tokens=n)) for n in (64, 24))
    assert wide.encoder.hash == narrow.encoder.hash
    wide.fit(word_pairs()).save(tmp_path / "model")
    assert (
        load_reward_model(tmp_path / "model", encoder=Encoder(llama, max_tokens=64)).weights_hash
        == wide.weights_hash
    )
    narrow.fit(word_pairs(), warm_start=wide)


def test_the_checkpoint_folder_is_deleted_after_a_complete_fit(bert, fitted, tmp_path):
    model = TransformerRewardModel(
        fitted.params, fitted.encoder, checkpoints=tmp_path / "checkpoints"
    )
    assert model.fit(word_pairs()).weights_hash == fitted.weights_hash
    assert not (tmp_path / "checkpoints").exists()

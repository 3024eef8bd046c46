"""What a training needs of the machine, and the parameters that follow from the policy's size."""

import pytest
import torch

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.policy.causal_lm import load_policy, load_prompt_format
from rlhf_pipeline.policy.devices import CPU, Placement
from rlhf_pipeline.retraining.adapters import AdapterParams, add_adapters
from rlhf_pipeline.retraining.memory import (
    GIB,
    ModelShape,
    check_memory,
    estimate_memory,
    read_shape,
)
from rlhf_pipeline.retraining.parameters import StrategyParams, parse_strategy_params
from rlhf_pipeline.retraining.preparation import (
    complete_params,
    estimate_need,
    list_notices,
    open_policy,
    place_training,
)
from rlhf_pipeline.retraining.training import choose_learning_rate
from rlhf_pipeline.testing.strategies import build_pairs, build_policy

TINY = ModelShape(1_160_000, n_adapted=8_000, n_layers=2, width=192, n_vocabulary=1024)
# Qwen2.5 0.5B
HALF_B = ModelShape(494_000_000, n_adapted=550_000, n_layers=24, width=896, n_vocabulary=151_936)
GPU = Placement("cuda:0", "bfloat16")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def gpt2(llama, tmp_path_factory):
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("models") / "gpt2"
    tokenizer = load_policy(llama).tokenizer
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
    ends = {"bos_token_id": 3, "eos_token_id": 3}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def complete(shape=TINY, place=CPU, *, imitates=False, updates_per_step=1, **given):
    how = {"imitates": imitates, "updates_per_step": updates_per_step}
    return complete_params(StrategyParams(**given), shape, place, **how)


def test_the_learning_rate_falls_with_the_size_and_is_higher_for_adapters():
    assert complete().learning_rate == complete(imitates=True).learning_rate == 2e-4
    assert complete(HALF_B).learning_rate == 2e-6
    assert complete(HALF_B, imitates=True).learning_rate == 2e-5
    assert complete(HALF_B, lora_rank=16).learning_rate == pytest.approx(2e-5)
    assert complete(HALF_B, learning_rate=3e-3, lora_rank=16).learning_rate == 3e-3
    assert complete(updates_per_step=2).learning_rate == 1e-4  # as much per step
    assert complete(updates_per_step=2, learning_rate=3e-3).learning_rate == 3e-3
    rates = [choose_learning_rate(n) for n in (10**6, 10**8, 10**9, 10**10, 10**12)]
    assert rates == sorted(rates, reverse=True)


def test_accumulation_divides_the_batch():
    assert StrategyParams(batch_size=16, gradient_accumulation=8).rows_per_pass == 2
    with pytest.raises(ConfigurationError, match="gradient_accumulation 3 does not divide"):
        parse_strategy_params({"gradient_accumulation": 3})


def test_more_than_one_visible_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("rlhf_pipeline.policy.devices.has_bfloat16", lambda device: True)
    with pytest.raises(ConfigurationError, match="Set CUDA_VISIBLE_DEVICES=1 for this process"):
        place_training(StrategyParams(device="cuda:1"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert place_training(StrategyParams()) == GPU


def test_qlora_is_refused_with_its_cure(monkeypatch):
    monkeypatch.setattr("rlhf_pipeline.retraining.adapters.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install bitsandbytes"):
        complete(place=GPU, lora_rank=8, qlora=True)
    with pytest.raises(ConfigurationError, match="lora_rank is 0"):
        complete(place=GPU, qlora=True)
    monkeypatch.setattr("rlhf_pipeline.retraining.adapters.find_spec", lambda name: name)
    with pytest.raises(ConfigurationError, match="qlora needs a GPU"):
        complete(lora_rank=8, qlora=True)


def test_the_shape_is_that_of_the_loaded_model(llama, gpt2):
    for folder in (llama, gpt2):
        policy, shape = load_policy(folder), read_shape(folder)
        assert shape.n_parameters == sum(part.numel() for part in policy.model.parameters())
        adapted = open_policy(folder, StrategyParams(lora_rank=4, device="cpu"))
        trained = [part.numel() for part in adapted.model.parameters() if part.requires_grad]
        assert sum(trained) == 4 * shape.n_adapted
        assert (shape.n_layers, shape.width) == (2, 32)


def estimate(shape=HALF_B, place=GPU, *, has_reference=True, **given):
    params = complete(shape, place, **given)
    return estimate_memory(
        shape, params, n_rows=2 * params.rows_per_pass, n_tokens=512, has_reference=has_reference
    )


def test_adapters_accumulation_and_checkpointing_need_less_memory():
    whole, adapters = estimate(), estimate(lora_rank=16)
    # a reference and the sentinels' parent beside the trained weights, in 16 bits
    assert whole.fixed == HALF_B.n_parameters * (16 + 2 + 2)
    assert adapters.fixed == HALF_B.n_parameters * (2 + 2) + 16 * HALF_B.n_adapted * 16
    unwatched = estimate(sentinels={"every": 0})
    assert unwatched.fixed == HALF_B.n_parameters * (16 + 2)
    assert estimate(lora_rank=16, qlora=False).fixed > adapters.fixed / 1.01
    assert estimate(gradient_accumulation=16).activations < whole.activations / 8
    assert estimate(gradient_checkpointing=True).activations < whole.activations / 1.2
    assert estimate(has_reference=False).total == whole.total - HALF_B.n_parameters * 2


def test_a_model_that_does_not_fit_is_refused_and_a_batch_that_may_not_is_named():
    need = estimate()
    assert check_memory(need, GPU, need.total) is None
    warning = check_memory(need, GPU, need.fixed + 1)
    assert "raise gradient_accumulation, set gradient_checkpointing" in str(warning)
    assert "optimiser 3.68" in str(warning)
    with pytest.raises(ConfigurationError, match=r"has 4\.00 GiB free\. Train adapters alone"):
        check_memory(need, GPU, 4 * GIB)


def test_notices_are_of_the_number_format_and_of_memory(llama, monkeypatch, caplog):
    place = Placement("cpu", "float32", "In float32.")
    params = complete(HALF_B, place, lora_rank=16)
    reader = load_prompt_format(llama)
    need = HALF_B.n_parameters * (4 + 4) + 16 * HALF_B.n_adapted * 16
    for free, n_notices in ((2**40, 1), (need + 2**20, 2)):
        monkeypatch.setattr(
            "rlhf_pipeline.retraining.preparation.measure_free_memory", lambda device, n=free: n
        )
        found = list_notices(build_pairs(), params, HALF_B, place, reader, has_reference=True)
        assert len(found) == n_notices
    assert "The training needs about" in caplog.text


def test_the_estimate_counts_the_tokens_of_the_longest_rows(llama):
    pairs, reader = build_pairs(), load_prompt_format(llama)
    pairs.loc[3, "rejected"] = "long " * 20
    params = complete(HALF_B, GPU, max_length=2048)
    n_tokens = reader.count_prompt_tokens(pairs["prompt"][3]) + reader.count_tokens("long " * 20)
    expected = estimate_memory(
        HALF_B,
        params,
        n_rows=2 * params.rows_per_pass,
        n_tokens=n_tokens,
        has_reference=True,
    )
    assert estimate_need(pairs, params, HALF_B, reader, has_reference=True) == expected


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_adapters_are_trained_and_their_names_can_be_chosen(request, family):
    folder = request.getfixturevalue(family)
    name = {"llama": "v_proj", "gpt2": "c_attn"}[family]
    params = AdapterParams(lora_rank=2, lora_targets=[name])
    policy = add_adapters(load_policy(folder), params, seed=0)
    trained = [name for name, part in policy.model.named_parameters() if part.requires_grad]
    assert trained
    assert all(f".{name}.lora_" in one for one in trained)
    again = add_adapters(load_policy(folder), params, seed=0)
    weights = again.model.state_dict()
    assert all(torch.equal(part, weights[name]) for name, part in policy.model.state_dict().items())
    with pytest.raises(ConfigurationError, match=r"lora_targets is x_proj.*Its linear layers: "):
        add_adapters(load_policy(folder), AdapterParams(lora_rank=2, lora_targets=["x_proj"]), 0)

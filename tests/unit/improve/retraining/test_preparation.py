"""What a training needs of the machine, and the parameters that follow from the policy's size."""

import pytest
import torch

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.generate.policy.devices import CPU, Placement
from rlhf_pipeline.improve.retraining.adapters import AdapterParams, add_adapters
from rlhf_pipeline.improve.retraining.candidates import (
    complete_params,
    count_parameters,
    place_training,
)
from rlhf_pipeline.improve.retraining.parameters import StrategyParams
from rlhf_pipeline.improve.retraining.training import choose_learning_rate
from rlhf_pipeline.simulation.testing.strategies import build_policy

TINY, HALF_B = 1_160_000, 494_000_000
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


def complete(size=TINY, place=CPU, *, imitates=False, updates_per_step=1, **options):
    how = {"imitates": imitates, "updates_per_step": updates_per_step}
    return complete_params(StrategyParams(**options), size, place, **how)


def test_learning_rate_falls_with_size_and_rises_for_adapters():
    assert complete().learning_rate == complete(imitates=True).learning_rate == 2e-4
    assert complete(HALF_B).learning_rate == 2e-6
    assert complete(HALF_B, imitates=True).learning_rate == 2e-5
    assert complete(HALF_B, lora_rank=16).learning_rate == pytest.approx(2e-5)
    assert complete(HALF_B, learning_rate=3e-3, lora_rank=16).learning_rate == 3e-3
    assert complete(updates_per_step=2).learning_rate == 1e-4  # as much per step
    assert complete(updates_per_step=2, learning_rate=3e-3).learning_rate == 3e-3
    rates = [choose_learning_rate(n) for n in (10**6, 10**8, 10**9, 10**10, 10**12)]
    assert rates == sorted(rates, reverse=True)


def test_training_uses_the_first_of_several_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("rlhf_pipeline.generate.policy.devices.has_bfloat16", lambda device: True)
    with pytest.raises(ConfigurationError, match="Set CUDA_VISIBLE_DEVICES=1 for this process"):
        place_training(StrategyParams(device="cuda:1"))
    assert place_training(StrategyParams()) == GPU


def test_qlora_is_refused_with_its_cure(monkeypatch):
    monkeypatch.setattr("rlhf_pipeline.improve.retraining.adapters.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install bitsandbytes"):
        complete(place=GPU, lora_rank=8, qlora=True)
    with pytest.raises(ConfigurationError, match="lora_rank is 0"):
        complete(place=GPU, qlora=True)
    monkeypatch.setattr("rlhf_pipeline.improve.retraining.adapters.find_spec", lambda name: name)
    with pytest.raises(ConfigurationError, match="qlora needs a GPU"):
        complete(lora_rank=8, qlora=True)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_size_is_that_of_the_loaded_model(request, family):
    folder = request.getfixturevalue(family)
    weights = load_policy(folder).model.parameters()
    assert count_parameters(folder) == sum(part.numel() for part in weights)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_adapters_are_trained_and_their_names_can_be_chosen(request, family):
    folder = request.getfixturevalue(family)
    name = {"llama": "v_proj", "gpt2": "c_attn"}[family]
    params = AdapterParams(lora_rank=2, lora_targets=[name])
    policy = add_adapters(load_policy(folder), params, seed=0)
    trained = [layer for layer, part in policy.model.named_parameters() if part.requires_grad]
    assert trained
    assert all(f".{name}.lora_" in layer for layer in trained)
    again = add_adapters(load_policy(folder), params, seed=0)
    weights = again.model.state_dict()
    assert all(torch.equal(part, weights[name]) for name, part in policy.model.state_dict().items())
    with pytest.raises(ConfigurationError, match=r"lora_targets is x_proj.*Its linear layers: "):
        add_adapters(load_policy(folder), AdapterParams(lora_rank=2, lora_targets=["x_proj"]), 0)

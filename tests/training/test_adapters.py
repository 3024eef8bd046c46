"""Trainings with adapters, and with less memory for the same step."""

import json

import pytest
import torch

from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, read_base_hash
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.improve.retraining.candidates import open_policy
from rlhf_pipeline.improve.retraining.parameters import StrategyParams
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES, train_candidate
from rlhf_pipeline.simulation.testing.strategies import VowelReward, build_pairs, build_policy

PARAMS = StrategyParams(
    batch_size=16, checkpoint_every=2, learning_rate=1e-3, epochs=2, min_steps=0, min_pairs=10
)
QUICK = {"max_new_tokens": 8, "sentinels": SentinelParams(every=0)}  # of what is sampled
ROUNDING = 1e-5  # of logits of order 1 in float32


def change(**values):
    return StrategyParams(**(PARAMS.model_dump() | values))


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Folders of a Llama-like and a GPT-2-like policy."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("models")
    build_policy(folder / "llama")
    tokenizer = load_policy(folder / "llama").tokenizer
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=3, eos_token_id=3, **shape)
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    tokenizer.save_pretrained(folder / "gpt2")
    return folder


def logits(policy, ids):
    with torch.inference_mode():
        return policy.model.eval()(ids).logits


@pytest.mark.parametrize(
    ("strategy", "family"), [("dpo", "llama"), ("ppo", "llama"), ("dpo", "gpt2")]
)
def test_adapter_candidate_is_the_parent_with_adapters_merged(tmp_path, policies, family, strategy):
    from peft import PeftModel

    parent, params = policies / family, change(**QUICK, lora_rank=4)
    report = train_candidate(
        strategy, parent, build_pairs(), tmp_path, params, reward=VowelReward()
    )
    if not STRATEGIES[strategy].needs_reward:  # the loss of an online strategy says nothing
        assert report.loss_curve[-1][1] < report.loss_curve[0][1]
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [20, 21, 22, 23, 24, 25]])
    base = logits(load_policy(parent), ids)
    merged = logits(load_policy(tmp_path / "model"), ids)
    assert (merged - base).abs().max() > 100 * ROUNDING
    adapted = load_policy(parent)
    adapted.model = PeftModel.from_pretrained(adapted.model, tmp_path / "model" / ADAPTER)
    assert (logits(adapted, ids) - merged).abs().max() < ROUNDING
    # unmerged again, the parent's own weights stand
    adapted.model.merge_adapter()
    adapted.model.unmerge_adapter()
    with adapted.model.disable_adapter():
        assert (logits(adapted, ids) - base).abs().max() < ROUNDING
    lineage = json.loads((tmp_path / "model" / "candidate.json").read_text())
    assert lineage["params"]["lora_rank"] == 4


def test_second_adapter_starts_from_the_first_policy(tmp_path, policies):
    from peft import PeftModel

    first = policies / "llama"
    params = change(**QUICK, lora_rank=4)
    train_candidate("dpo", first, build_pairs(), tmp_path / "second", params)
    train_candidate("sft", tmp_path / "second" / "model", build_pairs(), tmp_path / "third", params)
    adapter = tmp_path / "third" / "model" / ADAPTER
    assert read_base_hash(adapter) == folder_hash(first)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    adapted = load_policy(first)
    adapted.model = PeftModel.from_pretrained(adapted.model, adapter)
    merged = logits(load_policy(tmp_path / "third" / "model"), ids)
    assert (logits(adapted, ids) - merged).abs().max() < ROUNDING
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 8


def test_weights_without_adapters_do_not_change(tmp_path, policies):
    train_candidate(
        "dpo", policies / "llama", build_pairs(), tmp_path, change(**QUICK, lora_rank=4)
    )
    before = load_policy(policies / "llama").model.state_dict()
    after = load_policy(tmp_path / "model").model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}


def test_an_interrupted_training_of_adapters_ends_with_the_same_files(tmp_path, policies):
    params = change(**QUICK, lora_rank=4, lora_dropout=0.1)
    policy, cut = policies / "llama", tmp_path / "cut"
    whole = train_candidate("dpo", policy, build_pairs(), tmp_path / "whole", params)

    def stop(done, total, note=""):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_candidate("dpo", policy, build_pairs(), cut, params, progress=stop)
    resumed = train_candidate("dpo", policy, build_pairs(), cut, params)
    assert resumed.resumed_from == 4
    assert resumed.content_hash == whole.content_hash


def test_dropout_applies_to_adapters_only(tmp_path, policies):
    hashes = {
        share: train_candidate(
            "dpo",
            policies / "gpt2",
            build_pairs(),
            tmp_path / str(share),
            change(**QUICK, lora_rank=4, lora_dropout=share),
        ).content_hash
        for share in (0.0, 0.5)
    }
    assert hashes[0.0] != hashes[0.5]
    policy = open_policy(policies / "gpt2", change(lora_rank=4, lora_dropout=0.5))
    dropout_of = {
        name: module.p
        for name, module in policy.model.named_modules()
        if isinstance(module, torch.nn.Dropout)
    }
    assert {p for name, p in dropout_of.items() if "lora" in name} == {0.5}
    assert {p for name, p in dropout_of.items() if "lora" not in name} == {0.0}


@pytest.mark.parametrize(
    ("strategy", "saving"),
    [
        *((name, {"gradient_accumulation": 4}) for name in ("dpo", "grpo", "ppo")),
        ("ppo", {"gradient_checkpointing": True}),
    ],
)
def test_micro_batches_equal_the_whole_batch(tmp_path, policies, strategy, saving):
    """40 rows fill two and a half batches: the last one is accumulated too. GPT-2 has dropout."""
    weights, reward = [], VowelReward()
    for number, params in enumerate((change(**QUICK), change(**QUICK, **saving))):
        out = tmp_path / str(number)
        train_candidate(strategy, policies / "gpt2", build_pairs(40), out, params, reward=reward)
        weights.append(load_policy(out / "model").model.state_dict())
    moved = load_policy(policies / "gpt2").model.state_dict()
    for name, part in weights[0].items():
        assert (part - weights[1][name]).abs().max() < 1e-6
        assert (part - moved[name]).abs().max() > 1e-4

"""Checks a training strategy: its files, its report, its refusals, and that kills cost nothing."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import ExpectationFailed, ModelError, ModelNotFound, NotEnoughVotes
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY, load_policy
from rlhf_pipeline.improve.retraining.parameters import StrategyParams
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams
from rlhf_pipeline.improve.retraining.strategies.base import Strategy
from rlhf_pipeline.simulation.testing.members import check_member, expect_error

Floats = npt.NDArray[np.float64]
CONTEXT = 128  # tokens of prompt and completion of the policies built here
PARAMS = StrategyParams(
    batch_size=12,
    checkpoint_every=2,
    learning_rate=1e-3,
    epochs=1,
    min_steps=0,
    min_pairs=10,
    max_new_tokens=12,
    # They belong to no strategy, and an untrained policy rambles.
    sentinels=SentinelParams(every=0),
)


FAMILIES = ("llama", "gpt2")


class VowelReward:
    """Prefers completions with many vowels, which even an untrained policy learns in a few steps.
    Its two members disagree on long completions.
    """

    weights_hash = "vowels"

    def member_scores(self, prompts: Sequence[str], completions: Sequence[str]) -> Floats:
        share = [sum(c in "aeiou" for c in text) / (len(text) + 1) for text in completions]
        lengths = np.array([len(text) for text in completions])
        return np.stack([share + 0.001 * lengths, share - 0.001 * lengths])


def check_strategy(
    make: Callable[[], Strategy], folder: Path, *, families: Sequence[str] = FAMILIES
) -> None:
    """Check a strategy against its protocol, with a tiny policy of each of the `families`. `make`
    returns a new strategy; `folder` is empty, such as tmp_path.

    Trains on a CPU, which takes some seconds per family. Raises AssertionError with the broken
    promise.
    """
    name = make().name
    check_member(type(make()))
    needs_reward = getattr(make(), "needs_reward", None)
    assert isinstance(needs_reward, bool), (
        f"{name}: needs_reward is {needs_reward!r}; it must be True for a strategy that trains on "
        "the scores of a reward model, otherwise False."
    )
    _check_refusals(make, folder / "refused")
    for family in families:
        _check_training(make, folder / family, family)


def build_pairs(n: int = 48, **columns: Any) -> pd.DataFrame:
    """Build a RETRAINING_SET of `n` pairs; `columns` replace those of the same name."""
    rows = {
        "comparison_id": [f"c{i:03d}" for i in range(n)],
        "prompt_id": [f"p{i:03d}" for i in range(n)],
        "prompt": [f"what is the sum of {i} and 2" for i in range(n)],
        "chosen": [f"it is {i + 2}, kindly" for i in range(n)],
        "rejected": [f"no idea {i}" for i in range(n)],
        "margin": 0.5,
        "weight": 1.0,
        "origin": "vote",
        "information": 0.5,
        "difficulty": 0.5,
        "reason": "unsure",
        "split": "train",
        "day": "2026-01-01",
    }
    return pd.DataFrame(rows | columns)


def build_policy(
    folder: Path, *, family: str = "llama", has_chat_template: bool = True, seed: int = 0
) -> Path:
    """Create a policy folder with random weights, two layers and a byte-level tokenizer with
    the embedded policy's format. `family` is one of FAMILIES.
    """
    import torch
    from transformers import AutoTokenizer

    embedded = AutoTokenizer.from_pretrained(EMBEDDED_POLICY, model_max_length=CONTEXT)
    # Few tokens, so that completions of random weights end now and then.
    tokenizer = embedded.train_new_from_iterator(["what is the sum of one and two"], 280)
    if not has_chat_template:
        tokenizer.chat_template = None
    torch.manual_seed(seed)
    model = _build_gpt2(tokenizer) if family == "gpt2" else _build_llama(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _build_llama(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            initializer_range=0.04,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _build_gpt2(tokenizer: Any) -> Any:
    """Absolute positions, biases, dropout and a fused projection: all that a Llama lacks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.eos_token_id}
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=4,
            pad_token_id=tokenizer.pad_token_id,
            **ends,
        )
    )


def _check_refusals(make: Callable[[], Strategy], folder: Path) -> None:
    """Inputs that no strategy may train on: each has an error of its own, and leaves no file."""
    name, pairs, reward = make().name, build_pairs(), VowelReward()

    def train(rows: pd.DataFrame, policy: Path = folder / "none", **changes: Any) -> Any:
        params = PARAMS.model_copy(update=changes)
        return make().train(policy, rows, folder / "out", params, reward=reward)

    few = "rlhf_pipeline.improve.retraining.strategies.base.check_trainable_pairs does that."
    expect_error(
        NotEnoughVotes,
        lambda: train(build_pairs(5)),
        f"{name}: trains on fewer pairs than min_pairs; it must raise NotEnoughVotes. {few}",
    )
    expect_error(
        NotEnoughVotes,
        lambda: train(build_pairs(1), min_pairs=1),
        f"{name}: trains on a single pair; it must raise NotEnoughVotes. {few}",
    )
    message = expect_error(
        ExpectationFailed,
        lambda: train(build_pairs(chosen="it is 2", rejected="it is 2")),
        f"{name}: trains on pairs whose texts are equal; it must raise ExpectationFailed. {few}",
    )
    assert "c000" in message, f"{name}: the refusal does not name the first row: {message}"
    assert not (folder / "out").exists(), f"{name}: writes files although it refuses the pairs."
    message = expect_error(
        ModelNotFound,
        lambda: train(pairs),
        f"{name}: accepts a folder without a policy; it must raise ModelNotFound.",
    )
    assert "none" in message, f"{name}: the refusal does not name the folder: {message}"
    endless = build_policy(folder / "endless", has_chat_template=False)
    _drop_end_token(endless)
    expect_error(
        ModelError,
        lambda: train(pairs, endless),
        f"{name}: trains a policy whose tokenizer has no end token; it must raise ModelError. "
        "rlhf_pipeline.improve.retraining.candidates.check_tokenizer does that.",
    )
    if make().needs_reward:
        message = expect_error(
            ModelNotFound,
            lambda: make().train(folder / "none", pairs, folder / "out", PARAMS),
            f"{name}: trains without a reward; it must raise ModelNotFound. "
            "rlhf_pipeline.improve.retraining.rewards.require_reward does that.",
        )
        assert name in message, f"{name}: the refusal does not name the strategy: {message}"


def _drop_end_token(policy: Path) -> None:
    path = policy / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"eos_token": None}), encoding="utf-8")


def _check_training(make: Callable[[], Strategy], folder: Path, family: str) -> None:
    name, pairs, reward = f"{make().name} ({family})", build_pairs(), VowelReward()
    policy = build_policy(folder / "policy", family=family)
    out = folder / "out"
    parent_hash, untouched = folder_hash(policy), pairs.copy()
    report = make().train(policy, pairs, out, PARAMS, reward=reward)
    assert folder_hash(policy) == parent_hash, f"{name}: changes the parent's folder."
    assert pairs.equals(untouched), f"{name}: changes the frame of pairs."
    assert report.strategy == make().name, f"{name}: the report names {report.strategy!r}."
    assert report.parent_hash == parent_hash, f"{name}: the report has another parent_hash."
    assert report.content_hash == folder_hash(out / "model"), (
        f"{name}: the report's content_hash is not that of out/model."
    )
    stored = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert stored == json.loads(report.model_dump_json()), (
        f"{name}: out/report.json is not the report that train returned."
    )
    if not make().needs_reward:  # the loss of an online strategy says nothing
        assert report.loss_curve[-1][1] < report.loss_curve[0][1], f"{name}: no lower loss."
    _check_changed_weights(name, policy, out / "model")

    def fail(done: int, total: int, note: str = "") -> None:
        raise AssertionError(
            f"{name}: trains again on the same inputs; it must return the stored report."
        )

    assert make().train(policy, pairs, out, PARAMS, reward=reward, progress=fail) == report, (
        f"{name}: called again with the same inputs, it returns another report."
    )
    resumed = _train_with_interruption(make, policy, pairs, folder / "again")
    assert resumed.content_hash == report.content_hash, (
        f"{name}: an interrupted training ends with other weights than an uninterrupted one of "
        "the same seed."
    )
    plain = build_policy(folder / "plain", family=family, has_chat_template=False)
    short = PARAMS.model_copy(update={"batch_size": 24})
    make().train(plain, pairs, folder / "out_plain", short, reward=reward)
    prompt = load_policy(folder / "out_plain" / "model").format_prompt("hello")
    assert prompt == "hello", (
        f"{name}: the candidate of a policy without a chat template formats prompts: {prompt!r}"
    )


def _check_changed_weights(name: str, parent: Path, candidate: Path) -> None:
    before, after = (load_policy(folder).model.state_dict() for folder in (parent, candidate))
    assert before.keys() == after.keys(), (
        f"{name}: the candidate has other weights by name: {sorted(before.keys() ^ after.keys())}."
    )
    changed = [key for key in before if not before[key].equal(after[key])]
    assert changed, f"{name}: the candidate's weights are those of the parent."


class _Interruption(Exception):
    """Stands in for a kill after the first checkpoint."""


def _train_with_interruption(
    make: Callable[[], Strategy], policy: Path, pairs: pd.DataFrame, out: Path
) -> Any:
    def interrupt(done: int, total: int, note: str = "") -> None:
        if done == PARAMS.checkpoint_every + 1:
            raise _Interruption

    shuffled = pairs.iloc[::-1]
    with suppress(_Interruption):
        make().train(policy, shuffled, out, PARAMS, reward=VowelReward(), progress=interrupt)
    report = make().train(policy, pairs, out, PARAMS, reward=VowelReward())
    assert report.resumed_from, (
        f"{make().name}: starts anew after an interruption; it must continue from the last "
        "complete checkpoint, and call `progress` after each step."
    )
    return report

"""Checks a training strategy: its files and its report, and that it trains only once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.errors import ModelNotFound, NotEnoughVotes
from rlhf_pipeline.policy.causal_lm import load_policy
from rlhf_pipeline.policy.pretraining import PretrainingParams, build_model, train_tokenizer
from rlhf_pipeline.records import folder_hash
from rlhf_pipeline.retraining.parameters import StrategyParams
from rlhf_pipeline.retraining.strategies.base import Strategy
from rlhf_pipeline.testing.members import check_member, expect_error

PARAMS = StrategyParams(
    batch_size=8, checkpoint_every=3, learning_rate=1e-3, epochs=1, min_steps=0, min_pairs=10
)


def check_strategy(make: Callable[[], Strategy], folder: Path) -> None:
    """Check a strategy against its protocol. `make` returns a new one; `folder` is empty, such as
    tmp_path.

    Trains a tiny policy on a CPU, which takes some seconds. Raises AssertionError with the broken
    promise.
    """
    strategy, pairs = make(), build_pairs()
    name = strategy.name
    check_member(type(strategy))
    expect_error(
        NotEnoughVotes,
        lambda: strategy.train(folder / "none", build_pairs(5), folder / "few", PARAMS),
        f"{name}: trains on fewer pairs than min_pairs; it must raise NotEnoughVotes. "
        "rlhf_pipeline.retraining.strategies.base.check_trainable_pairs does that.",
    )
    assert not (folder / "few").exists(), f"{name}: writes files although it refuses the pairs."
    message = expect_error(
        ModelNotFound,
        lambda: strategy.train(folder / "none", pairs, folder / "missing", PARAMS),
        f"{name}: accepts a folder without a policy; it must raise ModelNotFound.",
    )
    assert "none" in message, f"{name}: the refusal does not name the folder: {message}"
    _check_training(make, folder, pairs)


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
        "reason": "unsure",
        "split": "train",
        "day": "2026-01-01",
    }
    return pd.DataFrame(rows | columns)


def build_policy(folder: Path, *, has_chat_template: bool = True) -> Path:
    """Create a policy folder with a random Llama of two layers and a byte-level tokenizer."""
    import torch

    tokenizer = train_tokenizer(["what is the sum of one and two"], 280, context_length=128)
    if not has_chat_template:
        tokenizer.chat_template = None
    torch.manual_seed(0)
    build_model(
        PretrainingParams(hidden=32, intermediate=64, context_length=128), tokenizer
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _check_training(make: Callable[[], Strategy], folder: Path, pairs: pd.DataFrame) -> None:
    name = make().name
    policy = build_policy(folder / "policy")
    out = folder / "out"
    parent_hash, untouched = folder_hash(policy), pairs.copy()
    report = make().train(policy, pairs, out, PARAMS)
    assert folder_hash(policy) == parent_hash, f"{name}: changes the parent's folder."
    assert pairs.equals(untouched), f"{name}: changes the frame of pairs."
    assert report.strategy == name, f"{name}: the report names the strategy {report.strategy!r}."
    assert report.parent_hash == parent_hash, f"{name}: the report has another parent_hash."
    assert report.content_hash == folder_hash(out / "model"), (
        f"{name}: the report's content_hash is not that of out/model."
    )
    stored = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert stored == json.loads(report.model_dump_json()), (
        f"{name}: out/report.json is not the report that train returned."
    )
    assert report.loss_curve[-1][1] < report.loss_curve[0][1], f"{name}: the loss does not fall."
    load_policy(out / "model")

    def fail(done: int, total: int, note: str = "") -> None:
        raise AssertionError(
            f"{name}: trains again on the same inputs; it must return the stored report."
        )

    assert make().train(policy, pairs, out, PARAMS, progress=fail) == report, (
        f"{name}: called again with the same inputs, it returns another report."
    )
    plain = build_policy(folder / "plain", has_chat_template=False)
    make().train(plain, pairs, folder / "out_plain", PARAMS)
    prompt = load_policy(folder / "out_plain" / "model").format_prompt("hello")
    assert prompt == "hello", (
        f"{name}: the candidate of a policy without a chat template formats prompts: {prompt!r}"
    )

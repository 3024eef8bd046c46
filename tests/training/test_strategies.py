import json
import math
from contextlib import ExitStack
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import transformers

from rlhf_pipeline.core.errors import ConfigurationError, NotEnoughVotes, TrainingFailed
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.improve.evaluation.divergence import kl_per_token
from rlhf_pipeline.improve.retraining.parameters import StrategyParams
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES, train_candidate
from rlhf_pipeline.improve.retraining.strategies.dpo import DPOParams
from rlhf_pipeline.simulation.testing import check_strategy
from rlhf_pipeline.simulation.testing.strategies import (
    FAMILIES,
    VowelReward,
    build_pairs,
    build_policy,
)
from rlhf_pipeline.simulation.testing.strategies import PARAMS as SHORT
from tests.full_disk import full_disk

PARAMS = StrategyParams(
    batch_size=8,
    checkpoint_every=3,
    learning_rate=1e-3,
    epochs=2,
    min_steps=0,
    min_pairs=10,
    sentinels=SentinelParams(n_prompts=4),
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("models") / "policy")


def test_an_unknown_strategy_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigurationError, match=r"No 'trpo' in .*Known: dpo, sft, kto"):
        train_candidate("trpo", tmp_path, build_pairs(), tmp_path / "out", PARAMS)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_strategy_conforms_to_the_protocol(tmp_path, strategy):
    families = FAMILIES if strategy == "dpo" else FAMILIES[:1]
    check_strategy(STRATEGIES[strategy], tmp_path, families=families)


def test_a_checkpoint_with_damaged_contents_is_named(tmp_path, policy):
    def stop(done, total, note=""):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS, progress=stop)
    for name in ("model.safetensors", "optimizer.pt"):
        damaged = tmp_path / "checkpoints" / "checkpoint-6" / name
        whole = damaged.read_bytes()
        damaged.write_bytes(bytes(len(whole)))
        with pytest.raises(TrainingFailed, match="checkpoint-6 cannot be read"):
            train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS)
        damaged.write_bytes(whole)


@pytest.mark.parametrize(
    ("strategy", "field", "message"),
    [
        ("dpo", "max_grad_nrom", "DPOConfig has no field 'max_grad_nrom'. Did you mean max_grad_n"),
        ("dpo", "learning_rate", "learning_rate is a setting of candidate_model itself"),
        ("dpo", "loss_type", "loss_type is set by dpo_loss of candidate_model"),
        ("ppo", "loss_type", "TrainingArguments has no field 'loss_type'"),
        ("grpo", "num_generations", "num_generations is set by n_samples"),
    ],
)
def test_unknown_trainer_fields_are_refused(tmp_path, strategy, field, message):
    params = PARAMS.model_copy(update={"trainer": {field: 1}})
    with pytest.raises(ConfigurationError, match=message):
        train_candidate(strategy, tmp_path, build_pairs(), tmp_path / "out", params)


@pytest.mark.parametrize("strategy", ["dpo", "ppo"])  # of TRL and our own
def test_any_other_field_reaches_the_trainer(tmp_path, policy, strategy):
    """Weights that move by nothing stay: only the trainer can have clipped the gradients."""
    params = SHORT.model_copy(update={"trainer": {"max_grad_norm": 1e-30, "adam_epsilon": 1.0}})
    train_candidate(
        strategy, policy, build_pairs(), tmp_path / strategy, params, reward=VowelReward()
    )
    before, after = (load_policy(each) for each in (policy, tmp_path / strategy / "model"))
    weights = after.model.state_dict()
    for name, part in before.model.state_dict().items():
        np.testing.assert_allclose(part, weights[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("strategy", ["dpo", "ppo"])
def test_the_parent_is_loaded_once_beside_the_policy(tmp_path, policy, strategy, monkeypatch):
    loaded = []

    def count(*arguments, **named):
        loaded.append(arguments)
        return load_policy(*arguments, **named)

    monkeypatch.setattr("rlhf_pipeline.improve.retraining.candidates.load_policy", count)
    watched = SHORT.model_copy(update={"sentinels": SentinelParams(every=2, n_prompts=4)})
    train_candidate(strategy, policy, build_pairs(), tmp_path, watched, reward=VowelReward())
    assert len(loaded) == 2


@pytest.mark.parametrize("strategy", ["dpo", "ppo"])
def test_accelerate_launch_trains_in_two_processes(tmp_path, policy, strategy):
    steps = []
    launch = "--multi_gpu --num_processes 2 --main_process_port 0"
    params = PARAMS.model_copy(update={"launch": launch, "max_new_tokens": 8, "epochs": 1})
    report = train_candidate(
        strategy,
        policy,
        build_pairs(),
        tmp_path,
        params,
        reward=VowelReward(),
        progress=lambda done, total, note="": steps.append((done, total)),
    )
    assert steps == [(i, 6) for i in range(1, 7)]
    assert report.content_hash == folder_hash(tmp_path / "model")
    assert report.curves["sentinel: KL to the parent"][-1][1] > 0
    if strategy == "dpo":  # a step is of the same rows, however many processes share them
        alone = train_candidate(
            strategy, policy, build_pairs(), tmp_path, params.model_copy(update={"launch": ""})
        )
        assert report.metrics["loss"] == pytest.approx(alone.metrics["loss"], abs=0.02)


def test_processes_share_a_step_equally(tmp_path, policy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    odd = PARAMS.model_copy(update={"batch_size": 9})
    with pytest.raises(ConfigurationError, match="2 processes cannot share equally"):
        train_candidate("dpo", policy, build_pairs(), tmp_path, odd)


@pytest.mark.parametrize("strategy", ["dpo"])  # all are trained by one loop
def test_training_resumes_from_the_newest_whole_checkpoint(tmp_path, policy, strategy):
    """Killed processes resume in tests/acceptance/test_retraining_kill.py; here the kill is in the
    middle of writing a checkpoint.
    """
    whole = train_candidate(strategy, policy, build_pairs().iloc[::-1], tmp_path / "whole", PARAMS)

    def stop(done, total, note=""):
        if done == 8:
            raise KeyboardInterrupt

    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        train_candidate(strategy, policy, build_pairs(), cut, PARAMS, progress=stop)
    assert not (cut / "model").exists()
    (cut / "checkpoints" / "checkpoint-6" / "optimizer.pt").write_bytes(b"half")
    resumed = train_candidate(strategy, policy, build_pairs(), cut, PARAMS)
    assert resumed.resumed_from == 3
    assert resumed.content_hash == whole.content_hash == folder_hash(cut / "model")
    assert resumed.loss_curve == whole.loss_curve
    assert sorted(p.name for p in cut.iterdir()) == ["model", "report.json"]


def test_a_dpo_candidate_prefers_chosen_texts_and_names_its_parent(tmp_path, policy):
    steps = []
    pairs = build_pairs()
    untouched = pairs.copy()
    parent_hash = folder_hash(policy)
    report = train_candidate(
        "dpo",
        policy,
        pairs,
        tmp_path,
        PARAMS,
        progress=lambda done, total, note="": steps.append((done, total)),
    )
    assert folder_hash(policy) == parent_hash == report.parent_hash
    pd.testing.assert_frame_equal(pairs, untouched)
    assert steps == [(i, 12) for i in range(1, 13)]
    # the policy is its own reference: log 2
    assert report.loss_curve[0][1] == pytest.approx(0.693, abs=0.01)
    assert report.loss_curve[-1][1] < 0.65
    assert report.metrics["reward_accuracy"] > 0.9
    assert report.metrics["chosen_log_p_change"] > report.metrics["rejected_log_p_change"]
    lineage = json.loads((tmp_path / "model" / "candidate.json").read_text())
    assert lineage["parent_hash"] == parent_hash
    assert lineage["data_hash"] == report.data_hash
    assert lineage["params"]["beta"] == 0.1
    assert report.seconds > 0
    before, after = load_policy(policy), load_policy(tmp_path / "model")
    gain = [p.log_likelihood(pairs["prompt"], pairs["chosen"])[0].mean() for p in (before, after)]
    assert gain[1] - gain[0] == pytest.approx(report.metrics["chosen_log_p_change"], rel=0.5)


class Ready(Exception):
    """Stands in for the training; carries the trainer."""


def test_dpo_losses_match_their_names(tmp_path, policy, monkeypatch):
    """At the start the policy is its own reference: each loss begins at its value at margin 0."""

    def stop(trainer, **_):
        raise Ready(trainer)

    monkeypatch.setattr(transformers.Trainer, "train", stop)
    firsts = {}
    for loss in get_args(DPOParams.model_fields["dpo_loss"].annotation):
        params = SHORT.model_copy(update={"dpo_loss": loss})
        with pytest.raises(Ready) as ready:
            train_candidate("dpo", policy, build_pairs(), tmp_path / loss, params)
        trainer = ready.value.args[0]
        batch = next(iter(trainer.get_train_dataloader()))
        firsts[loss] = trainer.compute_loss(trainer.model, batch).item()
    assert firsts == pytest.approx(
        {
            "sigmoid": math.log(2),
            "hinge": 1.0,
            "ipo": 25.0,  # (0 - 1 / 2 beta)²
            "sigmoid_norm": math.log(2),
            "robust": math.log(2),
            "apo_zero": 1.0,
            "apo_down": 1.0,
            "sppo_hard": 50.0,
        },
        abs=1e-3,
    )


def test_training_runs_once_and_another_replaces_it(tmp_path, policy):
    report = train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS)

    def fail(done, total, note=""):
        raise AssertionError("trained again")

    assert train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS, progress=fail) == report
    other = train_candidate(
        "sft", policy, build_pairs(), tmp_path, PARAMS.model_copy(update={"epochs": 1})
    )
    assert other.n_steps == 6
    assert folder_hash(tmp_path / "model") == other.content_hash != report.content_hash


def test_sft_raises_the_likelihood_of_the_chosen_completions(tmp_path, policy):
    report = train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS)
    assert report.loss_curve[-1][1] < report.loss_curve[0][1]
    assert report.n_examples == 48
    before, after = load_policy(policy), load_policy(tmp_path / "model")
    prompts, chosen = build_pairs()["prompt"], build_pairs()["chosen"]
    assert (
        after.log_likelihood(prompts, chosen)[0].mean()
        > before.log_likelihood(prompts, chosen)[0].mean() + 3
    )


def test_down_weighted_rows_are_seen_less_often(tmp_path, policy):
    pairs = build_pairs(weight=[1.0] * 24 + [0.25] * 24)
    report = train_candidate(
        "dpo", policy, pairs, tmp_path, PARAMS.model_copy(update={"epochs": 1})
    )
    assert report.n_pairs == 48
    assert report.n_examples in (29, 30, 31)


def test_prompt_of_max_length_is_dropped_and_counted(tmp_path, policy):
    pairs = build_pairs()
    pairs.loc[0, "prompt"] = "word " * 500
    report = train_candidate(
        "dpo", policy, pairs, tmp_path, PARAMS.model_copy(update={"epochs": 1})
    )
    assert (report.n_too_long, report.n_examples) == (1, 47)
    with pytest.raises(NotEnoughVotes, match="None of 48 training examples is left"):
        train_candidate("dpo", policy, build_pairs(prompt="word " * 500), tmp_path, PARAMS)
    assert folder_hash(tmp_path / "model") == report.content_hash


def test_a_nan_loss_stops_training_and_keeps_the_last_good_model(tmp_path, policy):
    import torch

    good = train_candidate(
        "sft", policy, build_pairs(), tmp_path / "out", PARAMS.model_copy(update={"epochs": 1})
    )
    broken = load_policy(policy)
    with torch.no_grad():
        broken.model.model.norm.weight[0] = float("nan")
    broken.model.save_pretrained(tmp_path / "broken")
    broken.tokenizer.save_pretrained(tmp_path / "broken")
    with pytest.raises(TrainingFailed, match="broke at step 0: the policy's logits"):
        train_candidate("sft", tmp_path / "broken", build_pairs(), tmp_path / "out", PARAMS)
    blind = PARAMS.model_copy(update={"sentinels": SentinelParams(every=0)})
    with pytest.raises(TrainingFailed, match="step 1 of 12: loss is nan"):
        train_candidate("sft", tmp_path / "broken", build_pairs(), tmp_path / "out", blind)
    assert folder_hash(tmp_path / "out" / "model") == good.content_hash


@pytest.mark.parametrize("strategy", ["grpo", "ppo"])
def test_infinite_logits_are_named_during_sampling(tmp_path, policy, strategy):
    broken = load_policy(policy)
    broken.model.model.norm.weight.data[0] = float("nan")
    broken.save(tmp_path / "broken")
    with pytest.raises(TrainingFailed, match="at step 0 of 4: the policy's logits are not finite"):
        train_candidate(
            strategy, tmp_path / "broken", build_pairs(), tmp_path, SHORT, reward=VowelReward()
        )


# in bytes: the weights of the policy have 120,000, its optimiser's state 240,000
@pytest.mark.parametrize("largest", [100_000, 140_000])
def test_full_disk_at_a_checkpoint_is_named_and_rerun_completes(tmp_path, policy, largest):
    with ExitStack() as stack:

        def fill(done, total, note=""):
            if done == 4:  # the next checkpoint is written at 6
                stack.enter_context(full_disk(largest))

        with pytest.raises(
            TrainingFailed,
            match=r"could not write below .* it continues from the last complete checkpoint",
        ):
            train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS, progress=fill)
    assert not (tmp_path / "model").exists()
    assert train_candidate("sft", policy, build_pairs(), tmp_path, PARAMS).resumed_from == 3


def test_a_higher_penalty_gives_a_lower_kl(tmp_path, policy):
    pairs, champion, kls = build_pairs(), load_policy(policy), []
    for penalty in (0.0, 1.0):
        params = SHORT.model_copy(update={"kl_penalty": penalty, "min_steps": 20})
        out = tmp_path / str(penalty)
        train_candidate("grpo", policy, pairs, out, params, reward=VowelReward())
        candidate = load_policy(out / "model")
        prompts = pairs["prompt"].tolist()
        answers = candidate.generate(prompts, seeds=range(len(prompts)), max_new_tokens=12)
        texts = [each.text for each in answers]
        kls.append(float(kl_per_token(candidate, champion, prompts, texts).mean()))
    assert kls[1] < 0.8 * kls[0]

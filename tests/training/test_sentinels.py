import numpy as np
import pytest

from rlhf_pipeline.core.errors import StoppedBySentinel
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams
from rlhf_pipeline.improve.retraining.strategies import train_candidate
from rlhf_pipeline.simulation.testing.strategies import (
    PARAMS,
    VowelReward,
    build_pairs,
    build_policy,
)

UNLIMITED = SentinelParams(
    every=2,
    n_prompts=8,
    **dict.fromkeys(name for name in SentinelParams.model_fields if name.startswith("m")),
)
STEPS = PARAMS.model_copy(update={"epochs": 2, "learning_rate": 3e-3})


def train(policy, out, checkpoint_every=STEPS.checkpoint_every, **limits):
    sentinels = UNLIMITED.model_copy(update=limits)
    params = STEPS.model_copy(update={"sentinels": sentinels, "checkpoint_every": checkpoint_every})
    return train_candidate("dpo", policy, build_pairs(), out, params, reward=VowelReward())


def weights_of(folder):
    return load_policy(folder / "model").model.state_dict()


def are_equal(first, second):
    return all(value.equal(second[name]) for name, value in first.items())


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("models") / "policy")


@pytest.fixture(scope="module")
def watched(tmp_path_factory, policy):
    out = tmp_path_factory.mktemp("watched")
    return train(policy, out), out


def test_measuring_changes_no_weight(tmp_path, policy, watched):
    report, out = watched
    without = train(policy, tmp_path, every=0)
    assert are_equal(weights_of(out), weights_of(tmp_path))
    assert not any("sentinel" in label for label in without.curves)
    assert [step for step, _ in report.curves["sentinel: KL to the parent"]] == [0, 2, 4, 6, 8]
    assert {"sentinel: disagreement", "sentinel: length"} <= report.curves.keys()


def test_candidate_has_the_weights_before_the_harm(tmp_path, policy, watched):
    kl = dict(watched[0].curves["sentinel: KL to the parent"])
    assert 0 == kl[0] < kl[2] < kl[4]
    limit = (kl[2] + kl[4]) / 2
    report = train(policy, tmp_path, max_kl=limit)
    assert (report.stop.sentinel, report.stop.step, report.stop.kept_step) == ("kl", 4, 2)
    assert report.n_steps == 4
    assert report.stop.diagnosis in report.warnings
    again = train(policy, tmp_path, max_kl=limit)
    assert again == report
    # other checkpoints may keep other weights, so the finished training is not reused
    finer = train(policy, tmp_path, checkpoint_every=1, max_kl=limit)
    assert (finer.params["checkpoint_every"], finer.stop.kept_step) == (1, 2)
    candidate, whole = weights_of(tmp_path), weights_of(watched[1])
    parent = load_policy(policy).model.state_dict()
    assert not are_equal(candidate, whole)
    assert not are_equal(candidate, parent)


def test_a_stop_before_the_first_checkpoint_leaves_no_candidate(tmp_path, policy):
    with pytest.raises(
        StoppedBySentinel, match="Sentinel kl stopped the training at step 2, before"
    ) as stopped:
        train(policy, tmp_path, max_kl=1e-9)
    assert [step for step, _ in stopped.value.curves["sentinel: KL to the parent"]] == [0, 2]
    assert not (tmp_path / "model").exists()


class ConstantReward(VowelReward):
    """Finds every completion as good as any other."""

    def member_scores(self, prompts, completions):
        return np.zeros((2, len(completions)))


def test_groups_with_one_reward_stop_an_online_training(tmp_path, policy):
    sentinels = UNLIMITED.model_copy(update={"max_flat_groups": 0.8})
    params = STEPS.model_copy(
        update={"sentinels": sentinels, "checkpoint_every": 1, "max_new_tokens": 8}
    )
    report = train_candidate(
        "grpo", policy, build_pairs(), tmp_path, params, reward=ConstantReward()
    )
    assert report.stop.sentinel == "flat_groups"
    assert "have the same reward" in report.stop.diagnosis

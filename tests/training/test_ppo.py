import math

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.improve.retraining.sentinels import SentinelParams
from rlhf_pipeline.improve.retraining.strategies import train_candidate
from rlhf_pipeline.improve.retraining.strategies.ppo import estimate_advantages, whiten
from rlhf_pipeline.simulation.testing.strategies import PARAMS, build_pairs, build_policy

REWARD, PENALTY = 2.0, 1.0
PROMPT = "what is the sum of 1 and 2"


class LetterReward:
    """A bandit: one token, worth REWARD if it is a small letter."""

    weights_hash = "letters"

    def member_scores(self, prompts, completions):
        return np.array([[REWARD * text.islower() for text in completions]], dtype=float)


def letters_mass(policy):
    """The policy's exact probability of a small letter as the first token."""
    ids = policy.tokenizer(policy.format_prompt(PROMPT), return_tensors="pt")["input_ids"]
    with torch.no_grad():
        p = policy.model(ids).logits[0, -1].double().softmax(-1)
    is_letter = [policy.decode_text([i]).islower() for i in range(len(p))]
    return float(p[torch.tensor(is_letter)].sum())


def test_ppo_reaches_the_optimum_of_a_bandit(tmp_path):
    """The KL-regularised optimum is the parent's distribution times exp(reward / penalty)."""
    policy = build_policy(tmp_path / "policy")
    before = letters_mass(load_policy(policy))
    best = before * math.exp(REWARD / PENALTY)
    best /= best + 1 - before
    params = PARAMS.model_copy(
        update={
            "max_new_tokens": 1,
            "kl_penalty": PENALTY,
            "n_samples": 8,
            "batch_size": 12,
            "learning_rate": 3e-3,
            "min_steps": 60,
            "checkpoint_every": 1000,
            "sentinels": SentinelParams(every=0),
        }
    )
    pairs = build_pairs(prompt=PROMPT)
    train_candidate("ppo", policy, pairs, tmp_path / "out", params, reward=LetterReward())
    after = letters_mass(load_policy(tmp_path / "out" / "model"))
    assert 0.05 < before < best - 0.2
    assert after == pytest.approx(best, abs=0.08)


def test_forward_passes_are_bounded_by_the_part_size(tmp_path, monkeypatch):
    sizes = []
    forward = LlamaForCausalLM.forward

    def watched(self, input_ids=None, **inputs):
        # Trainable forwards and those without a cache; generation itself has one.
        if not inputs.get("use_cache"):
            sizes.append(len(input_ids))
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", watched)
    params = PARAMS.model_copy(update={"n_samples": 2, "batch_size": 8, "gradient_accumulation": 4})
    policy = build_policy(tmp_path / "policy")
    train_candidate(
        "ppo", policy, build_pairs(prompt=PROMPT), tmp_path / "out", params, reward=LetterReward()
    )
    assert max(sizes) == 2 * 8 // 4


def test_advantages_equal_hand_computed_ones():
    rewards = torch.tensor([[0.0, 1.0, 9.0]])
    values, mask = torch.tensor([[0.5, 0.25, 7.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    advantages, returns = estimate_advantages(rewards, values, mask, lam=0.5)
    # second: 1 - 0.25; first: 0 + 0.25 - 0.5 + 0.5 * 0.75
    torch.testing.assert_close(advantages, torch.tensor([[0.125, 0.75, 0.0]]))
    torch.testing.assert_close(returns, torch.tensor([[0.625, 1.0, 0.0]]))
    white = whiten(advantages, mask)
    torch.testing.assert_close(white, torch.tensor([[-1.0, 1.0, 0.0]]), atol=1e-4, rtol=0)

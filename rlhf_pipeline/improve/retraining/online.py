"""Prepares online strategies: they sample completions from the policy and train on their reward."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import NotEnoughVotes
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.rewards import RewardFunction, score_members
from rlhf_pipeline.improve.retraining.training import (
    FinishedTraining,
    TrainingParams,
    build_trl_arguments,
)

STORED = "stored_prompt"  # column of the prompts as people and the reward read them
CURVES = {"reward": "reward", "KL to the parent": "kl", "entropy": "entropy"}


class OnlineParams(Parameters):
    """Parameters that the online strategies share, so two runs can differ in the strategy alone."""

    n_samples: int = Field(
        4,
        description="Online: completions sampled per prompt and step; batch_size counts prompts",
        ge=2,
        le=64,
    )
    kl_penalty: float = Field(
        0.05,
        description="Online: reward lost per nat of divergence from the parent policy",
        ge=0,
        le=10,
    )
    sampling_temperature: float = Field(
        1.0, description="Online: temperature of the sampled completions", gt=0, le=2
    )


def select_prompts(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per prompt of the retraining set: comparison_id of its first pair, prompt_id, prompt,
    the largest weight and the mean difficulty of its pairs.

    Raises NotEnoughVotes below two prompts.
    """
    prompts = pairs.groupby("prompt_id", as_index=False, sort=True).agg(
        comparison_id=("comparison_id", "min"),
        prompt=("prompt", "first"),
        weight=("weight", "max"),
        difficulty=("difficulty", "mean"),
    )
    if len(prompts) < 2:
        raise NotEnoughVotes(
            f"{len(prompts)} prompt in the retraining set; online strategies need 2 or more. "
            "Collect votes on more prompts."
        )
    return prompts


def build_step_arguments(
    policy: Policy, n_prompts: int, params: TrainingParams, checkpoints: Path
) -> dict[str, Any]:
    """Keyword arguments of any trainer of transformers, for batches of `batch_size` prompts.

    Online trainers leave out the rest of an epoch that fills no batch: the number of steps is given
    instead.
    """
    if n_prompts < params.batch_size:
        params = params.model_copy(update={"batch_size": n_prompts, "gradient_accumulation": 1})
    arguments = build_trl_arguments(policy, n_prompts, params, checkpoints)
    del arguments["max_length"]  # prompts are never cut: those that leave no room were dropped
    epochs = arguments.pop("num_train_epochs")
    return arguments | {"max_steps": epochs * math.ceil(n_prompts / params.batch_size)}


def prepare_trl_trainer(
    policy: Policy,
    rows: pd.DataFrame,
    params: TrainingParams,
    checkpoints: Path,
    reward: RewardFunction,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments common to TRL's online trainers, and those of their configs, which count
    completions per batch. TRL reads the reference policy from the folder that the policy was
    loaded from: the parent.
    """
    from datasets import Dataset

    online = select_params(OnlineParams, params)
    arguments = build_step_arguments(policy, len(rows), params, checkpoints)
    arguments["per_device_train_batch_size"] *= online.n_samples
    inputs = {
        "model": policy.model,
        "reward_funcs": make_trl_reward(reward),
        "train_dataset": Dataset.from_list(
            [{"prompt": format_prompt(policy, text), STORED: text} for text in rows["prompt"]]
        ),
        "processing_class": policy.tokenizer,
    }
    return inputs, arguments | {
        "num_generations": online.n_samples,
        "max_completion_length": params.max_new_tokens,
        "temperature": online.sampling_temperature,
        "beta": online.kl_penalty,
        "shuffle_dataset": not params.curriculum,
    }


def format_prompt(policy: Policy, prompt: str) -> Any:
    """The prompt as TRL renders it to the policy's own tokens: messages, or the plain text."""
    if policy.tokenizer.chat_template is None:
        return policy.format_prompt(prompt)
    return policy.build_chat(prompt)


def make_trl_reward(reward: RewardFunction) -> Any:
    """The reward as TRL calls it, with completions as texts or messages and the column STORED."""

    def reward_of_completions(completions: Sequence[Any], **columns: Any) -> list[float]:
        texts = [clean_text(_last_text(completion)) for completion in completions]
        scores = score_members(reward, columns[STORED], texts)
        return [float(score) for score in scores.mean(axis=0)]

    return reward_of_completions


def clean_text(text: str) -> str:
    """A sampled completion as `Policy.decode_text` gives it: what people would be shown."""
    return text.replace("\0", "").strip()


def check_online_health(
    done: FinishedTraining, params: TrainingParams
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Numbers that distinguish a healthy online run from a broken one, and warnings in words."""
    rewards = done.curve("reward")
    first = _mean_at_start(rewards)
    metrics = {
        "reward": done.mean_at_end("reward"),
        "reward_at_start": first,
        "entropy": done.mean_at_end("entropy"),
    }
    if done.curve("kl"):
        metrics["kl_per_token"] = done.mean_at_end("kl")
    if metrics["reward"] > first:
        return metrics, ()
    return metrics, (
        f"The mean reward did not rise: {first:.3f} at the start, {metrics['reward']:.3f} at the "
        "end. Lower kl_penalty, or raise the learning rate or the steps.",
    )


def _mean_at_start(curve: Sequence[tuple[int, float]], share: float = 0.1) -> float:
    values = [value for _, value in curve[: max(1, math.ceil(len(curve) * share))]]
    return sum(values) / len(values)


def _last_text(messages: Any) -> str:
    return messages if isinstance(messages, str) else str(messages[-1]["content"])

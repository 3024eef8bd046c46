"""Trains a policy online with Proximal Policy Optimization (PPO)."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.policy.causal_lm import Policy
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import Recipe, train_and_report
from rlhf_pipeline.retraining.online import (
    CURVES,
    build_step_arguments,
    check_online_health,
    select_prompts,
)
from rlhf_pipeline.retraining.ppo_trainer import PPOParams, build_ppo_trainer
from rlhf_pipeline.retraining.rewards import RewardFunction, require_reward
from rlhf_pipeline.retraining.strategies.base import (
    TrainingReport,
    check_trainable_pairs,
    sample_by_weight,
)
from rlhf_pipeline.retraining.training import TrainingParams

PPO_CURVES = CURVES | {"value loss": "value_loss", "KL penalty": "kl_penalty"}


class PPO:
    """Samples completions for the prompts of the retraining set; a value head estimates the reward
    to come at each token, and only what exceeds it is reinforced (Ouyang et al. 2022). The
    divergence from the parent policy is taken off the reward, token by token.
    """

    name: ClassVar[str] = "ppo"
    Params: ClassVar[type[BaseModel]] = PPOParams
    needs_reward: ClassVar[bool] = True

    def train(
        self,
        policy_folder: Path,
        pairs: pd.DataFrame,
        out: Path,
        params: TrainingParams,
        *,
        reward: RewardFunction | None = None,
        progress: Progress = ignore_progress,
    ) -> TrainingReport:
        checked = check_trainable_pairs(pairs, params.min_pairs)
        rows = sample_by_weight(select_prompts(checked), seed=params.seed)
        build = partial(_build_trainer, reward=require_reward(self.name, reward))
        return train_and_report(
            Recipe(self.name, build, PPO_CURVES, check_online_health, is_online=True),
            policy_folder,
            pairs=checked,
            rows=rows,
            out=out,
            params=params,
            reward=reward,
            progress=progress,
        )


def _build_trainer(
    policy: Policy,
    rows: pd.DataFrame,
    params: TrainingParams,
    checkpoints: Path,
    *,
    reward: RewardFunction,
) -> Any:
    arguments = build_step_arguments(policy, len(rows), params, checkpoints)
    # The trainer splits its batch itself, after sampling.
    arguments["per_device_train_batch_size"] *= arguments.pop("gradient_accumulation_steps")
    return build_ppo_trainer(policy, rows["prompt"].tolist(), arguments, params, reward)

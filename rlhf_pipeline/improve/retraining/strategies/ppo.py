"""Trains a policy online with Proximal Policy Optimization (PPO)."""

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.online import CURVES, build_step_arguments
from rlhf_pipeline.improve.retraining.ppo_trainer import PPOParams, build_ppo_trainer
from rlhf_pipeline.improve.retraining.strategies.online_strategy import OnlineStrategy
from rlhf_pipeline.improve.retraining.training import TrainingParams


class PPO(OnlineStrategy):
    """Samples completions for the prompts of the retraining set; a value head estimates the reward
    to come at each token, and only what exceeds it is reinforced (Ouyang et al. 2022). The
    divergence from the parent policy is taken off the reward, token by token.
    """

    name: ClassVar[str] = "ppo"
    Params: ClassVar[type[BaseModel]] = PPOParams
    curves = CURVES | {"value loss": "value_loss"}

    def count_updates(self, params: TrainingParams) -> int:
        return select_params(PPOParams, params).ppo_epochs

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        arguments = build_step_arguments(policy, len(rows), params, checkpoints)
        # The trainer splits its batch itself, after sampling.
        arguments["per_device_train_batch_size"] *= arguments.pop("gradient_accumulation_steps")
        return build_ppo_trainer(policy, rows["prompt"].tolist(), arguments, params, self.reward)

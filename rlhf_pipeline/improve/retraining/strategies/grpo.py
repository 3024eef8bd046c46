"""Trains a policy online with Group Relative Policy Optimization (GRPO), by TRL."""

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.online import OnlineParams, prepare_trl_trainer
from rlhf_pipeline.improve.retraining.strategies.online_strategy import OnlineStrategy
from rlhf_pipeline.improve.retraining.training import TrainingParams, build_config


class GRPOParams(OnlineParams):
    """Parameters of GRPO."""


class GRPO(OnlineStrategy):
    """Samples completions for the prompts of the retraining set and reinforces those that score
    above their prompt's mean, in units of its standard deviation (Shao et al. 2024). The divergence
    from the parent policy is part of the loss, not of the reward.
    """

    name: ClassVar[str] = "grpo"
    Params: ClassVar[type[BaseModel]] = GRPOParams
    config: ClassVar[str] = "trl.GRPOConfig"

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        from trl import GRPOTrainer

        given, arguments = prepare_trl_trainer(policy, rows, params, checkpoints, self.reward)
        return GRPOTrainer(args=build_config(self, arguments, params), **given)

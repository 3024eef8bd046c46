"""Trains a policy online with REINFORCE Leave-One-Out (RLOO), by TRL."""

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.online import OnlineParams, prepare_trl_trainer
from rlhf_pipeline.improve.retraining.strategies.online_strategy import OnlineStrategy
from rlhf_pipeline.improve.retraining.training import TrainingParams, build_config


class RLOOParams(OnlineParams):
    """Parameters of RLOO."""


class RLOO(OnlineStrategy):
    """Samples completions for the prompts of the retraining set and reinforces those that score
    above the mean of the others of their prompt (Ahmadian et al. 2024). Their divergence from the
    parent policy is taken off the reward.
    """

    name: ClassVar[str] = "rloo"
    Params: ClassVar[type[BaseModel]] = RLOOParams
    config: ClassVar[str] = "trl.RLOOConfig"

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        from trl import RLOOTrainer

        given, arguments = prepare_trl_trainer(policy, rows, params, checkpoints, self.reward)
        return RLOOTrainer(args=build_config(self, arguments, params), **given)

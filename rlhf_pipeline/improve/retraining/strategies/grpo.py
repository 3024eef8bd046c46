"""Trains a policy online with Group Relative Policy Optimization (GRPO), by TRL."""

from typing import ClassVar

from rlhf_pipeline.improve.retraining.strategies.online_strategy import OnlineStrategy


class GRPO(OnlineStrategy):
    """Samples completions for the prompts of the retraining set and reinforces those that score
    above their prompt's mean, in units of its standard deviation (Shao et al. 2024). The divergence
    from the parent policy is part of the loss, not of the reward.
    """

    name: ClassVar[str] = "grpo"
    config: ClassVar[str] = "trl.GRPOConfig"
    trainer: ClassVar[str] = "trl.GRPOTrainer"

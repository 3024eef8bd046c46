"""Trains a policy online with REINFORCE Leave-One-Out (RLOO), by TRL."""

from typing import ClassVar

from rlhf_pipeline.improve.retraining.strategies.online_strategy import OnlineStrategy


class RLOO(OnlineStrategy):
    """Samples completions for the prompts of the retraining set and reinforces those that score
    above the mean of the others of their prompt (Ahmadian et al. 2024). Their divergence from the
    parent policy is taken off the reward.
    """

    name: ClassVar[str] = "rloo"
    config: ClassVar[str] = "trl.RLOOConfig"
    trainer: ClassVar[str] = "trl.RLOOTrainer"

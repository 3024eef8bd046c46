"""Registers training strategies by name: ways to train a candidate policy on preference pairs."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.plugins import Members
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.rewards import RewardFunction
from rlhf_pipeline.retraining.strategies.base import Strategy, TrainingReport
from rlhf_pipeline.retraining.strategies.dpo import DPO
from rlhf_pipeline.retraining.strategies.grpo import GRPO
from rlhf_pipeline.retraining.strategies.kto import KTO
from rlhf_pipeline.retraining.strategies.ppo import PPO
from rlhf_pipeline.retraining.strategies.rloo import RLOO
from rlhf_pipeline.retraining.strategies.sft import SFT
from rlhf_pipeline.retraining.training import TrainingParams

# To add a strategy: one file with one class that satisfies base.Strategy, and one line here.
STRATEGIES = Members[type[Strategy]](
    "retraining.strategies",
    {"dpo": DPO, "sft": SFT, "kto": KTO, "rloo": RLOO, "grpo": GRPO, "ppo": PPO},
)

__all__ = [
    "STRATEGIES",
    "Strategy",
    "TrainingReport",
    "train_candidate",
]


def train_candidate(
    strategy: str,
    policy_folder: Path,
    pairs: pd.DataFrame,
    out: Path,
    params: TrainingParams,
    *,
    reward: RewardFunction | None = None,
    progress: Progress = ignore_progress,
) -> TrainingReport:
    """Train a candidate with the strategy of that name; see `Strategy.train`.

    `params` is a StrategyParams: the parameters of all strategies are part of the candidate's
    fingerprint. Raises ConfigurationError for an unknown name.
    """
    if strategy not in STRATEGIES:
        raise ConfigurationError(
            f"Unknown strategy `{strategy}`. Known: {', '.join(sorted(STRATEGIES))}."
        )
    return STRATEGIES[strategy]().train(
        policy_folder, pairs, out, params, reward=reward, progress=progress
    )

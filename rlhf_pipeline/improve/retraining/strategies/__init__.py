"""Registers training strategies by name: ways to train a candidate policy on preference pairs."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.improve.retraining.rewards import RewardFunction
from rlhf_pipeline.improve.retraining.strategies.base import (
    Strategy,
    TrainedStrategy,
    TrainingReport,
)
from rlhf_pipeline.improve.retraining.strategies.dpo import DPO
from rlhf_pipeline.improve.retraining.strategies.grpo import GRPO
from rlhf_pipeline.improve.retraining.strategies.kto import KTO
from rlhf_pipeline.improve.retraining.strategies.ppo import PPO
from rlhf_pipeline.improve.retraining.strategies.rloo import RLOO
from rlhf_pipeline.improve.retraining.strategies.sft import SFT
from rlhf_pipeline.improve.retraining.training import TrainingParams, read_strategy_fields
from rlhf_pipeline.learn.reward_model.launching import check_launch_options

# To add a strategy: one file with one class that satisfies base.Strategy, and one line here.
STRATEGIES = Members[type[Strategy]](
    "retraining.strategies",
    {"dpo": DPO, "sft": SFT, "kto": KTO, "rloo": RLOO, "grpo": GRPO, "ppo": PPO},
)

__all__ = [
    "STRATEGIES",
    "Strategy",
    "TrainingReport",
    "check_batch",
    "train_candidate",
]


def check_batch(strategy: str, params: TrainingParams) -> None:
    """Raise ConfigurationError where a batch is divided into parts too small for the strategy, for
    fields of `trainer` that it does not take, and for options that `accelerate launch` lacks.
    """
    kind = STRATEGIES[strategy]
    if params.trainer:
        if not issubclass(kind, TrainedStrategy):
            raise ConfigurationError(f"trainer: {strategy} takes no fields. Leave it empty.")
        read_strategy_fields(kind(), params.trainer)
    check_launch_options(params.launch)
    needed = getattr(kind, "min_rows_per_pass", 1)
    if params.rows_per_pass < needed:
        raise ConfigurationError(
            f"batch_size {params.batch_size} in {params.gradient_accumulation} parts gives "
            f"{params.rows_per_pass} row per part, but {strategy} compares the {needed} or more "
            "rows of a part. Raise batch_size, or lower gradient_accumulation."
        )


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
    fingerprint. Raises ConfigurationError for an unknown name, and as `check_batch`.
    """
    kind = STRATEGIES[strategy]
    check_batch(strategy, params)
    return kind().train(policy_folder, pairs, out, params, reward=reward, progress=progress)

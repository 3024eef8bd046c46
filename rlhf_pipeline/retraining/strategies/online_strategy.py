"""The common part of online strategies: they sample completions and train on their reward."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.policy.causal_lm import Policy
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import Recipe, train_and_report
from rlhf_pipeline.retraining.online import CURVES, check_online_health, select_prompts
from rlhf_pipeline.retraining.rewards import RewardFunction, require_reward
from rlhf_pipeline.retraining.strategies.base import (
    TrainingReport,
    check_trainable_pairs,
    sample_by_weight,
)
from rlhf_pipeline.retraining.training import TrainingParams


class OnlineStrategy(ABC):
    """Trains on one row per prompt of the retraining set, drawn by weight.

    A subclass builds the trainer; it satisfies Strategy.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    needs_reward: ClassVar[bool] = True
    # label of a plotted curve -> the number that the trainer logs
    curves: ClassVar[Mapping[str, str]] = CURVES

    @abstractmethod
    def build_trainer(
        self,
        policy: Policy,
        rows: pd.DataFrame,
        params: TrainingParams,
        checkpoints: Path,
        *,
        reward: RewardFunction,
    ) -> Any:
        """A trainer of transformers that samples for the prompts of `rows`."""

    def count_updates(self, params: TrainingParams) -> int:
        """How often one step updates the weights, each time at the learning rate."""
        return 1

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
        build = partial(self.build_trainer, reward=require_reward(self.name, reward))
        recipe = Recipe(
            self.name,
            build,
            self.curves,
            check_online_health,
            is_online=True,
            updates_per_step=self.count_updates(params),
        )
        return train_and_report(
            recipe,
            policy_folder,
            pairs=checked,
            rows=rows,
            out=out,
            params=params,
            reward=reward,
            progress=progress,
        )

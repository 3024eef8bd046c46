"""The common part of online strategies: they sample completions and train on their reward."""

from collections.abc import Mapping
from typing import ClassVar

import pandas as pd

from rlhf_pipeline.improve.retraining.online import CURVES, check_online_health, select_prompts
from rlhf_pipeline.improve.retraining.strategies.base import TrainedStrategy, sample_by_weight
from rlhf_pipeline.improve.retraining.training import FinishedTraining, TrainingParams


class OnlineStrategy(TrainedStrategy):
    """Trains on one row per prompt of the retraining set, drawn by weight.

    A subclass builds the trainer, which samples for the prompts of `rows` and is rewarded by
    `self.reward`; it satisfies Strategy.
    """

    needs_reward: ClassVar[bool] = True
    owned_fields: ClassVar[Mapping[str, str]] = {
        "beta": "kl_penalty",
        "num_generations": "n_samples",
        "max_completion_length": "max_new_tokens",
        "temperature": "sampling_temperature",
        "shuffle_dataset": "curriculum",
    }
    curves: ClassVar[Mapping[str, str]] = CURVES

    def draw_rows(self, pairs: pd.DataFrame, params: TrainingParams) -> pd.DataFrame:
        return sample_by_weight(select_prompts(pairs), seed=params.seed)

    def check_health(
        self, done: FinishedTraining, params: TrainingParams
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        return check_online_health(done, params)

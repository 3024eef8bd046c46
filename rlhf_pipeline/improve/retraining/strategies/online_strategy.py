"""The common part of online strategies: they sample completions and train on their reward."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.online import (
    CURVES,
    OnlineParams,
    check_online_health,
    prepare_trl_trainer,
    select_prompts,
)
from rlhf_pipeline.improve.retraining.strategies.base import (
    TrainedStrategy,
    import_class,
    sample_by_weight,
)
from rlhf_pipeline.improve.retraining.training import (
    FinishedTraining,
    TrainingParams,
    build_config,
)


class OnlineStrategy(TrainedStrategy):
    """Trains on one row per prompt of the retraining set, drawn by weight.

    A subclass names a trainer of TRL that samples completions, or builds its own, which samples for
    the prompts of `rows` and is rewarded by `self.reward`; it satisfies Strategy.
    """

    Params: ClassVar[type[BaseModel]] = OnlineParams
    trainer: ClassVar[str]  # such as trl.GRPOTrainer
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

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        inputs, arguments = prepare_trl_trainer(policy, rows, params, checkpoints, self.reward)
        return import_class(self.trainer)(args=build_config(self, arguments, params), **inputs)

    def check_health(
        self, done: FinishedTraining, params: TrainingParams
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        return check_online_health(done, params)

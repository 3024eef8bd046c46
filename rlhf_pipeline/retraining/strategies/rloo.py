"""Trains a policy online with REINFORCE Leave-One-Out (RLOO), by TRL."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.policy.causal_lm import Policy
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import Recipe, train_and_report
from rlhf_pipeline.retraining.online import (
    CURVES,
    OnlineParams,
    build_online_arguments,
    build_prompt_examples,
    check_online_health,
    make_trl_reward,
    select_prompts,
)
from rlhf_pipeline.retraining.rewards import RewardFunction, require_reward
from rlhf_pipeline.retraining.strategies.base import (
    TrainingReport,
    check_trainable_pairs,
    sample_by_weight,
)
from rlhf_pipeline.retraining.training import TrainingParams


class RLOOParams(OnlineParams):
    """Parameters of RLOO."""


class RLOO:
    """Samples completions for the prompts of the retraining set and reinforces those that score
    above the mean of the others of their prompt (Ahmadian et al. 2024). Their divergence from the
    parent policy is taken off the reward.
    """

    name: ClassVar[str] = "rloo"
    Params: ClassVar[type[BaseModel]] = RLOOParams
    needs_reward: ClassVar[bool] = True

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
        build = partial(_build_trainer, reward=require_reward(self.name, reward))
        return train_and_report(
            Recipe(self.name, build, CURVES, check_online_health, is_online=True),
            policy_folder,
            pairs=checked,
            rows=rows,
            out=out,
            params=params,
            reward=reward,
            progress=progress,
        )


def _build_trainer(
    policy: Policy,
    rows: pd.DataFrame,
    params: TrainingParams,
    checkpoints: Path,
    *,
    reward: RewardFunction,
) -> Any:
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    # TRL reads the reference policy from the folder that the policy was loaded from: the parent.
    return RLOOTrainer(
        model=policy.model,
        reward_funcs=make_trl_reward(reward),
        args=RLOOConfig(**build_online_arguments(policy, len(rows), params, checkpoints)),
        train_dataset=Dataset.from_list(build_prompt_examples(policy, rows)),
        processing_class=policy.tokenizer,
    )

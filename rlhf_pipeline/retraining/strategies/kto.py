"""Trains a policy with Kahneman-Tversky Optimization (KTO), by TRL."""

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.plugins import select_params
from rlhf_pipeline.policy.causal_lm import Policy
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.adapters import load_reference
from rlhf_pipeline.retraining.candidates import Recipe, train_and_report
from rlhf_pipeline.retraining.rewards import RewardFunction
from rlhf_pipeline.retraining.strategies.base import (
    PullParams,
    TrainingReport,
    check_trainable_pairs,
    sample_by_weight,
    to_messages,
)
from rlhf_pipeline.retraining.training import (
    FinishedTraining,
    TrainingParams,
    build_trl_arguments,
)

CURVES = {
    "reward of chosen": "rewards/chosen",
    "reward of rejected": "rewards/rejected",
    "KL to the parent": "kl",
}


class KTOParams(PullParams):
    """Parameters of KTO."""


class KTO:
    """Raises the likelihood of each chosen completion and lowers that of each rejected one,
    independently of the other (Ethayarajh et al. 2024): a single doubtful pair weighs less than in
    DPO.
    """

    name: ClassVar[str] = "kto"
    Params: ClassVar[type[BaseModel]] = KTOParams
    needs_reward: ClassVar[bool] = False
    min_rows_per_pass: ClassVar[int] = 2  # the divergence is estimated from the others of a pass

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
        rows = split_pairs(sample_by_weight(checked, seed=params.seed), params.seed)
        return train_and_report(
            Recipe(self.name, _build_trainer, CURVES, _check_health),
            policy_folder,
            pairs=checked,
            rows=rows,
            out=out,
            params=params,
            reward=reward,
            progress=progress,
        )


def split_pairs(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Two rows per pair (prompt, chosen, difficulty, label), in an order drawn from `seed`.

    TRL reads the rows in their order, since it estimates the divergence from neighbours in a batch.
    """
    kept = rows[["prompt", "chosen", "difficulty"]]
    good, bad = kept.assign(label=True), kept.assign(chosen=rows["rejected"], label=False)
    both = pd.concat([good, bad], ignore_index=True)
    return both.sample(frac=1.0, random_state=seed).reset_index(drop=True)


def _build_trainer(
    policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
) -> Any:
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    return KTOTrainer(
        model=policy.model,
        ref_model=load_reference(policy, params.dtype),
        args=KTOConfig(
            beta=select_params(KTOParams, params).beta,
            disable_dropout=False,  # that of the policy is off; adapters keep theirs
            **build_trl_arguments(policy, len(rows), params, checkpoints)
            # the divergence is estimated from neighbours in a batch, so their order is `rows`'
            | {"train_sampling_strategy": "sequential"},
        ),
        train_dataset=Dataset.from_list(_build_examples(policy, rows)),
        processing_class=policy.tokenizer,
    )


def _build_examples(policy: Policy, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """TRL's unpaired preference type: messages if the tokenizer has a chat template."""
    is_plain = policy.tokenizer.chat_template is None
    return [
        {
            "prompt": prompt if is_plain else to_messages("user", prompt),
            "completion": policy.space_completion(prompt, text)
            if is_plain
            else to_messages("assistant", text),
            "label": bool(label),
        }
        for prompt, text, label in zip(rows["prompt"], rows["chosen"], rows["label"], strict=True)
    ]


def _check_health(
    done: FinishedTraining, params: TrainingParams
) -> tuple[dict[str, float], tuple[str, ...]]:
    chosen, rejected = (done.mean_at_end(f"rewards/{side}") for side in ("chosen", "rejected"))
    metrics = {"loss": done.mean_at_end("loss"), "reward_margin": chosen - rejected}
    if metrics["reward_margin"] > 0:
        return metrics, ()
    return metrics, (
        f"The reward margin is {metrics['reward_margin']:.3f} at the end: the policy did not learn "
        "the preferences.",
    )

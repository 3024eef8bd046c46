"""Trains a policy with Kahneman-Tversky Optimization (KTO), by TRL."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.strategies.base import (
    PullParams,
    TrainedStrategy,
    sample_by_weight,
)
from rlhf_pipeline.improve.retraining.training import (
    FinishedTraining,
    TrainingParams,
    build_config,
    build_trl_arguments,
    keep_tokens,
)


class KTOParams(PullParams):
    """Parameters of KTO."""


class KTO(TrainedStrategy):
    """Raises the likelihood of each chosen completion and lowers that of each rejected one,
    independently of the other (Ethayarajh et al. 2024): a single doubtful pair weighs less than in
    DPO.
    """

    name: ClassVar[str] = "kto"
    Params: ClassVar[type[BaseModel]] = KTOParams
    config: ClassVar[str] = "trl.KTOConfig"
    owned_fields: ClassVar[Mapping[str, str]] = {"beta": "beta"}
    needs_reference: ClassVar[bool] = True
    curves = {
        "reward of chosen": "rewards/chosen",
        "reward of rejected": "rewards/rejected",
        "KL to the parent": "kl",
    }
    min_rows_per_pass: ClassVar[int] = 2  # the divergence is estimated from the others of a pass

    def draw_rows(self, pairs: pd.DataFrame, params: TrainingParams) -> pd.DataFrame:
        return split_pairs(sample_by_weight(pairs, seed=params.seed), params.seed)

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        from datasets import Dataset
        from trl import KTOTrainer

        config = build_config(
            self,
            build_trl_arguments(policy, len(rows), params, checkpoints)
            | {
                "beta": select_params(KTOParams, params).beta,
                "disable_dropout": False,  # that of the policy is off; adapters keep theirs
                # the divergence is estimated from neighbours in a batch, in the order of `rows`
                "train_sampling_strategy": "sequential",
            },
            params,
        )
        exchanges = [
            policy.tokenize_exchange(prompt, text)
            for prompt, text in zip(rows["prompt"], rows["chosen"], strict=True)
        ]
        neighbours = rotate([c for _, c in exchanges], config.per_device_train_batch_size)
        return keep_tokens(KTOTrainer)(
            model=policy.model,
            ref_model=self.reference,
            args=config,
            train_dataset=Dataset.from_list(
                [
                    {
                        "prompt_ids": prompt_ids,
                        "completion_ids": completion_ids,
                        "KL_completion_ids": neighbour,
                        "label": bool(label),
                    }
                    for (prompt_ids, completion_ids), neighbour, label in zip(
                        exchanges, neighbours, rows["label"], strict=True
                    )
                ]
            ),
            processing_class=policy.tokenizer,
        )

    def check_health(
        self, done: FinishedTraining, params: TrainingParams
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        chosen, rejected = (done.mean_at_end(f"rewards/{side}") for side in ("chosen", "rejected"))
        metrics = {"loss": done.mean_at_end("loss"), "reward_margin": chosen - rejected}
        if metrics["reward_margin"] > 0:
            return metrics, ()
        return metrics, (
            f"The reward margin is {metrics['reward_margin']:.3f} at the end: the policy did "
            "not learn the preferences.",
        )


def rotate(completions: Sequence[list[int]], size: int) -> list[list[int]]:
    """The completion of the row before, in each batch of `size` rows, of the first row the last:
    mismatched exchanges, by which TRL estimates the divergence.

    >>> rotate([[1], [2], [3], [4], [5]], 3)
    [[3], [1], [2], [5], [4]]
    """
    batches = [completions[at : at + size] for at in range(0, len(completions), size)]
    return [row for batch in batches for row in (batch[-1], *batch[:-1])]


def split_pairs(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Two rows per pair (prompt, chosen, difficulty, label), in an order drawn from `seed`.

    TRL reads the rows in their order, since it estimates the divergence from neighbours in a batch.
    """
    columns = rows[["prompt", "chosen", "difficulty"]]
    good, bad = columns.assign(label=True), columns.assign(chosen=rows["rejected"], label=False)
    both = pd.concat([good, bad], ignore_index=True)
    return both.sample(frac=1.0, random_state=seed).reset_index(drop=True)

"""Trains a policy on preference pairs with Direct Preference Optimization (DPO), by TRL."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.strategies.base import (
    PullParams,
    TrainedStrategy,
)
from rlhf_pipeline.improve.retraining.training import (
    FinishedTraining,
    TrainingParams,
    build_config,
    build_trl_arguments,
    keep_tokens,
)

# Nats per completion; at beta 0.1 this is one unit of reward.
LOSS_OF_LIKELIHOOD = 10.0
FLIPPED_SHARE = 0.1  # Chowdhury et al. 2024 recommend it for the robust loss


class DPOParams(PullParams):
    """Parameters specific to DPO."""

    dpo_loss: Literal[
        "sigmoid", "hinge", "ipo", "sigmoid_norm", "robust", "apo_zero", "apo_down", "sppo_hard"
    ] = Field(
        "sigmoid",
        description="DPO: loss on the margin, by its name in TRL: sigmoid is DPO as published, ipo "
        "and hinge bound the margin, robust expects one vote in ten to be flipped",
    )


class DPO(TrainedStrategy):
    """Raises the likelihood of the chosen completion over the rejected one, relative to the parent
    policy (Rafailov et al. 2023).

    Weights are applied by repeating and leaving out rows
    (`sample_by_weight`).
    """

    name: ClassVar[str] = "dpo"
    Params: ClassVar[type[BaseModel]] = DPOParams
    config: ClassVar[str] = "trl.DPOConfig"
    owned_fields: ClassVar[Mapping[str, str]] = {"beta": "beta", "loss_type": "dpo_loss"}
    needs_reference: ClassVar[bool] = True
    curves = {"reward margin": "rewards/margins", "reward accuracy": "rewards/accuracies"}

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        from datasets import Dataset
        from trl import DPOTrainer

        own = select_params(DPOParams, params)
        texts = zip(rows["prompt"], rows["chosen"], rows["rejected"], strict=True)
        rows_of_ids = []
        for prompt, good, bad in texts:
            prompt_ids, chosen_ids = policy.tokenize_exchange(prompt, good)
            rejected_ids = policy.tokenize_exchange(prompt, bad)[1]
            rows_of_ids.append(
                {
                    "prompt_ids": prompt_ids,
                    "chosen_ids": chosen_ids,
                    "rejected_ids": rejected_ids,
                }
            )
        return keep_tokens(DPOTrainer)(
            model=policy.model,
            ref_model=self.reference,
            args=build_config(
                self,
                build_trl_arguments(policy, len(rows), params, checkpoints)
                | {
                    "beta": own.beta,
                    "loss_type": own.dpo_loss,
                    "label_smoothing": FLIPPED_SHARE if own.dpo_loss == "robust" else 0.0,
                    "disable_dropout": False,  # that of the policy is off; adapters keep theirs
                },
                params,
            ),
            train_dataset=Dataset.from_list(rows_of_ids),
            processing_class=policy.tokenizer,
        )

    def check_health(
        self, done: FinishedTraining, params: TrainingParams
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """TRL logs implicit rewards = beta * (log p - log p of the reference): divided by beta they
        are the change of the completions' summed log probability since the start.
        """
        beta = select_params(DPOParams, params).beta
        metrics = {
            "loss": done.mean_at_end("loss"),
            "reward_margin": done.mean_at_end("rewards/margins"),
            "reward_accuracy": done.mean_at_end("rewards/accuracies"),
            "chosen_log_p_change": done.mean_at_end("rewards/chosen") / beta,
            "rejected_log_p_change": done.mean_at_end("rewards/rejected") / beta,
        }
        worries = []
        if metrics["reward_margin"] <= 0:
            worries.append(
                f"The reward margin is {metrics['reward_margin']:.3f} at the end: the policy "
                "did not learn the preferences."
            )
        if metrics["chosen_log_p_change"] < -LOSS_OF_LIKELIHOOD:
            # Razin et al. 2024, likelihood displacement: both completions of a pair can become less
            # likely.
            worries.append(
                f"The chosen completions lost {-metrics['chosen_log_p_change']:.1f} nats each: "
                "mass moves to completions nobody judged. Raise beta, or lower the learning rate "
                "or the epochs."
            )
        return metrics, tuple(worries)

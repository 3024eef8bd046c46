"""Trains a policy by best-of-n supervised fine-tuning (SFT), with TRL."""

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.plugins import select_params
from rlhf_pipeline.policy.causal_lm import Policy
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import Recipe, train_and_report
from rlhf_pipeline.retraining.rewards import RewardFunction
from rlhf_pipeline.retraining.strategies.base import (
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

CURVES = {"token accuracy": "mean_token_accuracy"}


class SFTParams(Parameters):
    """Parameters specific to SFT."""

    best_of_n: int = Field(
        1, description="SFT: completions kept per prompt, best first", ge=1, le=64
    )


class SFT:
    """Imitates, for each prompt, the completion that people preferred most; only the completion's
    tokens have a loss.

    Best of n (Stiennon et al. 2020, section 4): n is the number of completions of a prompt that
    were compared.
    """

    name: ClassVar[str] = "sft"
    Params: ClassVar[type[BaseModel]] = SFTParams
    needs_reward: ClassVar[bool] = False

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
        rows = sample_by_weight(
            select_best_completions(checked, keep=select_params(SFTParams, params).best_of_n),
            seed=params.seed,
            key="example_id",
        )
        recipe = Recipe(self.name, _build_trainer, CURVES, _check_health, imitates=True)
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


def select_best_completions(pairs: pd.DataFrame, *, keep: int) -> pd.DataFrame:
    """Select the `keep` best completions per prompt: example_id, prompt_id, prompt, chosen, weight
    and difficulty, the mean of the pairs it won.

    A completion's standing is the sum over its pairs of weight * margin, added where it was chosen
    and subtracted where it was rejected. Only completions with a positive standing are imitated;
    the text breaks ties, so the order of the pairs does not matter. A completion's weight is the
    largest among the pairs it won.
    """
    # A majority without strength still counts as a majority.
    signed = pairs["weight"] * pairs["margin"].clip(lower=0.01)
    common = {"prompt_id": pairs["prompt_id"], "prompt": pairs["prompt"]}
    won = pd.DataFrame(
        {**common, "chosen": pairs["chosen"], "standing": signed, "weight": pairs["weight"]}
    ).assign(difficulty=pairs["difficulty"])
    lost = pd.DataFrame({**common, "chosen": pairs["rejected"], "standing": -signed, "weight": 0.0})
    both = pd.concat([won, lost], ignore_index=True)
    ranked = both.groupby(["prompt_id", "prompt", "chosen"], as_index=False, sort=True).agg(
        standing=("standing", "sum"), weight=("weight", "max"), difficulty=("difficulty", "mean")
    )
    ranked = ranked[ranked["standing"] > 0].sort_values(
        ["prompt_id", "standing", "chosen"], ascending=[True, False, True]
    )
    best = ranked.groupby("prompt_id", sort=False).head(keep).reset_index(drop=True)
    best["example_id"] = best["prompt_id"] + "/" + best.groupby("prompt_id").cumcount().astype(str)
    return best[["example_id", "prompt_id", "prompt", "chosen", "weight", "difficulty"]]


def _build_trainer(
    policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=policy.model,
        args=SFTConfig(
            completion_only_loss=True,
            packing=False,
            **build_trl_arguments(policy, len(rows), params, checkpoints),
        ),
        train_dataset=Dataset.from_list(_build_examples(policy, rows)),
        processing_class=policy.tokenizer,
    )


def _build_examples(policy: Policy, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """TRL's prompt-completion type: messages if the tokenizer has a chat template, as `Policy`
    reads prompts, otherwise text.
    """
    texts = list(zip(rows["prompt"], rows["chosen"], strict=True))
    if policy.tokenizer.chat_template is None:
        return [
            {"prompt": prompt, "completion": policy.space_completion(prompt, chosen)}
            for prompt, chosen in texts
        ]
    return [
        {"prompt": to_messages("user", prompt), "completion": to_messages("assistant", chosen)}
        for prompt, chosen in texts
    ]


def _check_health(
    done: FinishedTraining, params: TrainingParams
) -> tuple[dict[str, float], tuple[str, ...]]:
    metrics = {
        "loss": done.mean_at_end("loss"),
        "token_accuracy": done.mean_at_end("mean_token_accuracy"),
    }
    first = done.curve("loss")[0][1]
    if metrics["loss"] < first:
        return metrics, ()
    return metrics, (
        f"The loss did not fall: {first:.3f} at the start, {metrics['loss']:.3f} at the end.",
    )

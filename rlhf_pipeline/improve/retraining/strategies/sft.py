"""Trains a policy by best-of-n supervised fine-tuning (SFT), with TRL."""

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.strategies.base import (
    TrainedStrategy,
    sample_by_weight,
)
from rlhf_pipeline.improve.retraining.training import (
    FinishedTraining,
    TrainingParams,
    build_config,
    build_trl_arguments,
)


class SFTParams(Parameters):
    """Parameters specific to SFT."""

    best_of_n: int = Field(
        1, description="SFT: completions kept per prompt, best first", ge=1, le=64
    )


class SFT(TrainedStrategy):
    """Imitates, for each prompt, the completion that people preferred most; only the completion's
    tokens have a loss.

    Best of n (Stiennon et al. 2020, section 4): n is the number of completions of a prompt that
    were compared.
    """

    name: ClassVar[str] = "sft"
    Params: ClassVar[type[BaseModel]] = SFTParams
    config: ClassVar[str] = "trl.SFTConfig"
    imitates = True
    curves = {"token accuracy": "mean_token_accuracy"}

    def draw_rows(self, pairs: pd.DataFrame, params: TrainingParams) -> pd.DataFrame:
        best = select_best_completions(pairs, keep=select_params(SFTParams, params).best_of_n)
        return sample_by_weight(best, seed=params.seed, key="example_id")

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        from datasets import Dataset
        from trl import SFTTrainer

        exchanges = [
            policy.tokenize_exchange(prompt, chosen)
            for prompt, chosen in zip(rows["prompt"], rows["chosen"], strict=True)
        ]
        return SFTTrainer(
            model=policy.model,
            args=build_config(
                self,
                build_trl_arguments(policy, len(rows), params, checkpoints)
                | {"completion_only_loss": True, "packing": False},
                params,
            ),
            train_dataset=Dataset.from_list(
                [
                    {"input_ids": [*p, *c], "completion_mask": [0] * len(p) + [1] * len(c)}
                    for p, c in exchanges
                ]
            ),
            processing_class=policy.tokenizer,
        )

    def check_health(
        self, done: FinishedTraining, params: TrainingParams
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

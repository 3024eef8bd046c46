"""Trains a policy online with Proximal Policy Optimization (PPO; Schulman et al. 2017).

TRL has no PPO any more, so its loop is ours; checkpoints, schedule, logging and device are those of
transformers' Trainer. One step of the trainer samples completions, scores them, and takes
`ppo_epochs` optimiser steps on them. So every checkpoint is a whole step, and an interrupted
training ends with the same weights.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel, Field

from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.online import (
    CURVES,
    OnlineParams,
    build_step_arguments,
    clean_text,
)
from rlhf_pipeline.improve.retraining.rewards import RewardFunction, score_members
from rlhf_pipeline.improve.retraining.sentinels import evaluation_mode
from rlhf_pipeline.improve.retraining.strategies.online_strategy import OnlineStrategy
from rlhf_pipeline.improve.retraining.training import TrainingParams, build_config

STATE = "ppo.pt"  # in a checkpoint: the value head
# Completions sampled for a step, tensors by name: ids and attention (n, width + t) with `width`
# tokens of prompt, padded on the left, and (n, t) mask (1 up to the end token), log_p, values,
# advantages, returns.
Batch = dict[str, Any]


class PPOParams(OnlineParams):
    """Parameters specific to PPO."""

    ppo_epochs: int = Field(
        2, description="PPO: optimiser steps on each batch of sampled completions", ge=1, le=16
    )
    clip_range: float = Field(
        0.2,
        description="PPO: how far the ratio of new to old probability may move per batch",
        gt=0,
        lt=1,
    )
    gae_lambda: float = Field(
        0.95,
        description="PPO: lambda of generalised advantage estimation; 1 = no value bootstrap",
        ge=0,
        le=1,
    )
    value_weight: float = Field(
        0.1, description="PPO: weight of the value head's loss", ge=0, le=10
    )


class PPO(OnlineStrategy):
    """Samples completions for the prompts of the retraining set; a value head estimates the reward
    to come at each token, and only what exceeds it is reinforced (Ouyang et al. 2022). The
    divergence from the parent policy is taken off the reward, token by token.
    """

    name: ClassVar[str] = "ppo"
    Params: ClassVar[type[BaseModel]] = PPOParams
    config: ClassVar[str] = "transformers.TrainingArguments"
    needs_reference: ClassVar[bool] = True
    curves = CURVES | {"value loss": "value_loss"}

    def count_updates(self, params: TrainingParams) -> int:
        return select_params(PPOParams, params).ppo_epochs

    def build_trainer(
        self, policy: Policy, rows: pd.DataFrame, params: TrainingParams, checkpoints: Path
    ) -> Any:
        arguments = build_step_arguments(policy, len(rows), params, checkpoints)
        # The trainer splits its batch itself, after sampling.
        arguments["per_device_train_batch_size"] *= arguments.pop("gradient_accumulation_steps")
        # Every weight has a gradient; those of the value head are not seen in the model's output.
        ours = {"remove_unused_columns": False, "ddp_find_unused_parameters": False}
        config = build_config(self, arguments | ours, params)
        prompts = [{"prompt": text} for text in rows["prompt"]]
        return _trainer_class()(policy, self.reference, prompts, config, params, self.reward)


def estimate_advantages(rewards: Any, values: Any, mask: Any, lam: float) -> tuple[Any, Any]:
    """Advantages and returns (n, t) of tokens by generalised advantage estimation without discount
    (Schulman et al. 2016); 0 outside `mask`.
    """
    import torch

    values = values * mask
    advantages = torch.zeros_like(values)
    following, later = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        later = (rewards[:, t] + following - values[:, t] + lam * later) * mask[:, t]
        advantages[:, t] = later
        following = values[:, t]
    return advantages, (advantages + values) * mask


def mean_of(figures: Any, mask: Any) -> Any:
    """Mean over the tokens in `mask`."""
    return (figures * mask).sum() / mask.sum()


def whiten(advantages: Any, mask: Any) -> Any:
    """Advantages with mean 0 and variance 1 over the tokens in `mask`."""
    centred = (advantages - mean_of(advantages, mask)) * mask
    return centred / (mean_of(centred**2, mask).sqrt() + 1e-8)


def clipped_policy_loss(log_p: Any, batch: Batch, clip_range: float) -> Any:
    """PPO's surrogate: no gain from a ratio outside 1 ± clip_range."""
    ratio = (log_p - batch["log_p"]).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    gains = (ratio * batch["advantages"]).minimum(clipped * batch["advantages"])
    return -mean_of(gains, batch["mask"])


def loss_of_both(log_p: Any, values: Any, batch: Batch, params: PPOParams) -> tuple[Any, Any]:
    """The loss of policy and value head together, and that of the value head alone."""
    value_loss = 0.5 * mean_of((values - batch["returns"]) ** 2, batch["mask"])
    policy_loss = clipped_policy_loss(log_p, batch, params.clip_range)
    return policy_loss + params.value_weight * value_loss, value_loss


def _trainer_class() -> Any:
    """The trainer, defined at its use: importing torch and transformers takes seconds."""
    import torch
    from transformers import GenerationConfig, Trainer
    from trl.trainer.utils import disable_dropout_in_model, selective_log_softmax_and_entropy

    class PPOTrainer(Trainer):  # type: ignore[misc]
        """Samples, scores and optimises; the value head reads the last hidden state."""

        def __init__(
            self,
            policy: Policy,
            reference: Any,
            prompts: list[dict[str, str]],
            config: Any,
            params: TrainingParams,
            reward: RewardFunction,
        ) -> None:
            disable_dropout_in_model(policy.model)  # of adapters too: the ratio compares one policy
            self.policy, self.reference, self.reward = policy, reference, reward
            self.params, self.n_parts = (
                select_params(PPOParams, params),
                params.gradient_accumulation,
            )
            tokenizer, model = policy.tokenizer, policy.model
            ends = model.generation_config.eos_token_id or tokenizer.eos_token_id
            self.generation = GenerationConfig(
                do_sample=True,
                temperature=self.params.sampling_temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=params.max_new_tokens,
                eos_token_id=ends if isinstance(ends, list) else [ends],
                pad_token_id=tokenizer.pad_token_id,
                use_cache=True,
            )
            head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1)
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
            # In the model the optimiser finds it; its saved weights are those of a policy.
            model.value_head = self.value_head = head.to(model.device)
            own = {"value_head.weight", "value_head.bias"}
            model._keys_to_ignore_on_save = {*model._keys_to_ignore_on_save, *own}
            self.figures: dict[str, list[float]] = defaultdict(list)
            self._total_train_tokens = 0  # named as in TRL's trainers
            super().__init__(
                model=model,
                args=config,
                train_dataset=prompts,
                data_collator=lambda rows: {"prompt": [row["prompt"] for row in rows]},
                processing_class=tokenizer,
            )

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            batch = self._sample(inputs["prompt"])
            split = [tensor.chunk(self.n_parts) for tensor in batch.values()]
            parts = [dict(zip(batch, chunks, strict=True)) for chunks in zip(*split, strict=True)]
            for epoch in range(self.params.ppo_epochs):
                loss = sum(self._step_back(model, part, batch["mask"].sum()) for part in parts)
                if epoch < self.params.ppo_epochs - 1:  # the trainer takes the last step itself
                    self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
                    self.optimizer.step()
                    model.zero_grad()
            return loss

        def _step_back(self, model: Any, part: Batch, n_tokens: Any) -> Any:
            with self.compute_loss_context_manager():
                log_p, values, _ = self._evaluate(
                    model, part["ids"], part["attention"], part["mask"]
                )
            loss, value_loss = loss_of_both(log_p, values, part, self.params)
            loss = loss * (part["mask"].sum() / n_tokens)
            self.accelerator.backward(loss)
            self.figures["value_loss"].append(float(value_loss.detach()))
            return loss.detach()

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def _sample(self, texts: list[str]) -> Batch:
            texts = [text for text in texts for _ in range(self.params.n_samples)]
            tokenizer = self.policy.tokenizer
            rows = [self.policy.tokenize_prompt(text) for text in texts]
            inputs = tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
            inputs = inputs.to(self.model.device)
            # while training, gradient checkpointing drops the cache that generation reads
            with evaluation_mode(self.model) as model:
                ids = model.generate(**inputs, generation_config=self.generation)
            completion_ids = ids[:, inputs["input_ids"].shape[1] :]
            is_end = torch.isin(
                completion_ids,
                torch.tensor(self.generation.eos_token_id, device=completion_ids.device),
            )
            mask = (is_end.cumsum(-1) - is_end.int() == 0).float()
            attention = torch.cat([inputs["attention_mask"], mask.long()], dim=1)
            self._total_train_tokens += int(attention.sum())
            # logits of the whole batch would need more memory than the optimiser's steps
            split = (tensor.chunk(self.n_parts) for tensor in (ids, attention, mask))
            parts = [self._evaluate_both(*part) for part in zip(*split, strict=True)]
            log_p, values, entropy, parent_log_p = map(torch.cat, zip(*parts, strict=True))
            completions = [
                clean_text(tokenizer.decode(row[keep], skip_special_tokens=True))
                for row, keep in zip(completion_ids, mask.bool(), strict=True)
            ]
            scores = score_members(self.reward, texts, completions).mean(axis=0)
            ratios = (log_p - parent_log_p) * mask
            rewards = -self.params.kl_penalty * ratios
            last = mask.sum(-1).long() - 1
            rewards[torch.arange(len(last)), last] += torch.tensor(scores).to(rewards)
            advantages, returns = estimate_advantages(rewards, values, mask, self.params.gae_lambda)
            figures = {
                "reward": scores.mean(),
                "kl": mean_of(ratios, mask),
                "entropy": mean_of(entropy, mask),
            }
            for name, figure in figures.items():
                self.figures[name].append(float(figure))
            return {
                "ids": ids,
                "attention": attention,
                "mask": mask,
                "log_p": log_p,
                "advantages": whiten(advantages, mask),
                "returns": returns,
            }

        def _evaluate(self, model: Any, ids: Any, attention: Any, mask: Any) -> tuple[Any, ...]:
            """Log probability, value and entropy at each sampled token, (n, t)."""
            out = model(
                input_ids=ids,
                attention_mask=attention,
                # by attention: absolute positions must not count the padding
                position_ids=(attention.cumsum(-1) - 1).clamp(min=0),
                output_hidden_states=True,
            )
            sampled = slice(-mask.shape[1] - 1, -1)
            log_p, entropy = selective_log_softmax_and_entropy(
                out.logits[:, sampled].float(),
                ids[:, -mask.shape[1] :],
                entropy_requires_grad=False,
                temperature=self.params.sampling_temperature,
            )
            return (
                log_p,
                self.value_head(out.hidden_states[-1][:, sampled].float())[..., 0],
                entropy,
            )

        def _evaluate_both(self, *batch: Any) -> tuple[Any, ...]:
            """`_evaluate` of the policy, and the log probability under its parent."""
            own = self._evaluate(self.model, *batch)
            if self.reference is not None:
                return *own, self._evaluate(self.reference, *batch)[0]
            with self.model.disable_adapter():
                return *own, self._evaluate(self.model, *batch)[0]

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            logs |= {name: sum(values) / len(values) for name, values in self.figures.items()}
            logs["num_tokens"] = self._total_train_tokens
            self.figures.clear()
            super().log(logs, start_time)

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            super()._save_checkpoint(model, trial)
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            torch.save(self.value_head.state_dict(), folder / STATE)

        def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
            super()._load_from_checkpoint(checkpoint, model)
            state = torch.load(Path(checkpoint) / STATE, weights_only=True)
            self.value_head.load_state_dict(state)

    return PPOTrainer

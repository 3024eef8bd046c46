"""A compact trainer for Proximal Policy Optimization (PPO; Schulman et al. 2017), as TRL has none.

One step of the trainer samples completions, scores them, and takes `ppo_epochs` optimiser steps on
them. So every checkpoint is a whole step, and an interrupted training ends with the same weights.
Checkpoints, schedule, logging and device are those of transformers' Trainer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.adapters import load_reference
from rlhf_pipeline.improve.retraining.online import OnlineParams, clean_text
from rlhf_pipeline.improve.retraining.rewards import RewardFunction, score_members
from rlhf_pipeline.improve.retraining.sentinels import SAMPLED_LENGTH, evaluation_mode
from rlhf_pipeline.improve.retraining.training import TrainingParams

TENSORS = ("ids", "attention", "mask", "log_p", "values", "advantages", "returns")
STATE = "ppo.pt"  # in a checkpoint: the value head


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


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions; `width` tokens of prompt stand before them, padded on the left. All are
    tensors: ids and attention (n, width + t), the others (n, t), `mask` 1 up to the end token.
    """

    ids: Any
    attention: Any
    width: int
    mask: Any
    log_p: Any
    values: Any
    advantages: Any
    returns: Any

    def select(self, part: slice) -> "Rollouts":
        values = {name: getattr(self, name)[part] for name in TENSORS}
        return replace(self, **values)


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


def split_rows(n: int, n_parts: int) -> list[slice]:
    """At most `n_parts` slices of nearly equal size, which cover `n` rows in order.

    >>> split_rows(5, 2)
    [slice(0, 3, None), slice(3, 6, None)]
    """
    size = -(-n // n_parts)
    return [slice(at, at + size) for at in range(0, n, size)]


def mean_of(figures: Any, mask: Any) -> Any:
    """Mean over the tokens in `mask`."""
    return (figures * mask).sum() / mask.sum()


def whiten(advantages: Any, mask: Any) -> Any:
    """Advantages with mean 0 and variance 1 over the tokens in `mask`."""
    centred = (advantages - mean_of(advantages, mask)) * mask
    return centred / (mean_of(centred**2, mask).sqrt() + 1e-8)


def clipped_policy_loss(log_p: Any, batch: Rollouts, clip_range: float) -> Any:
    """PPO's surrogate: no gain from a ratio outside 1 ± clip_range."""
    import torch

    ratio = (log_p - batch.log_p).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    gains = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    return -mean_of(gains, batch.mask)


def loss_of_both(log_p: Any, values: Any, batch: Rollouts, params: PPOParams) -> tuple[Any, Any]:
    """The loss of policy and value head together, and that of the value head alone."""
    value_loss = 0.5 * mean_of((values - batch.returns) ** 2, batch.mask)
    policy_loss = clipped_policy_loss(log_p, batch, params.clip_range)
    return policy_loss + params.value_weight * value_loss, value_loss


def build_ppo_trainer(
    policy: Policy,
    prompts: Sequence[str],
    arguments: dict[str, Any],
    params: TrainingParams,
    reward: RewardFunction,
) -> Any:
    """A trainer on these prompts. `arguments` are those of transformers' TrainingArguments."""
    import torch
    from transformers import GenerationConfig, Trainer, TrainingArguments
    from trl.trainer.utils import disable_dropout_in_model

    own = select_params(PPOParams, params)
    tokenizer, n_parts = policy.tokenizer, params.gradient_accumulation
    reference = load_reference(policy, params.dtype)
    is_plain = tokenizer.chat_template is None
    ends = policy.model.generation_config.eos_token_id
    ends = [tokenizer.eos_token_id] if ends is None else ends if isinstance(ends, list) else [ends]
    generation = GenerationConfig(
        do_sample=True,
        temperature=own.sampling_temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=params.max_new_tokens,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )

    class PPOTrainer(Trainer):  # type: ignore[misc]
        """Samples, scores and optimises; the value head reads the last hidden state."""

        def __init__(self) -> None:
            disable_dropout_in_model(policy.model)  # of adapters too: the ratio compares one policy
            width = policy.model.config.get_text_config().hidden_size
            self.value_head = torch.nn.Linear(width, 1).to(policy.model.device)
            torch.nn.init.zeros_(self.value_head.weight)
            torch.nn.init.zeros_(self.value_head.bias)
            policy.model.value_head = self.value_head  # so that the optimiser finds it
            self.figures: dict[str, list[float]] = defaultdict(list)
            self._total_train_tokens = 0  # named as in TRL's trainers
            super().__init__(
                model=policy.model,
                args=TrainingArguments(**arguments, remove_unused_columns=False),
                train_dataset=[{"prompt": text} for text in prompts],
                data_collator=lambda rows: {"prompt": [row["prompt"] for row in rows]},
                processing_class=tokenizer,
            )

        def train(self, *given: Any, **named: Any) -> Any:
            result = super().train(*given, **named)
            del self.model.value_head
            return result

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            batch = self._sample(model, inputs["prompt"])
            parts = split_rows(len(batch.ids), n_parts)
            for epoch in range(own.ppo_epochs):
                loss = sum(self._step_back(model, batch, part) for part in parts)
                if epoch < own.ppo_epochs - 1:  # the trainer takes the last step itself
                    self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
                    self.optimizer.step()
                    model.zero_grad()
            return loss

        def _step_back(self, model: Any, batch: Rollouts, part: slice) -> Any:
            rows = batch.select(part)
            with self.compute_loss_context_manager():
                log_p, values, _ = self._evaluate(model, rows.ids, rows.attention, rows.width)
            loss, value_loss = loss_of_both(log_p, values, rows, own)
            loss = loss * (rows.mask.sum() / batch.mask.sum())
            self.accelerator.backward(loss)
            self.figures["value_loss"].append(float(value_loss.detach()))
            return loss.detach()

        def _sample(self, model: Any, texts: list[str]) -> Rollouts:
            texts = [text for text in texts for _ in range(own.n_samples)]
            with torch.no_grad():
                ids, attention, width = self._encode(texts)
                # while training, gradient checkpointing drops the cache that generation reads
                with evaluation_mode(model):
                    ids = model.generate(
                        input_ids=ids, attention_mask=attention, generation_config=generation
                    )
                made = ids[:, width:]
                is_end = torch.isin(made, torch.tensor(ends, device=made.device))
                mask = (is_end.cumsum(-1) - is_end.int() == 0).float()
                attention = torch.cat([attention, mask.to(attention.dtype)], dim=1)
                self._total_train_tokens += int(attention.sum())
                # logits of the whole batch would need more memory than the optimiser's steps
                parts = [
                    (
                        *self._evaluate(model, ids[part], attention[part], width),
                        self._evaluate_reference(model, ids[part], attention[part], width),
                    )
                    for part in split_rows(len(ids), n_parts)
                ]
                log_p, values, entropy, parent_log_p = map(torch.cat, zip(*parts, strict=True))
                completions = [
                    clean_text(tokenizer.decode(row[keep], skip_special_tokens=True))
                    for row, keep in zip(made, mask.bool(), strict=True)
                ]
                scores = torch.tensor(
                    score_members(reward, texts, completions).mean(axis=0),
                    dtype=torch.float32,
                    device=mask.device,
                )
                ratios = (log_p - parent_log_p) * mask
                rewards = -own.kl_penalty * ratios
                last = mask.sum(-1).long() - 1
                rewards[torch.arange(len(last)), last] += scores
                advantages, returns = estimate_advantages(rewards, values, mask, own.gae_lambda)
            self._note(scores, ratios, entropy, mask)
            return Rollouts(
                ids,
                attention,
                width,
                mask,
                log_p,
                values * mask,
                whiten(advantages, mask),
                returns,
            )

        def _encode(self, texts: list[str]) -> tuple[Any, Any, int]:
            rows = [
                tokenizer(policy.format_prompt(text), add_special_tokens=is_plain)["input_ids"]
                or ends[:1]
                for text in texts
            ]
            width, pad = max(map(len, rows)), tokenizer.pad_token_id
            device = self.model.device
            ids = [[pad] * (width - len(row)) + row for row in rows]
            attention = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
            return (
                torch.tensor(ids, device=device),
                torch.tensor(attention, device=device),
                width,
            )

        def _evaluate(self, model: Any, ids: Any, attention: Any, width: int) -> tuple[Any, ...]:
            """Log probability, value and entropy at each sampled token, (n, t)."""
            out = model(
                input_ids=ids,
                attention_mask=attention,
                # by attention: absolute positions must not count the padding
                position_ids=(attention.cumsum(-1) - 1).clamp(min=0),
                output_hidden_states=True,
            )
            spread = out.logits[:, width - 1 : -1].float() / own.sampling_temperature
            spread = spread.log_softmax(-1)
            log_p = spread.gather(-1, ids[:, width:, None])[..., 0]
            entropy = -(spread.detach().exp() * spread.detach()).sum(-1)
            hidden = out.hidden_states[-1][:, width - 1 : -1].float()
            return log_p, self.value_head(hidden)[..., 0], entropy

        def _evaluate_reference(self, model: Any, ids: Any, attention: Any, width: int) -> Any:
            if reference is not None:
                return self._evaluate(reference, ids, attention, width)[0]
            with self.accelerator.unwrap_model(model).disable_adapter():
                return self._evaluate(model, ids, attention, width)[0]

        def _note(self, scores: Any, ratios: Any, entropy: Any, mask: Any) -> None:
            self.figures["reward"].append(float(scores.mean()))
            self.figures["kl"].append(float(ratios.sum() / mask.sum()))
            self.figures["entropy"].append(float(mean_of(entropy, mask)))
            self.figures[SAMPLED_LENGTH].append(float(mask.sum(-1).mean()))

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            logs |= {name: sum(values) / len(values) for name, values in self.figures.items()}
            logs["num_tokens"] = self._total_train_tokens
            self.figures.clear()
            super().log(logs, start_time)

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            del self.model.value_head  # a checkpoint's weights are those of a policy
            super()._save_checkpoint(model, trial)
            self.model.value_head = self.value_head
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            torch.save(self.value_head.state_dict(), folder / STATE)

        def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
            super()._load_from_checkpoint(checkpoint, model)
            state = torch.load(Path(checkpoint) / STATE, weights_only=True)
            self.value_head.load_state_dict(state)

    return PPOTrainer()

"""Trains on batches of a few prompts' completions, each encoded once for all its comparisons.

A completion in ten comparisons of a batch costs one forward and one backward pass instead of ten. A
batch of one prompt alone would have most comparisons, but moves the weights toward that prompt.
Within a batch, texts of similar length are padded together; matrix products run in bfloat16 if the
processor supports it.
"""

import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from rlhf_pipeline.errors import ConfigurationError, TrainingFailed
from rlhf_pipeline.policy.devices import has_bfloat16
from rlhf_pipeline.reward_model.losses import pair_losses
from rlhf_pipeline.reward_model.network import autocast, pad
from rlhf_pipeline.reward_model.trainers.base import (
    TrainerParams,
    TrainingContext,
    TrainingCounts,
    TrainingData,
    TrainingRecord,
)
from rlhf_pipeline.reward_model.trainers.batches import (
    TOKENS_PER_PASS,
    BatchPlan,
    TextBatch,
    group_by_length,
)

# Padded widths are multiples of this. oneDNN caches a kernel for each shape: with every width, 20
# steps took 1.49 GB instead of 1.24, at the same time per step.
WIDTH_STEP = 16
# On a core the backward pass of torch's fused attention is slow: for texts of 90 tokens a step took
# 0.86 s with it and 0.73 with plain attention. Plain attention keeps the square of the length, so
# it is used only up to this width.
PLAIN_ATTENTION_WIDTH = 512


def measure_time() -> tuple[float, float]:
    """Wall and CPU seconds of this process, of which only differences count."""
    return time.perf_counter(), time.process_time()


def train_on_shared_texts(
    network: Any, data: TrainingData, params: TrainerParams, around: TrainingContext
) -> TrainingRecord:
    """Train in place; see `Trainer`.

    With several processes each takes every `world`-th batch of a step and gradients are summed,
    which gives the weights of one process up to rounding. Raises ConfigurationError if a step has
    fewer batches than processes, TrainingFailed on a loss that is NaN.
    """
    if params.batches_per_step < around.world:
        raise ConfigurationError(
            f"{around.world} processes share {params.batches_per_step} batches a step. Set "
            "batches_per_step to a multiple of them."
        )
    return _Training(network, data, params, around).run()


class _Training:
    def __init__(
        self, network: Any, data: TrainingData, params: TrainerParams, around: TrainingContext
    ) -> None:
        import torch

        self.network = network.to(params.device)
        self.data = data
        self.params = params
        self.around = around
        self.plan = BatchPlan(
            data,
            texts_per_batch=params.texts_per_batch,
            texts_per_prompt=params.texts_per_prompt,
            batches_per_step=params.batches_per_step,
            epochs=params.epochs,
            steps=params.steps,
            seed=params.seed,
        )
        self.lengths = np.array([len(ids) for ids in data.token_ids], dtype=np.int64)
        self.widths = np.minimum(-(-self.lengths // WIDTH_STEP) * WIDTH_STEP, self.lengths.max())
        self.trained = [part for part in network.parameters() if part.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=params.learning_rate, weight_decay=params.weight_decay, fused=True
        )
        self.tally, self.started = TrainingCounts(), measure_time()

    def run(self) -> TrainingRecord:
        self.network.train()  # dropout is 0 everywhere; gradient checkpointing needs train mode
        if self.params.gradient_checkpointing:
            self.network.activation_checkpointing_enable()
        for step in range(self.plan.n_steps):
            loss = self._train_step(step)
            self.around.progress(step + 1, self.plan.n_steps, f"loss {loss:.3f}")
        if self.params.gradient_checkpointing:
            self.network.activation_checkpointing_disable()
        self.network.eval()
        return make_record("shared_text", self.tally, self.params, self.started)

    def _train_step(self, step: int) -> float:
        import torch

        for group in self.optimizer.param_groups:
            group["lr"] = self.params.learning_rate * self._learning_rate_share(step)
        batches = self.plan.batches_of_step(step)
        # Sum over all processes: dividing by it here makes the summed gradients equal those of one
        # process.
        weight = float(sum(self.data.weights[batch.pairs].sum() for batch in batches))
        total = 0.0
        for number, batch in enumerate(batches):
            self.tally.add(len(batch.pairs), self.lengths[batch.texts])
            if number % self.around.world == self.around.rank:
                with self._attention_context():
                    total += self._learn_from(batch, weight)
        total = self._sum_over_processes(total)
        if not np.isfinite(total):
            raise TrainingFailed(
                f"The loss of step {step + 1} is {total}. Lower learning_rate, or check weights "
                "and labels for NaN."
            )
        torch.nn.utils.clip_grad_norm_(self.trained, self.params.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.tally.losses.append(total)
        return total

    def _learn_from(self, batch: TextBatch, total_weight: float) -> float:
        """Add the gradient of this batch's share of the step's loss; return that share."""
        import torch

        device_type = self.params.device.split(":", maxsplit=1)[0]
        groups = group_by_length(self.widths[batch.texts], TOKENS_PER_PASS[device_type])
        scores = torch.empty(len(batch.texts), device=self.params.device)
        parts = []
        with autocast(device_type, self.params.precision):
            for group in groups:
                texts = batch.texts[group]
                together = [self.data.token_ids[text] for text in texts]
                ids, mask = pad(
                    together,
                    self.data.pad_id,
                    self.params.device,
                    width=int(self.widths[texts].max()),
                )
                parts.append(self.network(ids, mask).logits.squeeze(-1).float())
        place = torch.from_numpy(np.concatenate(groups)).to(self.params.device)
        scores = torch.zeros_like(scores).index_copy(0, place, torch.cat(parts))
        margins = scores[torch.from_numpy(batch.first)] - scores[torch.from_numpy(batch.second)]
        targets, weights = (
            torch.as_tensor(of[batch.pairs], dtype=torch.float32, device=self.params.device)
            for of in (self.data.targets, self.data.weights)
        )
        loss = (pair_losses(margins, targets) * weights).sum() / total_weight
        loss.backward()
        return float(loss.detach())

    def _attention_context(self) -> Any:
        """The faster attention for these texts on this device; gradient checkpointing must use the
        same one forwards and backwards.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        is_plain = self.params.device == "cpu" and self.widths.max() <= PLAIN_ATTENTION_WIDTH
        return sdpa_kernel(SDPBackend.MATH) if is_plain else nullcontext()

    def _learning_rate_share(self, step: int) -> float:
        """Share of the highest learning rate: rises linearly, then falls linearly to 0 after the
        last step.
        """
        n, warm = self.plan.n_steps, int(self.params.warmup_share * self.plan.n_steps)
        return (step + 1) / warm if step < warm else (n - step) / max(1, n - warm)

    def _sum_over_processes(self, total: float) -> float:
        """Sum gradients and losses over all processes; a tensor without a gradient in this step
        counts as 0.
        """
        if self.around.world == 1:
            return total
        import torch
        import torch.distributed as dist

        for part in self.trained:
            part.grad = torch.zeros_like(part) if part.grad is None else part.grad
        # One message instead of one per tensor.
        flat = torch.cat(
            [part.grad.reshape(-1) for part in self.trained]
            + [torch.tensor([total], device=self.params.device)]
        )
        dist.all_reduce(flat)
        at = 0
        for part in self.trained:
            part.grad.copy_(flat[at : at + part.numel()].view_as(part))
            at += part.numel()
        return float(flat[-1])


def make_record(
    trainer: str, tally: TrainingCounts, params: TrainerParams, started: tuple[float, float]
) -> TrainingRecord:
    """The record of a training that began at `started`, as `measure_time` gave it."""
    (wall_s, cpu_s), (wall_before, cpu_before) = measure_time(), started
    return TrainingRecord(
        trainer=trainer,
        n_steps=len(tally.losses),
        n_pairs_seen=tally.n_pairs,
        n_texts_encoded=tally.n_texts,
        n_tokens=tally.n_tokens,
        loss_curve=tuple(tally.losses),
        wall_s=wall_s - wall_before,
        cpu_s=cpu_s - cpu_before,
        precision=effective_precision(params),
    )


def effective_precision(params: TrainerParams) -> str:
    is_half = params.precision == "bfloat16" or (
        params.precision == "auto" and has_bfloat16(params.device.split(":")[0])
    )
    return "bfloat16" if is_half else "float32"

"""Estimates the memory of a training before it starts, from the model's configuration alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.policy.causal_lm import read_config
from rlhf_pipeline.policy.devices import Placement

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
# Bytes of activations per token, layer and unit of width in 16 bits, without attention scores,
# which fused attention does not store (Korthikanti et al. 2022, equation 1).
ACTIVATION_BYTES = 34
# TRL computes the logits of so many tokens and entries of the vocabulary at a time, forward and
# backward; the CPU has no fused kernel for it, so more copies of float32 exist at once.
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
COPIES, COPIES_ON_CPU = 2, 9


@dataclass(frozen=True)
class ModelShape:
    """The sizes that decide a policy's memory."""

    n_parameters: int
    n_adapted: int  # inputs and outputs of the layers that adapters are added to, summed
    n_layers: int
    width: int
    n_vocabulary: int


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by purpose; `activations` are a rough lower bound, which fragmentation can double."""

    weights: int
    reference: int
    parent: int
    gradients: int
    optimiser: int
    activations: int

    @property
    def fixed(self) -> int:
        """What is needed however small the batch."""
        return self.weights + self.reference + self.parent + self.gradients + self.optimiser

    @property
    def total(self) -> int:
        return self.fixed + self.activations

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "reference": self.reference,
            "parent for the sentinels": self.parent,
            "gradients": self.gradients,
            "optimiser": self.optimiser,
            "activations": self.activations,
        }
        listed = ", ".join(f"{name} {n / GIB:.2f}" for name, n in parts.items() if n)
        return f"{self.total / GIB:.2f} GiB ({listed})"


def read_shape(policy_folder: Path, targets: Sequence[str] = ()) -> ModelShape:
    """The shape of a policy, built on torch's `meta` device, which holds no weights. `targets` are
    the names of adapted layers, by default all linear ones.

    Raises ModelNotFound as `load_policy`.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    config = read_config(policy_folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    output = model.get_output_embeddings()
    adapted = [
        sum(part.weight.shape)
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear | Conv1D)
        and part is not output
        and (not targets or name.rpartition(".")[2] in targets)
    ]
    text = config.get_text_config()
    return ModelShape(
        n_parameters=sum(part.numel() for part in model.parameters()),
        n_adapted=sum(adapted),
        n_layers=text.num_hidden_layers,
        width=text.hidden_size,
        n_vocabulary=text.vocab_size,
    )


def estimate_memory(
    shape: ModelShape, params: Any, *, n_rows: int, n_tokens: int, has_reference: bool
) -> MemoryNeed:
    """The memory of one step on `n_rows` rows of `n_tokens` tokens. `params` are TrainingParams
    with a device and number format.

    Weights that are trained, their gradients and the two moments of AdamW are float32, as for mixed
    precision; frozen weights are in the number format of the training. With adapters the reference
    is the policy without them. Sentinels compare with a copy of the parent.
    """
    number = BYTES[params.dtype]
    n = shape.n_parameters
    trained = params.lora_rank * shape.n_adapted if params.lora_rank else n
    frozen = (n // 2 if params.qlora else n * number) if params.lora_rank else 0
    per_layer = 2 if params.gradient_checkpointing else ACTIVATION_BYTES
    # with checkpointing one layer at a time is computed again
    recomputed = ACTIVATION_BYTES if params.gradient_checkpointing else 0
    per_token = (per_layer * shape.n_layers + recomputed) * shape.width * number // 2
    tile = min(n_rows * n_tokens, TILE_TOKENS) * min(shape.n_vocabulary, TILE_VOCABULARY)
    copies = COPIES_ON_CPU if params.device == "cpu" else COPIES
    return MemoryNeed(
        weights=frozen + 4 * trained,
        reference=n * number if has_reference and not params.lora_rank else 0,
        parent=n * number if params.sentinels.every else 0,
        gradients=4 * trained,
        optimiser=8 * trained,
        activations=n_rows * n_tokens * per_token + tile * 4 * copies,
    )


def measure_free_memory(device: str) -> int:
    """Bytes that this process can still allocate on the device."""
    import psutil
    import torch

    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _read_container_limit())


def check_memory(need: MemoryNeed, place: Placement, free: int) -> str | None:
    """A warning if the estimate exceeds the free memory. Raises ConfigurationError if the model
    alone does.
    """
    if need.total <= free:
        return None
    message = f"The training needs about {need}, but {place.device} has {free / GIB:.2f} GiB free."
    if need.fixed > free:
        raise ConfigurationError(
            f"{message} Train adapters alone (lora_rank: 16), choose a smaller policy, or another "
            "device."
        )
    return (
        f"{message} If it fails, raise gradient_accumulation, set gradient_checkpointing, or lower "
        "batch_size or max_length."
    )


def _read_container_limit() -> int:
    """What the container's limit (cgroup v2) leaves to this process; much without one."""
    import psutil

    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or `max`
        return 2**62
    return limit - int(psutil.Process().memory_info().rss)

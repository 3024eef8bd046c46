"""Defines the inputs and outputs of every trainer."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Record
from rlhf_pipeline.reward_model.losses import LabelParams

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class OptimisationParams(BaseModel):
    """Optimisation of a transformer's weights."""

    model_config = ConfigDict(allow_inf_nan=False)

    trainer: Literal["shared_text", "trl"] = Field(
        default="shared_text",
        description="shared_text: each completion encoded once a batch, the loss on every labelled "
        "comparison among them; trl: TRL's RewardTrainer, two completions encoded per pair",
    )
    texts_per_batch: int = Field(
        default=12, ge=2, le=4096, description="shared_text: completions encoded together"
    )
    texts_per_prompt: int = Field(
        default=4,
        ge=2,
        le=4096,
        description="shared_text: completions of one prompt that are taken together; a batch takes "
        "several prompts",
    )
    batches_per_step: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Batches whose gradients are summed before the weights move",
    )
    pairs_per_batch: int = Field(default=8, ge=1, le=4096, description="trl: pairs of one batch")
    epochs: int = Field(
        default=1, ge=1, le=1000, description="Times every pair is seen at least once"
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Moves of the weights; empty = as many as `epochs` take",
    )
    learning_rate: float = Field(
        default=1e-4,
        gt=0,
        le=1,
        description="Of AdamW, at its highest; from there it falls linearly to 0",
    )
    warmup_share: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the steps in which it rises linearly"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="Of AdamW")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Longer gradients are shortened to it"
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Compute activations twice instead of keeping them: slower, less memory",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Of the matrix products in training; auto: bfloat16 where the processor has "
        "it. Weights are float32",
    )
    device: str = Field(
        default="cpu", description="Where it is trained and scored: cpu, cuda or cuda:1"
    )


class TrainerParams(OptimisationParams, LabelParams):
    """Parameters for learning a transformer's weights from pairs."""

    seed: int = Field(
        default=0, ge=0, description="Of the head's start and of the order of the data"
    )


@dataclass(frozen=True)
class TrainingData:
    """Distinct texts as token ids, and labelled pairs of them.

    `first` and `second` (n,) index the chosen and the rejected text; `targets` and `weights` (n,)
    are the labels and weights of the pairs; `groups` (n,) numbers each pair's prompt. Both texts of
    a pair belong to one prompt.
    """

    token_ids: list[list[int]]
    first: Ints
    second: Ints
    targets: Floats
    weights: Floats
    groups: Ints
    pad_id: int


class TrainingRecord(Record):
    """Outcome and cost of a training, the same for every trainer."""

    trainer: str
    n_steps: int
    n_pairs_seen: int = Field(description="labelled pairs whose loss was taken, repeats included")
    n_texts_encoded: int = Field(description="forward passes of a text, repeats included")
    n_tokens: int = Field(description="tokens of those texts")
    loss_curve: tuple[float, ...] = Field(description="mean loss of a pair in each step, nats")
    wall_s: float
    cpu_s: float = Field(description="of this process")
    precision: str


@dataclass(frozen=True)
class TrainingContext:
    """The environment of a training: everything besides data and parameters.

    Only TRL needs the `tokenizer`. The process is `rank` of `world` and does its share
    (torch.distributed is initialised).
    """

    progress: Progress = ignore_progress
    tokenizer: Any = None
    rank: int = 0
    world: int = 1


@dataclass
class TrainingCounts:
    """Running counts of a training."""

    losses: list[float] = field(default_factory=list)
    n_pairs: int = 0
    n_texts: int = 0
    n_tokens: int = 0

    def add(self, n_pairs: int, lengths: Ints) -> None:
        self.n_pairs += n_pairs
        self.n_texts += len(lengths)
        self.n_tokens += int(lengths.sum())


class Trainer(Protocol):
    """Trains the weights of `network` in place. Raises TrainingFailed at the first loss that is NaN
    or infinite.
    """

    def __call__(
        self, network: Any, data: TrainingData, params: TrainerParams, around: TrainingContext
    ) -> TrainingRecord: ...

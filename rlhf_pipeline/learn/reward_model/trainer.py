"""Trains a transformer reward model with transformers' Trainer on groups of comparisons.

A completion in ten comparisons of a group costs one forward and one backward pass instead of ten. A
row of the trainer's data set is such a group, so its sampler and its sharding over processes keep
the sharing. Within a batch, texts of similar length are padded together.
"""

import shutil
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rlhf_pipeline.core.errors import ConfigurationError, TrainingFailed
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Record, content_hash
from rlhf_pipeline.generate.policy.devices import has_bfloat16
from rlhf_pipeline.learn.reward_model.comparison_groups import (
    ComparisonGroup,
    group_by_length,
    group_comparisons,
)
from rlhf_pipeline.learn.reward_model.launching import check_launch_options, use_one_gpu
from rlhf_pipeline.learn.reward_model.losses import pair_losses
from rlhf_pipeline.learn.reward_model.model_files import hash_tensors
from rlhf_pipeline.learn.reward_model.network import pad, silence_libraries
from rlhf_pipeline.learn.reward_model.trainer_fields import read_trainer_fields

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# One more pass costs about as much as this many padding tokens: few on a core; many on a GPU, which
# needs work for thousands of threads.
TOKENS_PER_PASS = {"cpu": 64, "cuda": 8192}
# Padded widths are multiples of this. oneDNN caches a kernel for each shape: with every width, 20
# steps took 1.49 GB instead of 1.24, at the same time per step.
WIDTH_STEP = 16
# On a core the backward pass of torch's fused attention is slow: for texts of 90 tokens a step took
# 0.86 s with it and 0.73 with plain attention. Plain attention keeps the square of the length, so
# it is used only up to this width.
PLAIN_ATTENTION_WIDTH = 512


class TrainerParams(BaseModel):
    """How a transformer's weights are trained."""

    model_config = ConfigDict(allow_inf_nan=False)

    texts_per_batch: int = Field(
        default=12,
        ge=2,
        le=4096,
        description="Completions of a group, a row of the trainer's data, encoded together",
    )
    texts_per_prompt: int = Field(
        default=4,
        ge=2,
        le=4096,
        description="Completions of one prompt that are taken together; a group takes several "
        "prompts",
    )
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
        description="Of AdamW, at its highest: it rises in the first tenth of the steps and falls "
        "linearly from there",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Of the matrix products in training; auto: bfloat16 where the processor has "
        "it. Weights are float32",
    )
    device: str = Field(default="cpu", description="Where it is trained and scored: cpu or cuda")
    trainer: dict[str, Any] = Field(
        default={},
        description="Any other fields of transformers' TrainingArguments, which win over ours: "
        "gradient_accumulation_steps, max_grad_norm; with output_dir and save_steps a killed "
        "training goes on from its last checkpoint. None of reports, logs, evaluation and uploads",
    )
    launch: str = Field(
        default="",
        description="Options of `accelerate launch` to train in several processes, such as "
        "--multi_gpu --num_processes 4; empty = in this process",
    )
    seed: int = Field(
        default=0, ge=0, description="Of the head's start and of the order of the data"
    )


@dataclass(frozen=True)
class TrainingData:
    """Distinct texts as token ids, and labelled pairs of them.

    `first` and `second` (n,) index the chosen and the rejected text; `targets` and `weights` (n,)
    are the labels and weights of the pairs, of which only the ratios count.
    """

    token_ids: list[list[int]]
    first: Ints
    second: Ints
    targets: Floats
    weights: Floats
    pad_id: int


class TrainingRecord(Record):
    """Outcome and cost of a training, of one that went on from a checkpoint the cost since then;
    seconds are those of this process.
    """

    n_steps: int
    n_pairs_seen: int = Field(description="labelled pairs whose loss was taken, repeats included")
    n_texts_encoded: int = Field(description="forward passes of a text, repeats included")
    loss_curve: tuple[float, ...] = Field(description="mean loss of a pair in each step, nats")
    wall_s: float
    cpu_s: float
    precision: str


def train(
    network: Any, data: TrainingData, params: TrainerParams, progress: Progress = ignore_progress
) -> TrainingRecord:
    """Train the weights of `network` in place.

    Raises ConfigurationError for a field that TrainingArguments lacks, NotEnoughData if no pair has
    two different texts, TrainingFailed at the first loss that is NaN or infinite.
    """
    import torch
    from transformers import PrinterCallback

    started = time.perf_counter(), time.process_time()
    with ExitStack() as around:
        around.enter_context(silence_libraries())
        nowhere = around.enter_context(tempfile.TemporaryDirectory())
        folder = _choose_folder(network, data, params) or Path(nowhere)
        arguments = _build_arguments(params, folder)
        widths = _round_widths(data)
        trainer = _trainer_class()(
            model=network,
            args=arguments,
            train_dataset=_build_rows(data, params, arguments),
            data_collator=_Collator(data, widths, TOKENS_PER_PASS[arguments.device.type]),
            callbacks=[_make_callback(progress)],
        )
        trainer.remove_callback(PrinterCallback)
        around.enter_context(_attention_context(params, widths))
        trainer.train(resume_from_checkpoint=_find_last_checkpoint(folder))
        if arguments.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        counts = trainer.accelerator.reduce(
            torch.tensor([trainer.n_pairs, trainer.n_texts], device=arguments.device)
        )
    # The trainer leaves `forward` in bfloat16.
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    network.eval()
    return TrainingRecord(
        n_steps=trainer.state.global_step,
        n_pairs_seen=int(counts[0]),
        n_texts_encoded=int(counts[1]),
        loss_curve=tuple(float(row["loss"]) for row in trainer.state.log_history if "loss" in row),
        wall_s=time.perf_counter() - started[0],
        cpu_s=time.process_time() - started[1],
        precision="bfloat16" if arguments.bf16 else "float32",
    )


@cache
def _trainer_class() -> Any:
    """The trainer, defined at first use: importing transformers takes seconds."""
    from transformers import Trainer

    class GroupTrainer(Trainer):  # type: ignore[misc]
        """Encodes each text of a batch once and takes the loss of every pair."""

        n_pairs = 0
        n_texts = 0

        def compute_loss(
            self,
            model: Any,
            inputs: dict[str, Any],
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            """The batch's share of the step's loss: the sum over its pairs, divided by the pairs of
            all batches and processes of the step, whose gradients the trainer sums or averages.
            """
            scores = model(inputs["passes"])
            margins = scores[inputs["first"]] - scores[inputs["second"]]
            losses = pair_losses(margins, inputs["labels"]) * inputs["weights"]
            self.n_pairs += len(losses)
            self.n_texts += len(scores)
            loss = losses.sum() / num_items_in_batch * self.accelerator.num_processes
            return (loss, scores) if return_outputs else loss

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            """As transformers', but begun one step later: its first rate is 0, and the step would
            learn nothing.
            """
            scheduler = super().create_scheduler(num_training_steps + 1, optimizer)
            with warnings.catch_warnings():  # torch expects a step of the optimizer before it
                warnings.simplefilter("ignore", UserWarning)
                scheduler.step()
            return scheduler

    return GroupTrainer


class _Collator:
    """Pads the texts of some groups in passes of similar width.

    `passes` are (input_ids, attention_mask) of each; `first` and `second` index the texts in the
    order of the passes; `labels` and `weights` are those of the pairs.
    """

    def __init__(self, data: TrainingData, widths: Ints, overhead: int) -> None:
        self.data, self.widths, self.overhead = data, widths, overhead
        self.weights = data.weights / data.weights.mean()

    def __call__(self, groups: Sequence[ComparisonGroup]) -> dict[str, Any]:
        import torch

        texts = np.concatenate([group.texts for group in groups])
        passes = group_by_length(self.widths[texts], self.overhead)
        place = np.empty(len(texts), dtype=np.int64)
        place[np.concatenate(passes)] = np.arange(len(texts))
        places = np.split(place, np.cumsum([len(group.texts) for group in groups])[:-1])
        both = list(zip(places, groups, strict=True))
        first = np.concatenate([place[group.first] for place, group in both])
        second = np.concatenate([place[group.second] for place, group in both])
        pairs = np.concatenate([group.pairs for group in groups])
        return {
            "passes": [self._pad(texts[rows]) for rows in passes],
            "first": torch.from_numpy(first),
            "second": torch.from_numpy(second),
            "labels": torch.as_tensor(self.data.targets[pairs], dtype=torch.float32),
            "weights": torch.as_tensor(self.weights[pairs], dtype=torch.float32),
        }

    def _pad(self, texts: Ints) -> tuple[Any, Any]:
        token_ids = [self.data.token_ids[text] for text in texts]
        return pad(token_ids, self.data.pad_id, width=int(self.widths[texts].max()))


def _build_rows(data: TrainingData, params: TrainerParams, arguments: Any) -> list[ComparisonGroup]:
    """The rows of the trainer's data set. Several processes need as many each: accelerate would
    repeat pairs, so groups of one text without a pair fill them up.
    """
    rows = group_comparisons(
        data.first,
        data.second,
        texts_per_batch=params.texts_per_batch,
        texts_per_prompt=params.texts_per_prompt,
        seed=params.seed,
    )
    shared = arguments.world_size * arguments.per_device_train_batch_size
    nothing = np.zeros(0, dtype=np.int64)
    empty = ComparisonGroup(rows[0].texts[:1], nothing, nothing, nothing)
    return rows + [empty] * (-len(rows) % shared if arguments.world_size > 1 else 0)


def _build_arguments(params: TrainerParams, folder: Path) -> Any:
    """The TrainingArguments. Raises ConfigurationError for unknown or impossible fields."""
    from transformers import TrainingArguments

    ours = {
        "per_device_train_batch_size": 1,
        "learning_rate": params.learning_rate,
        "warmup_steps": 0.1,
        "num_train_epochs": params.epochs,
        "max_steps": params.steps or -1,
        "bf16": computes_in_bfloat16(params),
        "use_cpu": params.device == "cpu",
        "seed": params.seed,
        "data_seed": params.seed,
        "dataloader_pin_memory": False,
        "save_strategy": "steps" if "output_dir" in params.trainer else "no",
        "save_total_limit": 2,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # the default replaces a NaN loss by the last finite one
        "report_to": "none",
        "disable_tqdm": True,
    }
    fixed = {"output_dir": str(folder), "remove_unused_columns": False}
    fields = read_trainer_fields(TrainingArguments, params.trainer)
    try:
        arguments = TrainingArguments(**ours | fields | fixed)
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(
            f"trainer: {cause}. Give fields of transformers' TrainingArguments."
        ) from cause
    use_one_gpu(arguments)
    return arguments


def check_training(params: TrainerParams) -> None:
    """Raise ConfigurationError for fields of `trainer` that TrainingArguments lacks or that the
    pipeline owns, and for options that `accelerate launch` lacks.
    """
    if params.trainer:
        from transformers import TrainingArguments

        read_trainer_fields(TrainingArguments, params.trainer)
    check_launch_options(params.launch)


def computes_in_bfloat16(params: TrainerParams) -> bool:
    """Whether matrix products in training are in bfloat16."""
    is_auto = params.precision == "auto" and has_bfloat16(params.device.partition(":")[0])
    return params.precision == "bfloat16" or is_auto


def _choose_folder(network: Any, data: TrainingData, params: TrainerParams) -> Path | None:
    """The folder of this training's checkpoints, named by weights, data and parameters, so that no
    other training goes on from them; None where no output_dir is set.
    """
    if "output_dir" not in params.trainer:
        return None
    pairs = [array.tolist() for array in (data.first, data.second, data.targets, data.weights)]
    weights = hash_tensors(network.state_dict())
    name = content_hash(params.model_dump(mode="json"), weights, data.token_ids, pairs)
    return Path(params.trainer["output_dir"]) / name[:16]


def _find_last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end: its state is the last file."""
    checkpoints = {
        int(path.parent.name.partition("-")[2]): str(path.parent)
        for path in folder.glob("checkpoint-*/trainer_state.json")
    }
    return checkpoints[max(checkpoints)] if checkpoints else None


def _round_widths(data: TrainingData) -> Ints:
    """The width that each text is padded to at least, (texts,)."""
    lengths = np.array([len(ids) for ids in data.token_ids], dtype=np.int64)
    return np.minimum(-(-lengths // WIDTH_STEP) * WIDTH_STEP, lengths.max())


def _attention_context(params: TrainerParams, widths: Ints) -> Any:
    """The faster attention for these texts on this device."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    is_plain = params.device == "cpu" and widths.max() <= PLAIN_ATTENTION_WIDTH
    return sdpa_kernel(SDPBackend.MATH) if is_plain else nullcontext()


def _make_callback(progress: Progress) -> Any:
    from transformers import TrainerCallback

    class LossCallback(TrainerCallback):  # type: ignore[misc]
        """Reports progress and stops at NaN."""

        def on_log(
            self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **more: Any
        ) -> None:
            if "loss" not in logs:
                return
            loss = float(logs["loss"])
            if not np.isfinite(loss):
                raise TrainingFailed(
                    f"The loss of step {state.global_step} is {loss}. Lower learning_rate, or "
                    "check weights and labels for NaN."
                )
            if state.is_world_process_zero:
                progress(state.global_step, state.max_steps, f"loss {loss:.3f}")

    return LossCallback()

"""Runs one TRL trainer to its end, through kills and restarts; the strategy builds the trainer."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from rlhf_pipeline.core.errors import ConfigurationError, OutOfMemory, PipelineError, TrainingFailed
from rlhf_pipeline.core.files import WRITE_REFUSALS, find_refusal
from rlhf_pipeline.core.parameters import Device, Dtype
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import folder_hash
from rlhf_pipeline.generate.policy.causal_lm import Policy
from rlhf_pipeline.improve.retraining.adapters import AdapterParams, save_model
from rlhf_pipeline.improve.retraining.checkpoints import (
    find_last_complete,
    mark_complete,
    replace_folder,
)
from rlhf_pipeline.improve.retraining.figures import format_figures
from rlhf_pipeline.improve.retraining.sentinels import (
    SentinelParams,
    SentinelStop,
    SentinelWatch,
    make_sentinel_callback,
)
from rlhf_pipeline.learn.reward_model.launching import use_one_gpu
from rlhf_pipeline.learn.reward_model.trainer_fields import PIPELINE_FIELDS, read_trainer_fields

# (parameters up to, learning rate): 2e-4 was measured on the embedded policy (1.2 M), 5e-7 is that
# of Zephyr 7B (Tunstall et al. 2023); the others lie between.
LEARNING_RATES = ((2e7, 2e-4), (2e8, 1e-5), (2e9, 2e-6), (math.inf, 5e-7))
TOKEN_COUNTER = "_total_train_tokens"  # of TRL's trainers; the public API has no name for it
# Fields of every trainer's config that `trainer` may not have: the parameters that set them.
OWNED_FIELDS = {
    "auto_find_batch_size": "batch_size",
    "bf16": "dtype",
    "data_seed": "seed",
    "fp16": "dtype",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gradient_checkpointing": "gradient_checkpointing",
    "learning_rate": "learning_rate",
    "max_length": "max_length",
    "max_steps": "epochs and min_steps",
    "num_train_epochs": "epochs and min_steps",
    "per_device_train_batch_size": "batch_size",
    "save_steps": "checkpoint_every",
    "seed": "seed",
    "train_sampling_strategy": "curriculum",
    "use_cpu": "device",
    "warmup_steps": "warmup_share",
}
_CHECKPOINTS = "it keeps whole checkpoints beside the candidate and goes on from the last"
RESERVED_FIELDS = PIPELINE_FIELDS | {
    "enable_jit_checkpoint": _CHECKPOINTS,
    "ignore_data_skip": _CHECKPOINTS,
    "output_dir": _CHECKPOINTS,
    "restore_callback_states_from_checkpoint": _CHECKPOINTS,
    "resume_from_checkpoint": _CHECKPOINTS,
    "save_": _CHECKPOINTS,
}
MAX_LOGGED_STEPS = 400  # points of a loss curve: enough for a plot, few enough for a record


class TrainingParams(AdapterParams):
    """Parameters shared by every strategy, so two runs can differ in the strategy alone."""

    learning_rate: float | None = Field(
        None,
        description="Peak learning rate of AdamW, linear decay; null = by the size of the policy",
        gt=0,
        le=1,
    )
    warmup_share: float = Field(
        0.1,
        description="Share of the steps in which the learning rate rises to its peak",
        ge=0,
        lt=1,
    )
    epochs: int = Field(2, description="Passes over the rows", ge=1, le=100)
    min_steps: int = Field(
        60,
        description="Fewest optimiser steps: a small set is passed over more often than `epochs`",
        ge=0,
        le=100_000,
    )
    curriculum: bool = Field(
        False, description="Rows from easy to hard in every pass; false = shuffled"
    )
    batch_size: int = Field(16, description="Rows per optimiser step", ge=1, le=4096)
    gradient_accumulation: int = Field(
        1,
        description="Parts of a batch, computed one after the other: the same step in less memory; "
        "divides batch_size",
        ge=1,
        le=4096,
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Compute activations again instead of keeping them: less memory, a third more "
        "work",
    )
    max_length: int = Field(
        512, description="Tokens of prompt and completion together; what is beyond is cut off", ge=8
    )
    max_new_tokens: int = Field(
        48,
        description="Tokens per completion that is sampled while training, by online strategies "
        "and sentinels",
        ge=1,
        le=8192,
    )
    seed: int = Field(0, description="Of row order and initialisation", ge=0, lt=2**31)
    checkpoint_every: int = Field(
        20, description="Optimiser steps between two checkpoints: what a kill can cost", ge=1
    )
    cpu_threads: int = Field(
        1,
        description="CPU threads; equal numbers give equal weights. Raise it for large policies",
        ge=1,
        le=256,
    )
    device: Device = Field(
        "auto",
        description="Where it trains: cpu, cuda; auto = the GPU where there is one; equal hashes "
        "are promised on the CPU alone",
    )
    dtype: Dtype = Field(
        "auto",
        description="Number format of matrix products and frozen weights: float32 or bfloat16; "
        "auto = bfloat16 on a GPU that has it",
    )
    min_pairs: int = Field(50, description="Fewer preference pairs than this are refused", ge=1)
    trainer: dict[str, Any] = Field(
        default={},
        description="Any other fields of the strategy's config in TRL, such as max_grad_norm or "
        "loss_type of grpo; of ppo those of transformers' TrainingArguments",
    )
    launch: str = Field(
        "",
        description="Options of `accelerate launch` to train in several processes, such as "
        "--multi_gpu --num_processes 4; empty = in this process",
    )
    sentinels: SentinelParams = Field(
        default_factory=SentinelParams,
        description="What is measured while training, and the limits that stop it",
    )

    @model_validator(mode="after")
    def _check_accumulation(self) -> Self:
        if self.batch_size % self.gradient_accumulation:
            raise ValueError(
                f"gradient_accumulation {self.gradient_accumulation} does not divide batch_size "
                f"{self.batch_size}"
            )
        return self

    @property
    def rows_per_pass(self) -> int:
        return self.batch_size // self.gradient_accumulation


def choose_learning_rate(
    n_parameters: int, *, imitates: bool = False, has_adapters: bool = False
) -> float:
    """The default learning rate of a policy of that size, for preferences.

    Imitation of texts takes ten times as much, and so do adapters (Schulman et al. 2025).
    """
    rate = next(rate for size, rate in LEARNING_RATES if n_parameters <= size)
    if imitates:
        rate = min(10 * rate, LEARNING_RATES[0][1])
    return round(10 * rate if has_adapters else rate, 12)


@dataclass(frozen=True)
class FinishedTraining:
    """Result of a trainer's run: `log` has one mapping of numbers per logged step, over all
    attempts.
    """

    content_hash: str
    n_steps: int
    log: tuple[dict[str, float], ...]
    seconds: float
    resumed_from: int | None
    stop: SentinelStop | None = None
    n_examples: int = 0
    notices: tuple[str, ...] = ()  # warnings of TRL
    sentinel_curves: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def curve(self, name: str) -> tuple[tuple[int, float], ...]:
        """(step, value) pairs of one logged number, e.g. `loss`."""
        return tuple((int(row["step"]), row[name]) for row in self.log if name in row)

    def mean_at_end(self, name: str, share: float = 0.25) -> float:
        """Mean of a logged number over the last `share` of the steps: a single batch is too noisy
        to report.
        """
        values = [value for _, value in self.curve(name)]
        last = values[-max(1, math.ceil(len(values) * share)) :]
        return float(sum(last) / len(last)) if last else math.nan


def build_trl_arguments(
    policy: Policy, n_rows: int, params: TrainingParams, checkpoints: Path
) -> dict[str, Any]:
    """Keyword arguments common to TRL's configs. TRL's own defaults checkpoint gradients and use
    bf16 even on a CPU. `params` are complete: see `complete_params`.
    """
    steps_per_epoch = math.ceil(n_rows / params.batch_size)
    epochs = max(params.epochs, math.ceil(params.min_steps / steps_per_epoch))
    n_steps = steps_per_epoch * epochs
    from accelerate.utils import get_int_from_env

    n_processes = get_int_from_env(["WORLD_SIZE"], 1)
    if params.rows_per_pass % n_processes:
        raise ConfigurationError(
            f"A pass has {params.rows_per_pass} rows (batch_size over gradient_accumulation), "
            f"which {n_processes} processes cannot share equally. Raise batch_size to a multiple."
        )
    return {
        "output_dir": str(checkpoints),
        "learning_rate": params.learning_rate,
        "warmup_steps": params.warmup_share,
        "num_train_epochs": epochs,
        "per_device_train_batch_size": params.rows_per_pass // n_processes,
        "gradient_accumulation_steps": params.gradient_accumulation,
        "max_length": min(params.max_length, policy.context_length),
        "seed": params.seed,
        "train_sampling_strategy": "sequential" if params.curriculum else "random",
        "data_seed": params.seed,
        "use_cpu": params.device == "cpu",
        "bf16": params.dtype == "bfloat16",
        "gradient_checkpointing": params.gradient_checkpointing,
        "dataloader_pin_memory": False,
        "save_strategy": "steps",
        "save_steps": params.checkpoint_every,
        # rotation deletes before the new checkpoint is marked complete, so an older one must remain
        "save_total_limit": 2,
        "logging_steps": max(1, n_steps // MAX_LOGGED_STEPS),
        "logging_nan_inf_filter": False,  # the default replaces a NaN loss by the last finite one
        "report_to": "none",
        "disable_tqdm": True,
    }


def read_strategy_fields(strategy: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of `trainer` as a TrainedStrategy's config takes them. Raises ConfigurationError as
    `read_trainer_fields`.
    """
    return read_trainer_fields(
        strategy.config_class(),
        values,
        owners={**OWNED_FIELDS, **strategy.owned_fields},
        owning_stage="candidate_model",
        reserved=RESERVED_FIELDS,
    )


def build_config(strategy: Any, ours: Mapping[str, Any], params: TrainingParams) -> Any:
    """The config of a TrainedStrategy's trainer: `ours`, and the fields of `trainer`, which win.
    Raises ConfigurationError as `read_strategy_fields`, and for values that do not go together.
    """
    kind = strategy.config_class()
    fields = read_strategy_fields(strategy, params.trainer)
    try:
        config = kind(**{**ours, **fields})
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(
            f"trainer: {cause}. Correct the field of {kind.__name__}."
        ) from cause
    use_one_gpu(config)
    return config


def keep_tokens(trainer: type[Any]) -> type[Any]:
    """The trainer of TRL for rows of `Policy.tokenize_exchange`. TRL itself would apply the chat
    template to whole exchanges, which may differ from what is sampled, such as after `<think>`.
    """

    class TrainerOfTokens(trainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **more: Any) -> Any:
            return dataset

    return TrainerOfTokens


@contextmanager
def limit_cpu_threads(n: int) -> Iterator[None]:
    """Limit torch to `n` CPU threads: another number changes the order of sums and thus the
    weights.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_to_end(
    build_trainer: Callable[[], Any],
    checkpoints: Path,
    model_folder: Path,
    texts: Mapping[str, str],
    *,
    watch: SentinelWatch | None = None,
    progress: Progress = ignore_progress,
) -> FinishedTraining:
    """Train from the last complete checkpoint in `checkpoints`, or from the start; write the policy
    to `model_folder`.

    A checkpoint restores the optimiser, the schedule, the random state and the place in the data,
    so on one kind of machine an interrupted training ends with the same weights as an uninterrupted
    one. `texts` are small files (name -> content) stored beside the weights. If a sentinel of
    `watch` stops the training, the policy gets the weights of the last checkpoint, which is from
    before the harm.

    Raises TrainingFailed at the first loss, weight or logit that is NaN or infinite, if the disk
    refuses, and if a sentinel stops before the first checkpoint, OutOfMemory if the GPU is full;
    `model_folder` then keeps its previous content.
    """
    from transformers import PrinterCallback

    started = time.monotonic()
    resume = find_last_complete(checkpoints)
    trainer = build_trainer()
    trainer.remove_callback(PrinterCallback)
    seconds_before = resume.seconds if resume else 0.0
    callback = _make_callback(trainer, checkpoints, started, seconds_before, progress)
    trainer.add_callback(callback)
    if watch is not None:
        trainer.add_callback(make_sentinel_callback(watch, trainer.processing_class))
    try:
        trainer.train(resume_from_checkpoint=str(resume.folder) if resume else None)
        stop = None if watch is None else _undo_harm(trainer, checkpoints, watch)
        _refuse_broken_weights(trainer.model)
        content_hash = ""
        if trainer.is_world_process_zero():
            content_hash = _save_model(trainer, checkpoints / "model.tmp", model_folder, texts)
    except Exception as cause:
        unread = resume.folder if resume and not callback.has_begun else None
        fault = _find_fault(cause, trainer, checkpoints.parent, unread)
        if fault is None:
            raise
        raise fault from cause
    spent = time.monotonic() - started + seconds_before
    log = tuple(_to_floats(row) for row in trainer.state.log_history if "loss" in row)
    return FinishedTraining(
        content_hash,
        int(trainer.state.global_step),
        log,
        spent,
        resume.step if resume else None,
        stop,
    )


def _find_fault(
    cause: Exception, trainer: Any, folder: Path, unread: Path | None
) -> PipelineError | None:
    """What an error of torch or of the disk means for the training, or any error before `unread`,
    the checkpoint that it goes on from, was read; None for any other.
    """
    import torch

    if isinstance(cause, torch.OutOfMemoryError):
        return OutOfMemory(
            f"The training needs more memory than the GPU has ({str(cause).partition('. ')[0]}). "
            "Raise gradient_accumulation, set gradient_checkpointing, lower batch_size or "
            "max_length, or train adapters alone (lora_rank: 16)."
        )
    if "probability tensor contains" in str(cause):  # torch.multinomial, on the CPU
        state = trainer.state
        return TrainingFailed(
            f"Training broke at step {state.global_step} of {state.max_steps}: the policy's logits "
            "are not finite. Lower the learning rate; at step 0, restore the parent policy."
        )
    refusal = find_refusal(cause)
    if unread is not None and refusal is None:
        return TrainingFailed(
            f"The checkpoint {unread} cannot be read ({cause}). Delete this folder and run again: "
            "the training goes on from the checkpoint before."
        )
    if refusal is None or refusal.errno not in WRITE_REFUSALS:  # as of a file that it reads
        return None
    return TrainingFailed(
        f"Training could not write below {folder}: {refusal.strerror}. Free some space, or make "
        "the folder writable, and run again: it continues from the last complete checkpoint."
    )


def _undo_harm(trainer: Any, checkpoints: Path, watch: SentinelWatch) -> SentinelStop | None:
    """After a stop, give the policy the weights of the last checkpoint."""
    if watch.violation is None:
        return None
    last = find_last_complete(checkpoints)
    stop = watch.describe_stop(None if last is None else last.step)
    if last is not None:
        trainer._load_from_checkpoint(str(last.folder))
    return stop


def _make_callback(
    trainer: Any, checkpoints: Path, started: float, spent_before: float, progress: Progress
) -> Any:
    from transformers import TrainerCallback

    class CheckpointCallback(TrainerCallback):  # type: ignore[misc]
        """Reports progress, stops at NaN, and marks every complete checkpoint."""

        has_begun = False  # the checkpoint to go on from is read before

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.has_begun = True
            # TRL counts the tokens of some strategies anew after a kill
            if hasattr(trainer, TOKEN_COUNTER):
                before = [row["num_tokens"] for row in state.log_history if "num_tokens" in row]
                setattr(trainer, TOKEN_COUNTER, int(before[-1]) if before else 0)

        def on_log(
            self,
            args: Any,
            state: Any,
            control: Any,
            logs: dict[str, Any] | None = None,
            **more: Any,
        ) -> None:
            numbers = _to_floats(logs or {})
            broken = [
                name
                for name in ("loss", "grad_norm")
                if name in numbers and not math.isfinite(numbers[name])
            ]
            if broken:
                raise TrainingFailed(
                    f"Training broke at step {state.global_step} of {state.max_steps}: {broken[0]} "
                    f"is {numbers[broken[0]]}. The learning rate was {args.learning_rate:g}; lower "
                    "it, or look for broken rows in the retraining set."
                )
            if "loss" in numbers:
                progress(state.global_step, state.max_steps, format_figures(numbers))

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            spent = spent_before + time.monotonic() - started
            trainer.accelerator.wait_for_everyone()  # each process writes files of its own
            if state.is_world_process_zero:
                mark_complete(checkpoints / f"checkpoint-{state.global_step}", spent)

    return CheckpointCallback()


def _to_floats(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items()}


def _refuse_broken_weights(model: Any) -> None:
    broken = [
        name for name, weights in model.named_parameters() if not bool(weights.isfinite().all())
    ]
    if broken:
        raise TrainingFailed(
            f"{len(broken)} weights are not finite after training, first {broken[0]}. Lower the "
            "learning rate."
        )


def _save_model(trainer: Any, half: Path, model_folder: Path, texts: Mapping[str, str]) -> str:
    shutil.rmtree(half, ignore_errors=True)
    save_model(trainer.model, half)
    trainer.processing_class.save_pretrained(half)
    for name, text in texts.items():
        (half / name).write_text(text, encoding="utf-8")
    content_hash = folder_hash(half)
    model_folder.parent.mkdir(parents=True, exist_ok=True)
    replace_folder(half, model_folder)
    return content_hash

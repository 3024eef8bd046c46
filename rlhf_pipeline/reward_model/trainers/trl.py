"""Trains with TRL's RewardTrainer, which encodes two completions per pair."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlhf_pipeline.errors import ConfigurationError, NotEnoughData, TrainingFailed
from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.reward_model.network import silence_libraries
from rlhf_pipeline.reward_model.trainers.base import (
    TrainerParams,
    TrainingContext,
    TrainingCounts,
    TrainingData,
    TrainingRecord,
)
from rlhf_pipeline.reward_model.trainers.shared_text import (
    effective_precision,
    make_record,
    measure_time,
)


def train_with_trl(
    network: Any, data: TrainingData, params: TrainerParams, around: TrainingContext
) -> TrainingRecord:
    """Train in place; see `Trainer`.

    TRL learns preferences as certain and with equal weights; pairs without a preferred side or with
    weight 0 are left out. Raises ConfigurationError for another label than majority, unequal
    weights or several processes, NotEnoughData if no pair has a preferred side, TrainingFailed on a
    loss that is NaN.
    """
    from trl import RewardTrainer

    _refuse_unsupported(data, params, around)
    tally, started = TrainingCounts(), measure_time()
    with silence_trl(), tempfile.TemporaryDirectory() as nowhere:
        trainer = RewardTrainer(
            model=network.to(params.device),
            args=_build_arguments(params, nowhere),
            train_dataset=_build_dataset(data),
            processing_class=around.tokenizer,
            data_collator=_counting_collator(data.pad_id, tally),
            callbacks=[_make_callback(around.progress)],
        )
        _remove_printing(trainer)
        trainer.train()
        # The trainer left `forward` in bfloat16.
        trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    tally.losses = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
    if not tally.losses or not np.isfinite(tally.losses).all():
        raise TrainingFailed(
            f"A loss of TRL's trainer is not finite ({tally.losses[-1:]}). Lower learning_rate, or "
            "check the labels for NaN."
        )
    network.eval()
    if params.gradient_checkpointing:
        network.activation_checkpointing_disable()
    return make_record("trl", tally, params, started)


def _refuse_unsupported(data: TrainingData, params: TrainerParams, around: TrainingContext) -> None:
    if params.label != "majority":
        raise ConfigurationError(
            f"TRL's trainer cannot learn the label {params.label}. Choose the label majority, or "
            "the trainer shared_text."
        )
    counted = data.weights[data.weights > 0]
    if len(counted) and not np.allclose(counted, counted[0]):
        raise ConfigurationError(
            "TRL's trainer ignores weights of pairs. Give all the same weight, or choose the "
            "trainer shared_text."
        )
    if around.world > 1:
        raise ConfigurationError(
            "Several processes train with the trainer shared_text alone. Choose it, or run one "
            "process."
        )


def _build_dataset(data: TrainingData) -> Any:
    from datasets import Dataset

    p = data.targets
    rows = []
    for row in np.flatnonzero((data.weights > 0) & (p != 0.5)):
        sides = (
            (data.first[row], data.second[row])
            if p[row] > 0.5
            else (data.second[row], data.first[row])
        )
        chosen, rejected = (data.token_ids[side] for side in sides)
        rows.append({"chosen_ids": chosen, "rejected_ids": rejected})
    if not rows:
        raise NotEnoughData(
            f"None of {len(p)} pairs has a preferred side, which TRL's trainer needs. Choose the "
            "trainer shared_text."
        )
    return Dataset.from_list(rows)


def _build_arguments(params: TrainerParams, folder: str) -> Any:
    from trl import RewardConfig

    return RewardConfig(
        output_dir=folder,
        learning_rate=params.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=params.warmup_share,
        weight_decay=params.weight_decay,
        max_grad_norm=params.max_grad_norm,
        num_train_epochs=params.epochs,
        max_steps=params.steps or -1,
        per_device_train_batch_size=params.pairs_per_batch,
        gradient_accumulation_steps=params.batches_per_step,
        gradient_checkpointing=params.gradient_checkpointing,
        bf16=effective_precision(params) == "bfloat16",
        max_length=None,  # it would drop longer texts; ours are already truncated
        seed=params.seed,
        data_seed=params.seed,
        use_cpu=params.device == "cpu",
        dataloader_pin_memory=False,
        save_strategy="no",
        logging_steps=1,
        logging_nan_inf_filter=False,  # the default replaces a NaN loss by the last finite one
        report_to="none",
        disable_tqdm=True,
    )


def _counting_collator(pad_id: int, tally: TrainingCounts) -> Any:
    from trl.trainer.reward_trainer import DataCollatorForPreference

    collate = DataCollatorForPreference(pad_token_id=pad_id)

    def collate_and_count(examples: list[dict[str, Any]]) -> Any:
        batch = collate(examples)
        tally.add(len(examples), batch["attention_mask"].sum(1).numpy())
        return batch

    return collate_and_count


def _make_callback(progress: Progress) -> Any:
    from transformers import TrainerCallback

    class ProgressCallback(TrainerCallback):  # type: ignore[misc]
        def on_log(
            self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **kwargs: Any
        ) -> None:
            if "loss" in logs:
                progress(state.global_step, state.max_steps, f"loss {float(logs['loss']):.3f}")

    return ProgressCallback()


def _remove_printing(trainer: Any) -> None:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


@contextmanager
def silence_trl() -> Iterator[None]:
    """`silence_libraries`, and no progress bars over rows: `progress` reports what is relevant."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with silence_libraries():
            yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()

"""Completes the parameters of a training for its policy and this machine, and opens the policy."""

import logging
from pathlib import Path
from typing import TypeVar

import pandas as pd

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.policy.causal_lm import Policy, PromptFormat, load_policy
from rlhf_pipeline.policy.devices import Placement, choose_placement
from rlhf_pipeline.retraining.adapters import add_adapters, check_adapters
from rlhf_pipeline.retraining.memory import (
    MemoryNeed,
    ModelShape,
    check_memory,
    estimate_memory,
    measure_free_memory,
)
from rlhf_pipeline.retraining.training import TrainingParams, choose_learning_rate

logger = logging.getLogger(__name__)
P = TypeVar("P", bound=TrainingParams)
N_COUNTED = 16  # rows with the most characters, whose tokens are counted


def place_training(params: TrainingParams) -> Placement:
    """Where a training computes. Raises ConfigurationError as `choose_placement`, and where more
    than one GPU is visible.
    """
    import torch

    place = choose_placement(params.device, params.dtype)
    if not place.is_cpu and torch.cuda.device_count() > 1:
        raise ConfigurationError(
            f"torch sees {torch.cuda.device_count()} GPUs, among which the trainer would split "
            f"each batch. Set CUDA_VISIBLE_DEVICES={place.device.partition(':')[2]} for this "
            "process, and device to cuda."
        )
    return place


def complete_params(
    params: P,
    shape: ModelShape,
    place: Placement,
    *,
    imitates: bool = False,
    updates_per_step: int = 1,
) -> P:
    """The parameters with device, number format and learning rate as they apply here. A strategy
    that updates the weights several times per step shares the default rate among these. Raises
    ConfigurationError as `check_adapters`.
    """
    check_adapters(params, place.device)
    default = choose_learning_rate(
        shape.n_parameters, imitates=imitates, has_adapters=params.lora_rank > 0
    )
    rate = params.learning_rate or default / updates_per_step
    return params.model_copy(
        update={"learning_rate": rate, "device": place.device, "dtype": place.dtype}
    )


def list_notices(
    rows: pd.DataFrame,
    params: TrainingParams,
    shape: ModelShape,
    place: Placement,
    reader: PromptFormat,
    *,
    has_reference: bool,
) -> tuple[str, ...]:
    """What to know before the training starts: its number format, and memory that may not suffice.
    Raises ConfigurationError if the model alone does not fit.
    """
    need = estimate_need(rows, params, shape, reader, has_reference=has_reference)
    shortage = check_memory(need, place, measure_free_memory(place.device))
    if shortage:
        logger.warning(shortage)
    return tuple(notice for notice in (place.notice, shortage) if notice)


def estimate_need(
    rows: pd.DataFrame,
    params: TrainingParams,
    shape: ModelShape,
    reader: PromptFormat,
    *,
    has_reference: bool,
) -> MemoryNeed:
    """The memory of a training on `rows`, which have a prompt and, unless completions are sampled,
    chosen and rejected or one of them.
    """
    sides = [name for name in ("chosen", "rejected") if name in rows]
    n_characters = sum(rows[name].str.len() for name in ("prompt", *sides))
    longest = rows.loc[n_characters.nlargest(N_COUNTED).index]
    n_tokens = max(
        reader.count_prompt_tokens(row["prompt"])
        + max([reader.count_tokens(row[name]) for name in sides] or [params.max_new_tokens])
        for row in longest.to_dict("records")
    )
    return estimate_memory(
        shape,
        params,
        n_rows=params.rows_per_pass * (len(sides) or getattr(params, "n_samples", 1)),
        n_tokens=min(params.max_length, n_tokens),
        has_reference=has_reference,
    )


def open_policy(folder: Path, params: TrainingParams) -> Policy:
    """Load the policy to train, with new adapters where `params` ask for them. Weights that are
    trained are float32: small steps would be lost in bfloat16. The policy's own dropout is off: a
    sampled completion and its likelihood are then of one policy, and parts of a batch give the step
    of the whole.
    """
    from trl.trainer.utils import disable_dropout_in_model

    has_adapters = params.lora_rank > 0
    policy = (
        load_policy(folder, device=params.device, dtype=params.dtype, in_4bit=params.qlora)
        if has_adapters
        else load_policy(folder, device=params.device)
    )
    disable_dropout_in_model(policy.model)
    return add_adapters(policy, params, params.seed) if has_adapters else policy

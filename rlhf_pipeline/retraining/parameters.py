"""How a candidate is trained: the knobs, their bounds and where they are read from. Knows no
trainer and no data.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_pipeline.documents import parse_yaml
from rlhf_pipeline.errors import ConfigurationError


class StrategyParams(BaseModel):
    """Parameters of all strategies, so that two runs can differ in the strategy alone."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(
        2e-4, description="Peak learning rate of AdamW, linear decay", gt=0, le=1
    )
    warmup_share: float = Field(
        0.1,
        description="Share of the steps in which the learning rate rises to its peak",
        ge=0,
        lt=1,
    )
    epochs: int = Field(2, description="Passes over the rows", ge=1, le=100)
    batch_size: int = Field(16, description="Rows per optimiser step", ge=1, le=4096)
    max_length: int = Field(
        512, description="Tokens of prompt and completion together; what is beyond is cut off", ge=8
    )
    seed: int = Field(0, description="Of row order and initialisation", ge=0, lt=2**31)
    checkpoint_every: int = Field(
        20, description="Optimiser steps between two checkpoints: what a kill can cost", ge=1
    )
    keep_checkpoints: bool = Field(
        False, description="Keep the checkpoints after the training is done"
    )
    cpu_threads: int = Field(
        1,
        description="CPU threads; equal numbers give equal weights. Raise it for large policies",
        ge=1,
        le=256,
    )
    use_gpu: bool = Field(
        False, description="Train on a GPU where there is one; equal hashes are then not promised"
    )
    beta: float = Field(
        0.1,
        description="DPO: strength of the pull back to the reference policy (its KL penalty)",
        gt=0,
        le=10,
    )
    best_of_n: int = Field(
        1, description="SFT: completions kept per prompt, best first", ge=1, le=64
    )
    min_pairs: int = Field(50, description="Fewer preference pairs than this are refused", ge=1)


def parse_strategy_params(values: Mapping[str, Any]) -> StrategyParams:
    """Parameters from a mapping. Raises ConfigurationError naming an unknown key and the nearest
    known one.
    """
    known = list(StrategyParams.model_fields)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean `{near[0]}`? " if near else ""
            raise ConfigurationError(
                f"Unknown training parameter `{key}`. {hint}Known: {', '.join(known)}."
            )
    try:
        return StrategyParams(**values)
    except ValidationError as cause:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, not {e['input']!r}"
            for e in cause.errors()
        )
        raise ConfigurationError(f"Training parameters cannot be used: {problems}.") from cause


def read_strategy_params(path: Path) -> StrategyParams:
    """Parameters from a YAML or JSON file (JSON is YAML). Raises ConfigurationError naming file and
    cause.
    """
    try:
        values = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise ConfigurationError(f"{path} cannot be read as YAML or JSON: {cause}") from cause
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{path} must hold `parameter: value` lines, not a {type(values).__name__}."
        )
    return parse_strategy_params(values)

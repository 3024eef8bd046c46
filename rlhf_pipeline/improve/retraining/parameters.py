"""Collects the parameters of every training strategy, and reads them from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rlhf_pipeline.core.documents import parse_yaml
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import suggest
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES
from rlhf_pipeline.improve.retraining.training import TrainingParams


class StrategyParams(*STRATEGIES.params(TrainingParams)):  # type: ignore[misc]
    """Parameters of every training strategy, installed ones included."""


def parse_strategy_params(values: Mapping[str, Any]) -> StrategyParams:
    """Parse parameters from a mapping. Raises ConfigurationError for an unknown key, with the
    nearest known one, and for an invalid value.
    """
    names = list(StrategyParams.model_fields)
    for key in values:
        if key not in names:
            raise ConfigurationError(
                f"Unknown training parameter {key!r}. {suggest(str(key), names)}"
            )
    try:
        return StrategyParams(**values)
    except ValidationError as cause:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, not {e['input']!r}"
            for e in cause.errors()
        )
        raise ConfigurationError(f"Invalid training parameters: {problems}.") from cause


def read_strategy_params(path: Path) -> StrategyParams:
    """Read parameters from a YAML or JSON file (JSON is YAML). Raises ConfigurationError with the
    file and the cause.
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

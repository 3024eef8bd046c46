"""Ways to make a candidate policy from preferences, by name. To add one: a class in a file of its
own and a line here.
"""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.plugins import Members
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.parameters import (
    StrategyParams,
    parse_strategy_params,
    read_strategy_params,
)
from rlhf_pipeline.retraining.strategies.base import Strategy, TrainingReport
from rlhf_pipeline.retraining.strategies.dpo import DPO
from rlhf_pipeline.retraining.strategies.sft import SFT

_OWN: dict[str, type[Strategy]] = {"dpo": DPO, "sft": SFT}
STRATEGIES = Members("retraining.strategies", _OWN)

__all__ = [
    "STRATEGIES",
    "Strategy",
    "StrategyParams",
    "TrainingReport",
    "parse_strategy_params",
    "read_strategy_params",
    "train_candidate",
]


def train_candidate(
    strategy: str,
    policy_folder: Path,
    pairs: pd.DataFrame,
    out: Path,
    params: StrategyParams,
    *,
    progress: Progress = ignore_progress,
) -> TrainingReport:
    """Train a candidate by the strategy of that name; see `Strategy.train`. Raises
    ConfigurationError for an unknown name.
    """
    if strategy not in STRATEGIES:
        raise ConfigurationError(
            f"Unknown strategy `{strategy}`. Known: {', '.join(sorted(STRATEGIES))}."
        )
    return STRATEGIES[strategy]().train(policy_folder, pairs, out, params, progress=progress)

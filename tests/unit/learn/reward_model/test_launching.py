"""A launch that fails names its cause in the first line, which summaries show."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.core.errors import ConfigurationError, TrainingFailed
from rlhf_pipeline.core.protocols import ignore_progress
from rlhf_pipeline.improve.retraining.parameters import StrategyParams
from rlhf_pipeline.improve.retraining.strategies import train_candidate
from rlhf_pipeline.learn.reward_model.launching import run_launched


def test_first_line_names_the_cause_of_a_failed_launch(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.yaml")
    with pytest.raises(TrainingFailed) as failure:
        run_launched(f"--config_file {missing}", dict, ignore_progress)
    first, *others = str(failure.value).splitlines()
    assert "ended with 1: FileNotFoundError: The passed configuration file" in first
    assert missing in first
    assert others


def test_error_of_a_launched_process_is_raised(tmp_path: Path) -> None:
    unknown = partial(train_candidate, "trpo", tmp_path, pd.DataFrame(), tmp_path, StrategyParams())
    with pytest.raises(ConfigurationError, match="No 'trpo' in"):
        run_launched("--num_processes 1", unknown, ignore_progress)

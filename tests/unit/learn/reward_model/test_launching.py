"""A launch that fails names its cause in the first line, which summaries show."""

from pathlib import Path

import pytest

from rlhf_pipeline.core.errors import TrainingFailed
from rlhf_pipeline.core.protocols import ignore_progress
from rlhf_pipeline.learn.reward_model.launching import run_launched


def test_first_line_names_the_cause_of_a_failed_launch(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.yaml")
    with pytest.raises(TrainingFailed) as failure:
        run_launched(f"--config_file {missing}", dict, ignore_progress)
    first, *others = str(failure.value).splitlines()
    assert "ended with 1: FileNotFoundError: The passed configuration file" in first
    assert missing in first
    assert others

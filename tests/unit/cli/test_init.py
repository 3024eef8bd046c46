"""What `rlhf init` writes for Dagster: the checkout's file, with the numbers of the settings."""

from pathlib import Path

import pytest
import yaml

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("n", [1, 12])
def test_the_run_limit_comes_from_settings_and_the_rest_from_the_checkout(
    tmp_path: Path, n: int
) -> None:
    prepare(Workspace(Settings(home=tmp_path)))
    prepare(Workspace(Settings(home=tmp_path, max_concurrent_runs=n)))
    instance = yaml.safe_load((tmp_path / "dagster" / "dagster.yaml").read_text())
    expected = yaml.safe_load((ROOT / "dagster_home" / "dagster.yaml").read_text())
    assert (
        expected["concurrency"]["runs"].pop("max_concurrent_runs")
        == Settings(home=tmp_path).max_concurrent_runs
    )
    assert instance["concurrency"]["runs"].pop("max_concurrent_runs") == n
    assert instance == expected

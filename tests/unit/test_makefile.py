"""What `make` writes for bare `dagster` commands."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def make(folder: Path, *arguments: str) -> str:
    command = ["make", "-s", "-C", str(folder), "-f", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_env_file_names_the_default_dagster_home_and_no_rlhf_home(tmp_path: Path) -> None:
    make(tmp_path, ".env", "RLHF_HOME=/elsewhere")
    lines = (tmp_path / ".env").read_text().splitlines()
    assert lines == [
        f"DAGSTER_HOME={tmp_path}/var/dagster",
        "DO_NOT_TRACK=1",
        "MLFLOW_DISABLE_TELEMETRY=true",
    ]

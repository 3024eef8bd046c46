"""The application refuses a broken or mixed home, and Dagster writes nothing outside one."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
STRANGE = "a b#c é~d@e:f&g+h'i;j"
RLHF = [sys.executable, "-c", "from rlhf_pipeline.cli import main; main()"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """`load(home, DAGSTER_HOME=…)`: definitions as Dagster's processes load them."""

    def run(home: Path, **environ: str) -> dict[str, Any]:
        for name, value in {"RLHF_HOME": str(home), **environ}.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(str(ROOT / "definitions.py"))

    return run


def test_definitions_refuse_the_dagster_home_of_another_home(
    load: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"DAGSTER_HOME is .*/b/dagster, but RLHF_HOME is .*/a\."
    ):
        load(tmp_path / "a", DAGSTER_HOME=str(tmp_path / "b" / "dagster"))
    assert not list(tmp_path.iterdir())


def test_definitions_load_with_the_dagster_home_of_their_home(
    load: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    prepare(Workspace(Settings(home=tmp_path)))
    loaded = load(tmp_path, DAGSTER_HOME=str(tmp_path / "dagster"))
    assert loaded["settings"].home == tmp_path
    assert loaded["defs"].resolve_job_def("collection").name == "collection"


@pytest.fixture
def demo(tmp_path: Path, small_policy: Path) -> Iterator[subprocess.Popen[str]]:
    """`rlhf demo` at work on its first day."""
    own = {
        "RLHF_HOME": str(tmp_path / "home"),
        "RLHF_POLICY": str(small_policy),
        "RLHF_COMPLETION_BACKEND": "template",
    }
    environ = os.environ | own | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*RLHF, "demo", "--days", "1"], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    output = iter(process.stdout.readline, "")
    assert any(line.startswith("project demo") for line in output)
    yield process
    for left in at_work(tmp_path / "home"):
        left.kill()
    process.stdout.close()
    process.wait()


def at_work(home: Path) -> list[psutil.Process]:
    """Processes, of this user, on a home."""
    processes = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("RLHF_HOME") == str(home)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def test_killed_demo_leaves_no_process(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    demo.kill()
    demo.wait()
    assert psutil.wait_procs(at_work(tmp_path / "home"), timeout=120)[1] == []
    with FileLock(tmp_path / "home" / "driver.lock", timeout=0):
        pass

"""All state lies below RLHF_HOME, whatever runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RLHF = [sys.executable, "-c", "from rlhf_pipeline.cli import main; main()"]
# One day of the real jobs in one process, as the demo runs them.
A_DAY = """
import os, sys
sys.path.insert(0, os.environ["CHECKOUT"])
import dagster as dg
from definitions import defs
with dg.DagsterInstance.get() as instance:
    for job in ("collection", "feedback"):
        config = {"ops": {"prompts": {"config": {"n": 12}}}} if job == "collection" else {}
        assert defs.resolve_job_def(job).execute_in_process(instance=instance, partition_key="2026-01-01", run_config=config).success
"""


@pytest.fixture
def world(tmp_path):
    """Folders of a user who has nothing, and an environment that points to them alone."""
    folders = {name: tmp_path / name for name in ("home", "user", "cwd", "tmp")}
    for name in ("user", "cwd", "tmp"):
        folders[name].mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folders["user"]),
        "TMPDIR": str(folders["tmp"]),
        "CHECKOUT": str(ROOT),
        "RLHF_HOME": str(folders["home"]),
        "RLHF_COMPLETION_BACKEND": "template",
        "DAGSTER_HOME": str(folders["home"] / "dagster"),
    }
    return folders, environ


def run(command, world, **more):
    folders, environ = world
    done = subprocess.run(command, cwd=folders["cwd"], env=environ | more, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_nothing_is_written_outside_the_home(world, tiny_policy):
    folders, _ = world
    beside = {path for path in ROOT.iterdir() if path.name in ("mlruns", "mlartifacts", "gx", "outputs")}
    run([*RLHF, "init"], world, RLHF_POLICY=str(tiny_policy))
    run([sys.executable, "-c", A_DAY], world)
    run([*RLHF, "prompts", "generate", "--num-prompts", "2"], world)
    run([*RLHF, "export", "completions"], world)
    assert {name: files_below(folders[name]) for name in ("user", "cwd", "tmp")} == {"user": [], "cwd": [], "tmp": []}
    assert {path for path in ROOT.iterdir() if path.name in ("mlruns", "mlartifacts", "gx", "outputs")} == beside
    made = {path.name for path in folders["home"].iterdir() if not path.name.startswith("store.db")}
    assert made == {"frames", "mlflow", "cache", "dagster", "exports", "project.json"}
    stages = ("prompts", "completions", "comparisons", "votes", "preference_pairs", "reflection_log", "drift_report")
    frames = [f"{stage}/2026-01-01.parquet" for stage in stages]
    assert files_below(folders["home"] / "frames") == sorted(
        [*frames, "reports/calibration_2026-01-01.json", "reports/drift_2026-01-01.html"]
    )

"""What benchmarks promise about how they measure: every look at test pairs is kept, figures are of
the code there is, two cores are two.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import trainer_runs
from benchmarks.measurement import pin_to_cores
from benchmarks.opening_log import OpeningLog
from benchmarks.trainer_runs import TrainingSpec, code_hash
from rlhf_pipeline.votes import open_test_split

ROOT = Path(__file__).parents[2]
PAIRS = pd.DataFrame({"comparison_id": ["c1", "c2"], "split": ["train", "test"]})
OPENERS = {"open_test_split", "calibrate", "fit_reward_model"}


def test_openings_are_kept_between_runs_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = OpeningLog(tmp_path / "kept")
    open_test_split(PAIRS, model="frozen: abc", purpose="accuracy", record=first.record)
    again = OpeningLog(tmp_path / "kept")
    for model in ("seed 0: def", "seed 1: fed"):
        open_test_split(PAIRS, model=model, purpose="quality", record=again.record)
    again.print_openings()
    said = capsys.readouterr().out
    assert "2 in this run, 3 kept" in said
    assert "| seed 0: def | quality | 1 |" in said
    assert "| seed 1: fed | quality | 1 |" in said


def test_a_run_without_openings_reports_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OpeningLog(tmp_path).print_openings()
    assert capsys.readouterr().out == "\nNo test split was opened.\n"


def unrecorded(source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in OPENERS
        ):
            said = [k.value for k in node.keywords if k.arg == "record"]
            if not said or any("log_opening" in ast.unparse(value) for value in said):
                yield node.lineno


def test_no_benchmark_opens_a_test_split_off_the_record() -> None:
    """Each hands on `record`, that of benchmarks.opening_log.Looks."""
    benchmarks = sorted((ROOT / "benchmarks").glob("*.py"))
    offenders = [
        f"{path.name}:{line}"
        for path in benchmarks
        for line in unrecorded(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


def test_the_search_finds_a_look_off_the_record() -> None:
    assert list(unrecorded('open_test_split(pairs, model="m", purpose="p")'))
    assert list(unrecorded("calibrate(pairs, model, record=log_opening)"))
    assert not list(unrecorded("calibrate(pairs, model, record=looks.record)"))


def test_a_training_is_done_again_when_the_code_that_trains_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reward_model"
    (folder / "trainers").mkdir(parents=True)
    for name in ("losses.py", "trainers/shared_text.py"):
        (folder / name).write_text("STEP = 1\n")
    before = code_hash(folder)
    assert code_hash(folder) == before
    (folder / "trainers" / "shared_text.py").write_text("STEP = 2\n")
    assert code_hash(folder) != before

    PAIRS.to_parquet(tmp_path / "pairs.parquet")
    spec = TrainingSpec({}, str(tmp_path / "pairs.parquet"), str(tmp_path / "pairs.parquet"))
    key = spec.key()
    assert spec.key() == key
    monkeypatch.setattr(trainer_runs, "code_hash", lambda: "other code")
    assert spec.key() != key


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process")
def test_on_one_core_there_is_one_for_children_too_and_all_come_back() -> None:
    before = os.sched_getaffinity(0)
    with pin_to_cores(1) as said:
        assert said == "1 core"
        assert len(os.sched_getaffinity(0)) == 1
        child = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
        assert (
            subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip() == "1"
        )
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_bench_runs_every_benchmark_once(tmp_path: Path) -> None:
    """bench_learning runs five of the others: with it they would run twice."""
    for name in (
        "pyproject.toml",
        "constraints.txt",
        ".env",
        "benchmarks/bench_real.py",
        "benchmarks/bench_learning.py",
        ".venv/.ready",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "ran $1"\n')
    python.chmod(0o755)
    command = ["make", "-s", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), "bench"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("ran ")] == [
        "ran benchmarks/bench_real.py"
    ]

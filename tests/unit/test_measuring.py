"""A benchmark whose limit is broken says which and ends with 1; what was not measured is never
held.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measurement import Limits, StageTimes, print_table

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").glob("bench_*.py"))


def test_a_broken_limit_is_named_and_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits()
    limits.check(True, "import took 2 min, limit 5 min")
    limits.check(False, "snapshot p95 169 ms, limit 100 ms")
    assert limits.print_summary() == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        "PASS  import took 2 min, limit 5 min",
        "FAIL  snapshot p95 169 ms, limit 100 ms",
    ]
    assert said[-2:] == ["limits: 1 held, 1 broken", "  broken: snapshot p95 169 ms, limit 100 ms"]


def test_an_unmeasured_limit_is_neither_held_nor_broken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = Limits()
    limits.skip("Postgres: no server here")
    assert limits.print_summary() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "----  not measured: Postgres: no server here"
    assert said[-2:] == ["limits: 1 not measured", "  not measured: Postgres: no server here"]
    assert "held" not in " ".join(said)


def test_all_limits_held_requires_a_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert Limits().print_summary() == 0
    assert "it has no limits" in capsys.readouterr().out
    held = Limits()
    assert held.count(True, "counted, printed by a table") == "PASS"
    assert held.print_summary() == 0
    assert capsys.readouterr().out.splitlines() == ["", "limits: 1 held"]


def test_a_nan_measure_holds_no_limit() -> None:
    limits = Limits()
    p95 = float("nan")
    limits.check(p95 <= 100, "p95")
    assert limits.print_summary() == 1


def test_stages_add_up_and_a_table_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    spent = StageTimes()
    for name in ("one", "two"):
        with spent.stage(name):
            sum(range(10_000))
    assert spent.total == pytest.approx(
        tuple(sum(s[i] for s in spent.stages.values()) for i in (0, 1))
    )
    print_table("Title", ("a", "b"), [(1, "x")])
    assert capsys.readouterr().out == "\nTitle\n\n| a | b |\n|---|---|\n| 1 | x |\n"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_exits_by_its_limits(script: Path) -> None:
    """PASS and FAIL are said by Limits alone, and `main` gives its exit code back to the shell."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not any(text.strip() in ("PASS", "FAIL") for text in texts)
    main = next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    nested = {
        id(node)
        for inner in main.body
        if isinstance(inner, ast.FunctionDef)
        for node in ast.walk(inner)
    }
    ends = [
        node for node in ast.walk(main) if isinstance(node, ast.Return) and id(node) not in nested
    ]
    returned = [ast.unparse(node.value) if node.value else "nothing" for node in ends]
    assert returned
    assert all(value.endswith(".print_summary()") for value in returned), returned
    assert ast.unparse(tree.body[-1]) == "if __name__ == '__main__':\n    sys.exit(main())"


def test_a_benchmark_without_its_data_measured_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_real.py"), "--data", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0].startswith(
        "----  not measured: time and accuracy on real votes"
    )
    assert "limits: 1 not measured" in ended.stdout


ALL_BUT_REAL = ("--without", "annotators,calibration,simulated,trainers")


def learning(*more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_learning.py"), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_overall_verdict_counts_unmeasured_limits(tmp_path: Path) -> None:
    ended = learning(
        *ALL_BUT_REAL, "--data", str(tmp_path), "--registry", str(tmp_path / "registry")
    )
    assert ended.returncode == 0, ended.stderr
    assert "| real | 0." in ended.stdout
    assert "limits: 5 not measured" in ended.stdout.splitlines()[-6]
    assert "  not measured: bench_real: 1 not measured" in ended.stdout.splitlines()


def test_the_verdict_over_all_is_broken_where_a_benchmark_dies(tmp_path: Path) -> None:
    for name in ("pairs.parquet", "votes.parquet"):
        (tmp_path / name).write_bytes(b"no parquet")
    # no folder
    ended = learning(
        *ALL_BUT_REAL, "--data", str(tmp_path), "--registry", str(tmp_path / "votes.parquet")
    )
    assert ended.returncode == 1
    assert "FileExistsError" in ended.stderr
    assert "  broken: bench_real: ended without a verdict" in ended.stdout.splitlines()


def test_a_database_that_does_not_exist_is_refused_before_anything_is_made() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_store.py"), "--on", "mysql"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "name sqlite, postgres or both" in ended.stderr

"""`rlhf generate` against the STUB: files, flags, and a key that stands in none of
them.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from tests.providers.stub_provider import StubProvider

KEY = "sk-canary-77c1"
Generate = Callable[..., Result]


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(
            json.dumps({"text": text}) + "\n"
            for text in ("Why is the sky blue?", "=1+1 is what?", "Name a river.")
        )
    )
    return path


@pytest.fixture
def rlhf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generate:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Result:
        environ = {
            "RLHF_HOME": str(tmp_path / "home"),
            "RLHF_API_KEY": KEY,
            "RLHF_API_MODEL": "stub-model",
            "COLUMNS": "200",
        }
        return CliRunner().invoke(
            app, [str(a) for a in arguments], env=environ, catch_exceptions=False
        )

    return call


def generate_command(
    stub: StubProvider, file: Path, *more: object, backend: str = "openai_compatible"
) -> tuple[object, ...]:
    return ("generate", "--input", file, "--backend", backend, "--base-url", stub.base_url, *more)


def results(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "completions.json").read_text())
    return rows


@pytest.mark.parametrize("backend", ["openai_compatible", "anthropic"])
def test_a_file_of_prompts_becomes_json_csv_and_a_log(
    rlhf: Generate, prompts_file: Path, tmp_path: Path, backend: str
) -> None:
    with StubProvider(api_key=SecretStr(KEY)) as stub:
        flags = (
            "--workers",
            2,
            "--temperature",
            0.3,
            "--temperature",
            0.9,
            "--max-tokens",
            7,
            "--k",
            2,
            "--out",
            tmp_path / "made",
        )
        result = rlhf(*generate_command(stub, prompts_file, *flags, backend=backend))
        requests = stub.requests
    assert result.exit_code == 0, result.output
    assert "6 of 6 completions" in result.output
    assert {body["temperature"] for body in requests} == {0.3, 0.9}
    assert {body["max_tokens"] for body in requests} == {7}
    rows = results(tmp_path / "made")
    assert [row["prompt"] for row in rows] == [
        t for t in ("Why is the sky blue?", "=1+1 is what?", "Name a river.") for _ in range(2)
    ]
    assert all(row["text"] and row["error"] is None and row["n_tokens"] == 7 for row in rows)
    with (tmp_path / "made" / "completions.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["prompt"] for row in table][2] == "'=1+1 is what?", (
        "no spreadsheet takes it for a formula"
    )
    assert [row["text"] for row in table] == [row["text"] for row in rows]
    log = [
        json.loads(line)
        for line in (tmp_path / "made" / "raw_completions_log.jsonl").read_text().splitlines()
    ]
    assert len(log) == 6
    assert {call["prompt_id"] for call in log} == {row["prompt_id"] for row in rows}
    assert {
        "params",
        "model",
        "latency_ms",
        "n_prompt_tokens",
        "n_tokens",
        "cost",
        "billing",
        "outcome",
    } <= set(log[0])
    everything = (
        b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        + result.output.encode()
    )
    assert KEY.encode() not in everything


def started(
    tmp_path: Path, *arguments: object, encoding: str = "utf-8", **streams: Any
) -> "subprocess.Popen[bytes]":
    """The command in a process of its own, as a shell starts it."""
    environ = os.environ | {
        "RLHF_HOME": str(tmp_path / "home"),
        "RLHF_API_KEY": KEY,
        "RLHF_API_MODEL": "stub-model",
        "COLUMNS": "160",
        "TERM": "xterm",
        "PYTHONIOENCODING": encoding,
    }
    return subprocess.Popen(
        [Path(sys.executable).with_name("rlhf"), *map(str, arguments)],
        cwd=tmp_path,
        env=environ,
        **streams,
    )


def test_prompts_of_a_file_that_repeats_some_are_counted(rlhf: Generate, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "Why?"}\n{"text": " Why?"}\n{"text": "Who?"}\n')
    with StubProvider(api_key=SecretStr(KEY)) as stub:
        result = rlhf(*generate_command(stub, path))
    assert "2 kept, 1 duplicates" in result.output

"""`rlhf generate` against the STUB: files, flags, and a key that stands in none of
them.
"""

import csv
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.errors import BackendUnavailable, ConfigurationError, PromptError
from tests.providers.stub_provider import Fault, StubProvider

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
        told = rlhf(*generate_command(stub, prompts_file, *flags, backend=backend))
        sent = stub.requests
    assert told.exit_code == 0, told.output
    assert "6 of 6 completions" in told.output
    assert {body["temperature"] for body in sent} == {0.3, 0.9}
    assert {body["max_tokens"] for body in sent} == {7}
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
        + told.output.encode()
    )
    assert KEY.encode() not in everything


def test_the_same_command_calls_for_nothing_again(
    rlhf: Generate, prompts_file: Path, tmp_path: Path
) -> None:
    with StubProvider() as stub:
        rlhf(*generate_command(stub, prompts_file))
        first = results(tmp_path / "home" / "exports" / "completions")
        again = rlhf(*generate_command(stub, prompts_file))
        assert stub.n_calls == 3
        assert results(tmp_path / "home" / "exports" / "completions") == first
        rlhf(*generate_command(stub, prompts_file, "--seed", 1))
        assert stub.n_calls == 6
    assert "3 calls in all" in again.output


def test_a_failed_completion_is_a_row_with_its_reason(
    rlhf: Generate, prompts_file: Path, tmp_path: Path
) -> None:
    with StubProvider(faults=[None, Fault(kind="refusal")]) as stub:
        told = rlhf(*generate_command(stub, prompts_file, "--workers", 1))
    assert told.exit_code == 0
    assert "2 of 3 completions" in told.output
    assert "refusal" in told.output
    [failed] = [
        row for row in results(tmp_path / "home" / "exports" / "completions") if row["error"]
    ]
    assert "refused" in failed["error"]


def test_a_budget_holds_and_the_spending_is_reported(rlhf: Generate, prompts_file: Path) -> None:
    prices = ("--prompt-price", 1, "--completion-price", 1)
    with StubProvider() as stub:
        told = rlhf(
            *generate_command(stub, prompts_file, "--max-tokens", 100, "--budget", 0.0002, *prices)
        )
        counted = stub.counters
    paid = (counted.n_prompt_tokens + counted.n_tokens) / 1e6
    assert 0 < counted.n_calls < 3
    assert f"spent {paid:.6f}" in told.output
    assert "budget" in told.output
    with StubProvider() as stub, pytest.raises(ConfigurationError, match="prices"):
        rlhf(*generate_command(stub, prompts_file, "--budget", 1))


def test_texts_are_printed_as_they_come(rlhf: Generate, prompts_file: Path, tmp_path: Path) -> None:
    with StubProvider() as stub:
        told = rlhf(*generate_command(stub, prompts_file, "--stream", "--workers", 1))
        assert all(body["stream"] for body in stub.requests)
    for row in results(tmp_path / "home" / "exports" / "completions"):
        assert row["text"] in told.output


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


def test_a_limited_terminal_shows_substitutes_but_the_file_is_exact(
    prompts_file: Path, tmp_path: Path
) -> None:
    with StubProvider(complete=lambda body: "From here \u2192 to the Flu\u00df.") as stub:
        flags = ("--stream", "--workers", 1, "--out", tmp_path / "made")
        process = started(
            tmp_path,
            *generate_command(stub, prompts_file, *flags),
            encoding="latin-1",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        shown, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        assert stub.n_calls == 3, "each is paid for once"
    assert shown.decode("latin-1").count("From here ? to the Fluß.") == 3
    assert {row["text"] for row in results(tmp_path / "made")} == {"From here → to the Fluß."}


def test_a_closed_pipe_costs_nothing_and_the_file_is_complete(
    prompts_file: Path, tmp_path: Path
) -> None:
    with StubProvider(chunk_s=0.05) as stub:
        flags = ("--stream", "--workers", 1, "--out", tmp_path / "made")
        process = started(
            tmp_path,
            *generate_command(stub, prompts_file, *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5)
        process.stdout.close()  # as `| head -c 5` does
        said = process.stderr.read().decode()
        process.wait(60)
        assert stub.n_calls == stub.counters.n_billed == 3
    assert "Traceback" not in said
    assert all(row["text"] and row["error"] is None for row in results(tmp_path / "made"))


def test_the_bar_shows_rate_spending_and_when_it_will_end(
    prompts_file: Path, tmp_path: Path
) -> None:
    prompts_file.write_text(
        "".join(json.dumps({"text": f"What is {i} times {i}?"}) + "\n" for i in range(40))
    )
    terminal, its_end = pty.openpty()
    drawn: list[bytes] = []

    def watch() -> None:
        while True:
            try:
                drawn.append(os.read(terminal, 65536))
            except OSError:  # nobody writes there any more
                return

    watcher = threading.Thread(target=watch)
    with StubProvider(latency_s=0.2) as stub:
        flags = (
            "--workers",
            4,
            "--prompt-price",
            1000,
            "--completion-price",
            1000,
            "--out",
            tmp_path / "made",
        )
        process = started(
            tmp_path,
            *generate_command(stub, prompts_file, *flags),
            stdout=subprocess.DEVNULL,
            stderr=its_end,
        )
        os.close(its_end)
        watcher.start()
        assert process.wait(60) == 0
        counted = stub.counters
    watcher.join(10)
    os.close(terminal)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(drawn).decode(errors="replace"))
    assert "completions" in plain
    assert {"100%"} < set(re.findall(r"\d+%", plain)), "it moves"
    rates = [float(rate) for rate in re.findall(r"(\d+\.\d)/s", plain)]
    assert 1 < rates[-1] <= 20, "four at once, each for 0.2 s"
    spent = [float(cost) for cost in re.findall(r"(\d+\.\d{4}) spent", plain)]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx((counted.n_prompt_tokens + counted.n_tokens) / 1000, abs=1e-4)
    assert re.search(r"0:00:0[1-9]", plain), "seconds that are left"


def test_invalid_prompt_rows_are_reported_and_a_file_of_them_is_refused(
    rlhf: Generate, tmp_path: Path
) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"text": "Fine?"}\n{"text": ""}\nnot json\n')
    with StubProvider() as stub:
        told = rlhf(*generate_command(stub, path))
    assert "1 of 1 completions" in told.output
    assert "odd.jsonl" in told.output
    path.write_text('{"text": ""}\n')
    with StubProvider() as stub, pytest.raises(PromptError):
        rlhf(*generate_command(stub, path))


def test_a_refused_key_names_the_setting_and_not_the_key(
    rlhf: Generate, prompts_file: Path
) -> None:
    with (
        StubProvider(api_key=SecretStr("another")) as stub,
        pytest.raises(BackendUnavailable, match="RLHF_API_KEY") as refused,
    ):
        rlhf(*generate_command(stub, prompts_file))
    assert KEY not in str(refused.value)


def test_a_set_of_another_parameter_and_an_unknown_one(rlhf: Generate, prompts_file: Path) -> None:
    with StubProvider() as stub:
        assert (
            rlhf(
                *generate_command(stub, prompts_file, "--set", "requests_per_minute=6000")
            ).exit_code
            == 0
        )
        with pytest.raises(ConfigurationError, match=r"Did you mean tokens_per_minute\?"):
            rlhf(*generate_command(stub, prompts_file, "--set", "tokens_a_minute=9"))
        with pytest.raises(ConfigurationError, match=r"Known: .*tokens_per_minute"):
            rlhf(*generate_command(stub, prompts_file, "--set", "zzz=9"))

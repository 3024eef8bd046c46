"""`rlhf generate` pays a provider once for each completion, whatever breaks on the way."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.home import Home, kill
from tests.acceptance.provider import N_PROMPT_TOKENS, N_TOKENS, Provider

KEY = "sk-never-written-anywhere"
WORKERS = 4
PRICES = ("--prompt-price", 1_000_000, "--completion-price", 1_000_000)  # 1 a token
COST = N_PROMPT_TOKENS + N_TOKENS


@pytest.fixture
def customer(home: Home) -> Home:
    home.environ |= {"RLHF_API_KEY": KEY, "RLHF_API_MODEL": "stub-model"}
    return home


def command(home: Home, provider: Provider, n: int, *more: object) -> tuple[object, ...]:
    """Complete `n` prompts into the folder `made` beside the home."""
    prompts = home.path.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"Why {i}?"}) + "\n" for i in range(n)))
    options = ("--input", prompts, "--out", home.path.parent / "made", "--workers", WORKERS)
    backend = ("--backend", "openai_compatible", "--base-url", provider.base_url)
    return ("generate", *options, *backend, "--max-tokens", N_TOKENS, *more)


def completions(home: Home) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        (home.path.parent / "made" / "completions.json").read_text()
    )
    return rows


def assert_complete(home: Home, n: int) -> None:
    rows = completions(home)
    assert sorted(row["prompt"] for row in rows) == sorted(f"Why {i}?" for i in range(n))
    assert all(row["text"] == f"Answer to: {row['prompt']}" for row in rows)
    assert all(row["error"] is None for row in rows)


def test_the_same_command_pays_nothing_again(customer: Home) -> None:
    with Provider() as provider:
        customer.run(*command(customer, provider, 12))
        assert_complete(customer, 12)
        first = completions(customer)
        customer.run(*command(customer, provider, 12))
        assert provider.n_paid == 12
    assert completions(customer) == first


def test_killed_run_pays_twice_only_for_calls_in_flight(customer: Home) -> None:
    n = 60
    with Provider(latency_s=0.1) as provider:
        process = customer.popen(
            *command(customer, provider, n), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 180
        while provider.n_paid < 20:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        kill(process)
        time.sleep(0.5)  # the provider ends what it had begun
        n_before = provider.n_paid
        assert n_before < n, "it was killed on its way"
        customer.run(*command(customer, provider, n))
        assert_complete(customer, n)
        twice = {prompt for prompt, times in provider.paid.items() if times > 1}
        assert max(provider.paid.values()) <= 2
        assert len(twice) <= WORKERS, twice


def test_budget_stops_before_it_would_be_exceeded(customer: Home) -> None:
    with Provider() as provider:
        output = customer.run(*command(customer, provider, 12, "--budget", 5.5 * COST, *PRICES))
        assert 0 < provider.n_paid <= 5
        assert "budget" in output
        assert sum(row["error"] is None for row in completions(customer)) == provider.n_paid
        customer.run(*command(customer, provider, 12, "--budget", 20 * COST, *PRICES))
        assert_complete(customer, 12)
        assert set(provider.paid.values()) == {1}


def test_refusals_and_server_errors_lose_nothing(customer: Home) -> None:
    faults = [200, 429, 500, 200, 503, 429, 200, 502, 429, 200, 500, 429]
    with Provider(faults=faults) as provider:
        customer.run(*command(customer, provider, 20))
        assert_complete(customer, 20)
        assert set(provider.paid.values()) == {1}
        assert provider.asked.total() == 20 + sum(status != 200 for status in faults)


def test_key_is_in_no_file_and_no_output(customer: Home) -> None:
    with Provider() as provider:
        output = customer.run(*command(customer, provider, 3))
        assert provider.keys == {f"Bearer {KEY}"}
    folder: Path = customer.path.parent
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert KEY.encode() not in content + output.encode()

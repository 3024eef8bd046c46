"""Prompts that can give no pair any more cost nothing more."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.core.protocols import WorkLedger
from rlhf_pipeline.generate.completions import (
    CallParams,
    CompletionParams,
    Generation,
    OpenAICompatibleBackend,
    generate,
)
from rlhf_pipeline.store import Store
from tests.ledgers import temporary_ledger
from tests.providers.generation_runs import prompts_of
from tests.providers.stub_provider import StubProvider

REFUSED = "number 3?"


@pytest.fixture
def ledger() -> WorkLedger:
    return temporary_ledger()


def ask(
    ledger: WorkLedger, stub: StubProvider, *, k: int, least: int, n: int = 10, concurrency: int = 2
) -> Generation:
    params = CompletionParams(
        k=k, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20, least_per_prompt=least
    )
    return generate(
        prompts_of(n),
        OpenAICompatibleBackend("stub-model", stub.base_url),
        params,
        ledger=ledger,
        calls=CallParams(concurrency=concurrency, backoff_s=0.01),
    )


def count_requests(stub: StubProvider, text: str = REFUSED) -> int:
    return sum(text in str(body["messages"]) for body in stub.requests)


@pytest.mark.parametrize(
    ("k", "least", "called"), [(2, 2, 1), (2, 1, 2), (4, 2, 3), (4, 4, 1), (1, 2, 1)]
)
def test_refused_prompt_is_dropped_once_it_cannot_make_a_pair(
    ledger: WorkLedger, k: int, least: int, called: int
) -> None:
    with StubProvider(refuses=REFUSED) as stub:
        outcome = ask(ledger, stub, k=k, least=least)
        assert count_requests(stub) == called
        assert stub.n_calls == 9 * k + called
    assert outcome.kinds == {
        kind: n for kind, n in (("refusal", called), ("no_pair", k - called)) if n
    }
    of_it = outcome.frame[outcome.frame["prompt_id"] == "p3"]
    assert Counter(error.split(":")[0] for error in of_it["error"])["Not called"] == k - called
    assert outcome.frame.loc[outcome.frame["prompt_id"] != "p3", "error"].isna().all()


def test_resumed_run_remembers_earlier_failures(migrated: Path, tmp_path: Path) -> None:
    shutil.copy(migrated, tmp_path / "store.db")
    with (
        Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store,
        StubProvider(refuses=REFUSED) as stub,
    ):

        def cut(done: int, total: int, note: str = "") -> None:
            if done >= 10:  # every first sample
                raise KeyboardInterrupt

        params = CompletionParams(
            k=2, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20, least_per_prompt=2
        )
        backend = OpenAICompatibleBackend("stub-model", stub.base_url)
        options: dict[str, Any] = {
            "ledger": store.generation,
            "calls": CallParams(concurrency=1, backoff_s=0.01),
        }
        with pytest.raises(KeyboardInterrupt):
            generate(prompts_of(10), backend, params, **options, progress=cut)
        before = count_requests(stub)
        outcome = generate(prompts_of(10), backend, params, **options)
        assert before == count_requests(stub) == 1
    assert outcome.kinds == {"refusal": 1, "no_pair": 1}

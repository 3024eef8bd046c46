"""OpenAI's Batch API against the STUB: submitted once, found again by whoever goes on, noted and billed like any call."""

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select

from rlhf_pipeline.completions import AnthropicBackend, CallParams, CompletionParams, Generation, OpenAICompatibleBackend, generate
from rlhf_pipeline.completions.owners import is_dead, new_owner
from rlhf_pipeline.errors import BackendUnavailable, ConfigurationError, ProviderParked
from rlhf_pipeline.protocols import LOOKS, Budget
from rlhf_pipeline.simulation.provider import Fault, StubProvider
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from rlhf_pipeline.store.schema import generation_items
from tests.unit.completions.asking import prompts_of

ROOT = Path(__file__).parents[3]
KEY = SecretStr("sk-canary-b47c")
PARAMS = CompletionParams(k=2, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}", organization="org", project="demo") as store:
        store.migrate()
        yield store


def ask(store: Store, stub: StubProvider, *, n: int = 5, **calls: Any) -> Generation:
    how: dict[str, Any] = {"batch": True, "batch_poll_s": 0.05, "backoff_s": 0.01, "prompt_price": 1.0, "completion_price": 1.0}
    backend = OpenAICompatibleBackend("stub-model", stub.base_url, KEY)
    return generate(prompts_of(n), [backend], PARAMS, ledger=store.generation, calls=CallParams(**(how | calls)))


def test_a_batch_makes_what_single_calls_would_have_made_and_costs_what_was_counted(store: Store, tmp_path: Path) -> None:
    with StubProvider(api_key=KEY, batch_s=0.3) as stub:
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
        counted = stub.counters
        shutil.rmtree(tmp_path, ignore_errors=True)
        tmp_path.mkdir()
        with Store.open(f"sqlite:///{tmp_path / 'other.db'}", organization="org", project="demo") as other:
            other.migrate()
            singly = ask(other, stub, batch=False)
    assert made.frame.drop(columns="latency_ms").equals(singly.frame.drop(columns="latency_ms"))
    [spent] = made.spent.values()
    assert (spent.n_calls, spent.n_prompt_tokens, spent.n_tokens) == (10, counted.n_prompt_tokens, counted.n_tokens)
    assert made.cost == pytest.approx((counted.n_prompt_tokens + counted.n_tokens) / 1e6)


def test_the_same_again_submits_nothing(store: Store) -> None:
    with StubProvider() as stub:
        first = ask(store, stub)
        assert ask(store, stub).frame.equals(first.frame)
        assert stub.batches.n_submitted == 1


def test_what_failed_for_a_passing_reason_goes_into_the_next_batch_and_what_never_passes_fails_its_row(store: Store) -> None:
    faults = [None, Fault(kind="status", status=500), Fault(kind="refusal"), Fault(kind="status", status=429)]
    with StubProvider(faults=faults) as stub:
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 12)
    assert made.kinds == {"refusal": 1}
    calls = list(store.generation.calls(made.run_id))
    assert Counter(call["kind"] for call in calls) == {"succeeded": 9, "server_error": 1, "rate_limited": 1, "refusal": 1}


def test_a_batch_that_takes_longer_than_a_run_waits_parks_it_and_the_next_run_finds_it(store: Store) -> None:
    with StubProvider(batch_s=1.0) as stub:
        with pytest.raises(ProviderParked, match="10 of 10 completions wait"):
            ask(store, stub, max_pause_s=0.1)
        [run] = store.generation.parked()
        assert run.states == {"open": 10}
        time.sleep(1.1)
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert store.generation.parked() == []


WAITING = """
import sys
from rlhf_pipeline.completions import CallParams, CompletionParams, OpenAICompatibleBackend, generate
from rlhf_pipeline.store import Store
from tests.unit.completions.asking import prompts_of
from tests.unit.completions.test_batches import PARAMS
with Store.open(sys.argv[1], organization="org", project="demo") as store:
    backend = OpenAICompatibleBackend("stub-model", sys.argv[2])
    generate(prompts_of(5), [backend], PARAMS, ledger=store.generation, calls=CallParams(batch=True, batch_poll_s=60))
"""


def test_kill_9_while_a_batch_is_under_way_pays_for_nothing_twice(store: Store, tmp_path: Path) -> None:
    with StubProvider(batch_s=3.0) as stub:
        process = subprocess.Popen([sys.executable, "-c", WAITING, f"sqlite:///{tmp_path / 'store.db'}", stub.base_url], cwd=ROOT)
        deadline = time.monotonic() + 60
        while not (stub.batches.n_submitted and store.generation.runs()[0].states == {"open": 10}):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0


def test_a_refused_key_and_an_unknown_model_close_the_provider(store: Store) -> None:
    with StubProvider(api_key=SecretStr("another")) as stub:
        with pytest.raises(BackendUnavailable, match="RLHF_API_KEY") as refused:
            ask(store, stub)
        assert KEY.get_secret_value() not in str(refused.value)
    with StubProvider(model="another") as stub:
        with pytest.raises(BackendUnavailable, match="RLHF_API_MODEL"):
            ask(store, stub)
        stub.mend()
        assert ask(store, stub).frame["error"].isna().all()


def test_a_budget_holds_for_what_a_batch_may_cost_at_most(store: Store) -> None:
    with StubProvider() as stub:
        made = ask(store, stub, n=20, budget_per_run=0.0005)
        counted = stub.counters
    assert 0 < counted.n_calls < 40
    assert made.cost <= 0.0005
    assert set(made.kinds) == {"budget"}


def test_a_backend_without_a_batch_api_says_so(store: Store) -> None:
    with StubProvider() as stub, pytest.raises(ConfigurationError, match="anthropic has no Batch API"):
        generate(
            prompts_of(1), [AnthropicBackend("stub-model", stub.base_url)], PARAMS, ledger=store.generation, calls=CallParams(batch=True)
        )


def states(store: Store) -> dict[str, int]:
    [run] = store.generation.runs()
    return dict(run.states)


def all_claimed_by(store: Store, owner: str) -> None:
    [run] = store.generation.runs()
    with store.database.reading() as connection:
        lane = tuple(connection.execute(select(generation_items.c.provider, generation_items.c.model).limit(1)).one())
    claimed = store.generation.turn(run.run_id, owner, [], {lane: 1_000}, Budget(), is_dead=lambda _: False).claimed[lane]
    assert len(claimed) == 10


def test_who_is_killed_while_looking_at_a_batch_has_lost_nothing_and_it_is_not_paid_for_twice(store: Store) -> None:
    with StubProvider(batch_s=1.0) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        host, _, _, _ = new_owner().rsplit("/", 3)
        all_claimed_by(store, f"{host}/4194000/1.00/0{LOOKS}")  # a process that is gone held all of them
        time.sleep(1.1)
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert (made.n_unknown, made.n_attempts) == (0, 10)


def test_every_claim_of_a_batch_run_says_that_it_is_no_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: set[str] = set()
    whole = GenerationLedger.turn

    def noting(self: GenerationLedger, run_id: str, owner: str, *rest: Any, **more: Any) -> Any:
        owners.add(owner)
        return whole(self, run_id, owner, *rest, **more)

    monkeypatch.setattr(GenerationLedger, "turn", noting)
    with StubProvider() as stub:
        ask(store, stub)
    assert owners
    assert all(owner.endswith(LOOKS) and not is_dead(owner) for owner in owners)


def test_a_batch_that_is_refused_as_a_whole_fails_its_rows_once_and_no_later_run(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.refuses_next = "too many lines"
        with pytest.raises(BackendUnavailable, match="too many lines"):
            ask(store, stub)
        assert states(store) == {"failed": 10}
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 10)
    assert made.frame["error"].isna().all()


def test_a_refused_batch_of_one_model_is_nothing_to_another(store: Store) -> None:
    with StubProvider() as stub, StubProvider() as other:
        stub.batches.refuses_next = "too many lines"
        backends = [OpenAICompatibleBackend("stub-model", each.base_url, KEY) for each in (stub, other)]
        how = CallParams(batch=True, batch_poll_s=0.05, backoff_s=0.01)
        made = generate(prompts_of(5), backends, PARAMS, ledger=store.generation, calls=how)
        assert (stub.n_calls, other.n_calls) == (0, 10)
        again = generate(prompts_of(5), backends, PARAMS, ledger=store.generation, calls=how)
        assert (stub.n_calls, other.n_calls) == (10, 10)
    assert made.kinds == {"bad_request": 10}
    assert again.frame["error"].isna().all()


def test_a_batch_whose_making_nobody_heard_of_is_not_made_twice(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.n_unheard = 1
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()


def test_what_a_batch_made_is_read_also_where_the_budget_is_spent_by_then(store: Store) -> None:
    with StubProvider(batch_s=0.5) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1, budget_per_day=1.0)
        time.sleep(0.6)
        made = ask(store, stub, budget_per_day=0.0)
        assert stub.batches.n_submitted == 1
    assert made.frame["error"].isna().all()


def test_what_stands_in_a_batch_is_not_given_up_for_a_budget(store: Store) -> None:
    with StubProvider(batch_s=1.0) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        made = ask(store, stub, budget_per_run=0.0)
        assert stub.batches.n_submitted == 1
    assert made.frame["error"].isna().all()

"""OpenAI's Batch API against the STUB: submitted once, found again by whoever goes on, recorded and
billed like any call.
"""

import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import update

from rlhf_pipeline.completions import AnthropicBackend, Generation
from rlhf_pipeline.errors import (
    BackendUnavailable,
    CompletionError,
    ConfigurationError,
    ProviderParked,
)
from rlhf_pipeline.processes import make_owner
from rlhf_pipeline.protocols import NO_CALLS_SUFFIX
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from rlhf_pipeline.store.schema import generation_batches
from tests.providers import asking
from tests.providers.asking import calls_of, kinds, openai
from tests.providers.stub_provider import Fault, StubProvider

ROOT = Path(__file__).parents[2]


def ask(ledger: GenerationLedger, *stubs: StubProvider, n: int = 5, **calls: Any) -> Generation:
    how = {"batch": True, "batch_poll_s": 0.05} | calls
    return asking.ask(ledger, *map(openai, stubs), n=n, **how)


def states(store: Store) -> dict[str, int]:
    [run] = store.generation.list_runs()
    return dict(run.states)


def change_batches(store: Store, **values: Any) -> None:
    with store.database.write_transaction() as connection:
        connection.execute(update(generation_batches).values(values))


def test_a_batch_makes_and_bills_what_single_calls_would_have_made(
    store: Store, tmp_path: Path
) -> None:
    with StubProvider(api_key=SecretStr(asking.KEY), batch_s=0.3) as stub:
        made = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
        counted = stub.counters
        assert ask(store.generation, stub).frame.equals(made.frame)
        assert stub.batches.n_submitted == 1, "the same again submits nothing"
        with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
            other.migrate()
            singly = ask(other.generation, stub, batch=False)
    assert made.frame.drop(columns="latency_ms").equals(singly.frame.drop(columns="latency_ms"))
    assert made.cost == pytest.approx((counted.n_prompt_tokens + counted.n_tokens) / 1e6)


def test_passing_faults_are_in_the_next_batch_and_others_fail_their_row(store: Store) -> None:
    faults = [
        None,
        Fault(kind="status", status=500),
        Fault(kind="refusal"),
        Fault(kind="status", status=429),
    ]
    with StubProvider(faults=faults) as stub:
        made = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 12)
    assert made.kinds == {"refusal": 1}
    expected = {"succeeded": 9, "server_error": 1, "rate_limited": 1, "refusal": 1}
    assert kinds(store, made) == expected


def test_a_long_batch_parks_the_run_and_the_next_run_reads_it(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked, match="10 of 10 completions wait"):
            ask(store.generation, stub, max_pause_s=0.1, budget_per_day=1.0)
        [run] = store.generation.paused_runs()
        assert run.states == {"leased": 10}, "by the batch"
        stub.batches.finish()
        made = ask(store.generation, stub, budget_per_day=0.0)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all(), "whatever the budget is by then"
    assert store.generation.paused_runs() == []


WAITING = """
import sys
from rlhf_pipeline.store import Store
from tests.providers.test_batches import asking
from rlhf_pipeline.completions import OpenAICompatibleBackend
with Store.open(sys.argv[1]) as store:
    backend = OpenAICompatibleBackend("stub-model", sys.argv[2])
    asking.ask(store.generation, backend, n=5, batch=True, batch_poll_s=float(sys.argv[3]))
"""


def start_waiting(tmp_path: Path, stub: StubProvider, poll_s: str) -> subprocess.Popen[bytes]:
    """The same run in another process, until its batch is submitted."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    command = [sys.executable, "-c", WAITING, url, stub.base_url, poll_s]
    process = subprocess.Popen(command, cwd=ROOT)
    deadline = time.monotonic() + 60
    while not stub.batches.n_submitted:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_kill_9_while_a_batch_is_under_way_pays_for_nothing_twice(
    store: Store, tmp_path: Path
) -> None:
    with StubProvider(batch_s=3.0) as stub:
        process = start_waiting(tmp_path, stub, "60")
        process.send_signal(signal.SIGKILL)
        process.wait()
        made = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0


def test_two_processes_of_one_run_submit_each_request_once(store: Store, tmp_path: Path) -> None:
    """Requests fail and come back open while both look."""
    chances = [(0.5, Fault(kind="status", status=500))]
    with StubProvider(batch_s=0.1, chances=chances, seed=3) as stub:
        process = start_waiting(tmp_path, stub, "0.01")
        made = ask(store.generation, stub, batch_poll_s=0.01)
        assert process.wait(60) == 0
        assert stub.counters.n_billed == 10
        assert len(calls_of(store, made)) == stub.n_calls
    assert made.frame["error"].isna().all()


def test_a_refused_key_and_an_unknown_model_close_the_provider(store: Store) -> None:
    with StubProvider(api_key=SecretStr("another")) as stub:
        with pytest.raises(BackendUnavailable, match="RLHF_API_KEY"):
            ask(store.generation, stub)
        stub.repair()
        stub.model = "another"
        with pytest.raises(BackendUnavailable, match="RLHF_API_MODEL"):
            ask(store.generation, stub)
        stub.repair()
        assert ask(store.generation, stub).frame["error"].isna().all()


def test_a_budget_holds_for_what_a_batch_may_cost_at_most(store: Store) -> None:
    with StubProvider() as stub:
        made = ask(store.generation, stub, n=20, budget_per_run=0.0005)
        assert 0 < stub.n_calls < 40
    assert made.cost <= 0.0005
    assert set(made.kinds) == {"budget"}


def test_a_backend_without_a_batch_api_is_refused(store: Store) -> None:
    backend = AnthropicBackend("m", "http://here/v1")
    with pytest.raises(ConfigurationError, match="anthropic has no Batch API"):
        asking.ask(store.generation, backend, n=1, batch=True)


@pytest.mark.parametrize("host", ["this host", "another host"])
def test_a_batch_whose_follower_died_is_taken_over(store: Store, host: str) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store.generation, stub, max_pause_s=0.1)
        here, _, _, _ = make_owner().rsplit("/", 3)
        where, ends_s = (here, 600) if host == "this host" else ("elsewhere", 1)
        change_batches(
            store,
            owner=f"{where}/4194000/1.00/0{NO_CALLS_SUFFIX}",
            leased_until=utc_now() + timedelta(seconds=ends_s),
        )
        stub.batches.finish()
        made = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert (made.n_unknown, made.n_attempts) == (0, 10)


def test_a_batch_that_is_refused_as_a_whole_fails_its_rows_alone(store: Store) -> None:
    with StubProvider() as stub, StubProvider() as other:
        stub.batches.refuses_next = "too many lines"
        made = ask(store.generation, stub, other)
        assert (stub.n_calls, other.n_calls) == (0, 10)
        assert made.kinds == {"bad_request": 10}
        assert made.frame["error"].dropna().str.contains("too many lines").all()
        made = ask(store.generation, stub, other)
        assert (stub.n_calls, other.n_calls) == (10, 10)
    assert made.frame["error"].isna().all()


def test_a_batch_whose_submission_was_not_answered_is_not_made_twice(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.n_unheard = 1
        made = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()


class KilledError(Exception):
    """Stands for a kill -9: the ledger is left as it was."""


def killed_at(store: Store, stub: StubProvider, place: str) -> None:
    """Ask in a process that is killed at this place of submitting a batch."""

    class Dying(GenerationLedger):
        is_dead = False

        def release(self, *asked: Any, **more: Any) -> None:
            if not self.is_dead:
                super().release(*asked, **more)

    def die(self: Dying, *asked: Any) -> None:
        self.is_dead = True
        raise KilledError

    setattr(Dying, place, die)
    with pytest.raises(KilledError):
        ask(Dying(store.database, store.completions_cache), stub)
    here, _, _, _ = make_owner().rsplit("/", 3)
    change_batches(store, owner=f"{here}/4194000/1.00/0{NO_CALLS_SUFFIX}")


@pytest.mark.parametrize(("place", "n_submitted"), [("begin_batch", 0), ("name_batch", 1)])
def test_a_kill_before_or_while_a_batch_is_submitted_pays_nothing_twice(
    store: Store, place: str, n_submitted: int
) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, place)
        assert (stub.batches.n_submitted, states(store)) == (n_submitted, {"leased": 10})
        made = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert (made.n_unknown, made.n_attempts) == (0, 10)


def test_a_batch_that_is_not_listed_is_lost_and_asked_for_again_only_on_demand(
    store: Store,
) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, "name_batch")
        stub.batches.is_listed = False
        for _ in range(2):
            with pytest.raises(CompletionError, match=r"may be billed.*--retry-lost"):
                ask(store.generation, stub)
        [run] = store.generation.list_runs()
        assert (run.spent.n_unknown, run.spent.cost_unknown > 0) == (10, True)
        made = ask(store.generation, stub, retry_lost=True)
        assert stub.batches.n_submitted == 2
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 10


def test_a_provider_that_asks_for_a_long_wait_parks_the_run(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.wait_s = 3_600
        with pytest.raises(ProviderParked, match="asks for a wait of 3,600 s"):
            ask(store.generation, stub, max_pause_s=1.0)
        [run] = store.generation.paused_runs()
        assert run.states == {"open": 10}
        assert run.parked_until is not None
        assert (run.parked_until - utc_now()).total_seconds() == pytest.approx(3_600, abs=60)
        stub.batches.wait_s = None
        made = ask(store.generation, stub)
    assert made.frame["error"].isna().all()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_results_that_are_missing_are_booked_at_their_worst_and_made_again(
    store: Store, is_deleted: bool
) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store.generation, stub, max_pause_s=0.1)
        output = stub.batches.complete("batch_1")["output_file_id"]
        whole = stub.batches.files.pop(output)
        if not is_deleted:
            stub.batches.files[output] = b"\n".join([b"<html>", *whole.split(b"\n")[1:]])
        stub.batches.batch_s = 0
        made = ask(store.generation, stub)
    n_missing = 10 if is_deleted else 1
    assert made.frame["error"].isna().all()
    assert kinds(store, made) == Counter({"garbled": n_missing, "succeeded": 10})
    assert made.n_unknown == n_missing


def test_batches_that_all_expire_are_not_submitted_for_ever(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.ends_as = "expired"
        with pytest.raises(CompletionError, match="batch_2 is expired, and did not process it"):
            ask(store.generation, stub, max_attempts=2)
        assert stub.batches.n_submitted == 2
    [run] = store.generation.list_runs()
    assert (run.states, run.spent.cost, run.spent.n_unknown) == ({"failed": 10}, 0, 0)

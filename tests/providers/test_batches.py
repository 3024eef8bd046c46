"""OpenAI's Batch API against the STUB: submitted once, found again by whoever goes on, recorded and
billed like any call.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import update

from rlhf_pipeline.core.errors import (
    BackendUnavailable,
    CompletionError,
    ConfigurationError,
    ProviderParked,
)
from rlhf_pipeline.core.processes import make_owner
from rlhf_pipeline.core.protocols import BATCH_SUFFIX, LedgerTransaction
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions import AnthropicBackend, Generation
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from rlhf_pipeline.store.schema import generation_batches, generation_items
from tests.providers import generation_runs
from tests.providers.generation_runs import calls_of, kinds, openai
from tests.providers.stub_provider import Fault, StubProvider

ROOT = Path(__file__).parents[2]


def ask(ledger: GenerationLedger, stub: StubProvider, n: int = 5, **calls: Any) -> Generation:
    how = {"batch": True, "batch_poll_s": 0.05} | calls
    return generation_runs.ask(ledger, openai(stub), n=n, **how)


def states(store: Store) -> dict[str, int]:
    [run] = store.generation.list_runs()
    return dict(run.states)


def change_batches(store: Store, **values: Any) -> None:
    with store.database.write_transaction() as connection:
        connection.execute(update(generation_batches).values(values))


def test_batch_equals_single_calls_in_texts_and_cost(store: Store, tmp_path: Path) -> None:
    with StubProvider(api_key=SecretStr(generation_runs.KEY), batch_s=0.3) as stub:
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
        counted = stub.counters
        assert ask(store.generation, stub).frame.equals(outcome.frame)
        assert stub.batches.n_submitted == 1, "the same again submits nothing"
        with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
            other.migrate()
            singly = ask(other.generation, stub, batch=False)
    assert outcome.frame.drop(columns="latency_ms").equals(singly.frame.drop(columns="latency_ms"))
    assert outcome.cost == pytest.approx((counted.n_prompt_tokens + counted.n_tokens) / 1e6)


def test_many_requests_are_several_batches(store: Store) -> None:
    with StubProvider() as stub:
        outcome = ask(store.generation, stub, n=260)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 520)
    assert outcome.frame["error"].isna().all()


def test_transient_faults_are_retried_and_others_fail_their_row(store: Store) -> None:
    faults = [
        None,
        Fault(kind="status", status=500),
        Fault(kind="refusal"),
        Fault(kind="status", status=429),
    ]
    with StubProvider(faults=faults) as stub:
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 12)
    assert outcome.kinds == {"refusal": 1}
    expected = {"succeeded": 9, "server_error": 1, "rate_limited": 1, "refusal": 1}
    assert kinds(store, outcome) == expected


def test_long_batch_pauses_the_run_and_the_next_reads_it(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked, match="10 of 10 completions wait"):
            ask(store.generation, stub, max_pause_s=0.1, budget_per_day=1.0)
        [run] = store.generation.paused_runs()
        assert run.states == {"leased": 10}, "by the batch"
        stub.batches.finish()
        outcome = ask(store.generation, stub, budget_per_day=0.0)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert outcome.frame["error"].isna().all(), "whatever the budget is by then"
    assert store.generation.paused_runs() == []


STARTED_WITHIN_S = 600.0  # on a busy machine; it is seconds otherwise
WAITING = """
import sys
from rlhf_pipeline.store import Store
from rlhf_pipeline.generate.completions import OpenAICompatibleBackend
from tests.providers import generation_runs
with Store.open(sys.argv[1]) as store:
    backend = OpenAICompatibleBackend("stub-model", sys.argv[2])
    generation_runs.ask(store.generation, backend, n=5, batch=True, batch_poll_s=float(sys.argv[3]),
               max_attempts=100)
"""


def start_waiting(tmp_path: Path, stub: StubProvider, poll_s: str) -> subprocess.Popen[bytes]:
    """The same run in another process, until its batch is submitted."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    command = [sys.executable, "-c", WAITING, url, stub.base_url, poll_s]
    process = subprocess.Popen(command, cwd=ROOT)
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not stub.batches.n_submitted:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_killed_run_with_an_open_batch_pays_nothing_twice(store: Store, tmp_path: Path) -> None:
    with StubProvider(batch_s=3.0) as stub:
        process = start_waiting(tmp_path, stub, "60")
        process.send_signal(signal.SIGKILL)
        process.wait()
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert outcome.frame["error"].isna().all()
    assert outcome.n_unknown == 0


def test_concurrent_processes_submit_each_request_once(store: Store, tmp_path: Path) -> None:
    """Requests fail and come back open while both look."""
    chances = [(0.5, Fault(kind="status", status=500))]
    with StubProvider(batch_s=0.1, chances=chances, seed=3) as stub:
        process = start_waiting(tmp_path, stub, "0.01")
        outcome = ask(store.generation, stub, batch_poll_s=0.01, max_attempts=100)
        assert process.wait(STARTED_WITHIN_S) == 0
        assert stub.counters.n_billed == 10
        assert len(calls_of(store, outcome)) == stub.n_calls
    assert outcome.frame["error"].isna().all()


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


def test_budget_covers_the_maximum_cost_of_a_batch(store: Store) -> None:
    with StubProvider() as stub:
        outcome = ask(store.generation, stub, n=20, budget_per_run=0.0005)
        assert 0 < stub.n_calls < 40
    assert outcome.cost <= 0.0005
    assert set(outcome.kinds) == {"budget"}


def test_a_backend_without_a_batch_api_is_refused(store: Store) -> None:
    backend = AnthropicBackend("m", "http://here/v1")
    with pytest.raises(ConfigurationError, match="anthropic has no Batch API"):
        generation_runs.ask(store.generation, backend, n=1, batch=True)


def test_refused_batch_is_submitted_again(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.refuses_next = f"too many lines of {generation_runs.KEY}"
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 10)
    assert outcome.frame["error"].isna().all()
    assert kinds(store, outcome) == {"server_error": 10, "succeeded": 10}
    [why] = {call["error"] for call in calls_of(store, outcome) if call["error"]}
    assert "too many lines of ***" in why


@pytest.mark.parametrize(
    ("status", "n_submitted"), [(None, 1), (500, 1), (504, 1), (409, 1), (503, 2), (429, 2)]
)
def test_batch_of_unknown_outcome_is_looked_up_first(
    store: Store, status: int | None, n_submitted: int
) -> None:
    with StubProvider() as stub:
        stub.batches.n_unheard, stub.batches.unheard_as = 1, status
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (n_submitted, 10)
    assert outcome.frame["error"].isna().all()


class KilledError(Exception):
    """Stands for a kill -9: the ledger is left as it was."""


def killed_at(store: Store, stub: StubProvider, place: str) -> None:
    """Ask in a process that is killed at this place of submitting a batch."""

    class Dying(GenerationLedger):
        is_dead = False

        def release(self, *arguments: Any, **more: Any) -> None:
            if not self.is_dead:
                super().release(*arguments, **more)

    def die(self: Dying, *arguments: Any) -> None:
        self.is_dead = True
        raise KilledError

    setattr(Dying, place, die)
    with pytest.raises(KilledError):
        ask(Dying(store.database, store.completions_cache), stub)
    here, _, _, _ = make_owner().rsplit("/", 3)
    is_claimed = generation_items.c.leased_until.is_not(None)
    dead = f"{here}/4194000/1.00/0{BATCH_SUFFIX}"
    with store.database.write_transaction() as connection:
        connection.execute(update(generation_items).where(is_claimed).values(owner=dead))


@pytest.mark.parametrize(("place", "n_submitted"), [("begin_batch", 0), ("name_batch", 1)])
def test_killed_submission_pays_nothing_twice(store: Store, place: str, n_submitted: int) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, place)
        assert (stub.batches.n_submitted, states(store)) == (n_submitted, {"leased": 10})
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert (outcome.n_unknown, outcome.n_attempts) == (0, 10)


def test_unlisted_batch_is_lost_and_retried_on_demand(
    store: Store,
) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, "name_batch")
        stub.batches.is_listed = False
        with pytest.raises(ProviderParked):
            ask(store.generation, stub, max_pause_s=0.1)
        change_batches(store, submitted_at=utc_now() - timedelta(minutes=10))
        for _ in range(2):
            with pytest.raises(CompletionError, match=r"may be billed.*--retry-lost"):
                ask(store.generation, stub)
        [run] = store.generation.list_runs()
        assert (run.spent.n_unknown, run.spent.cost_unknown > 0) == (10, True)
        stub.batches.is_listed = True
        outcome = ask(store.generation, stub, retry_lost=True)
        assert stub.batches.n_submitted == 2
    assert outcome.frame["error"].isna().all()
    assert outcome.n_unknown == 10


def test_long_retry_after_pauses_a_batch_run(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.wait_s = 3_600
        with pytest.raises(ProviderParked, match="asked again after 3,600 s"):
            ask(store.generation, stub, max_pause_s=1.0)
        [run] = store.generation.paused_runs()
        assert run.states == {"open": 10}
        assert run.paused_until is not None
        assert (run.paused_until - utc_now()).total_seconds() == pytest.approx(3_600, abs=60)
        stub.batches.wait_s = None
        outcome = ask(store.generation, stub)
    assert outcome.frame["error"].isna().all()


def park(store: Store, stub: StubProvider, **calls: Any) -> None:
    with pytest.raises(ProviderParked):
        ask(store.generation, stub, max_pause_s=0.1, **calls)


def test_failed_polls_pause_the_run_and_keep_its_batch(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        park(store, stub)
        stub.batches.wait_s = 0.0
        park(store, stub, max_attempts=2)
        stub.batches.wait_s = None
        stub.batches.finish()
        outcome = ask(store.generation, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert outcome.frame["error"].isna().all()


def test_vanished_batch_names_the_key_and_is_lost_after_days(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        park(store, stub)
        stub.batches.is_listed = False
        with pytest.raises(BackendUnavailable, match=r"RLHF_API_KEY.*RLHF_BASE_URL"):
            ask(store.generation, stub)
        assert states(store) == {"leased": 10}
        change_batches(store, submitted_at=utc_now() - timedelta(days=2))
        with pytest.raises(CompletionError, match="--retry-lost"):
            ask(store.generation, stub)
    assert states(store) == {"failed": 10}


def test_claims_of_another_process_are_not_submitted(store: Store) -> None:
    class Slow(GenerationLedger):
        n_begun = 0

        def begin_batch(self, run_id: str, owner: str) -> int:
            self.n_begun += 1
            if self.n_begun == 1:
                self.release(run_id, owner)  # as when the leases have ended
            return super().begin_batch(run_id, owner)

    with StubProvider() as stub:
        ledger = Slow(store.database, store.completions_cache)
        outcome = ask(ledger, stub)
        assert (ledger.n_begun, stub.batches.n_submitted) == (2, 1)
    assert outcome.frame["error"].isna().all()


def test_an_interrupt_while_results_are_recorded_records_them_once(
    store: Store,
) -> None:
    main = threading.main_thread().ident or 0

    class Interrupted(GenerationLedger):
        def settle_and_claim(self, *arguments: Any, **more: Any) -> LedgerTransaction:
            turn = super().settle_and_claim(*arguments, **more)
            if arguments[2]:
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.05)
            return turn

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with StubProvider() as stub, pytest.raises(KeyboardInterrupt):
            ask(Interrupted(store.database, store.completions_cache), stub)
    finally:
        signal.signal(signal.SIGINT, before)
    [run] = store.generation.list_runs()
    assert (run.states, run.spent.n_calls) == ({"succeeded": 10}, 10)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_missing_results_are_charged_at_worst_and_retried(store: Store, is_deleted: bool) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store.generation, stub, max_pause_s=0.1)
        batch = stub.batches.complete("batch_1")
        whole = stub.batches.files.pop(batch["output_file_id"])
        if not is_deleted:
            first, _, third, *more = whole.split(b"\n")
            bodiless = json.loads(first)
            bodiless["response"]["body"] = None
            split = third.replace(b"I would say", "I would\u2028say".encode())
            lines = [json.dumps(bodiless).encode(), b"<html>", split, *more]
            stub.batches.files[batch["output_file_id"]] = b"\n".join(lines)
        stub.batches.batch_s = 0
        outcome = ask(store.generation, stub)
    n_missing = 10 if is_deleted else 2
    assert outcome.frame["error"].isna().all()
    assert kinds(store, outcome) == Counter({"garbled": n_missing, "succeeded": 10})
    assert outcome.n_unknown == n_missing


def test_batches_that_all_expire_are_not_submitted_for_ever(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.ends_as = "expired"
        with pytest.raises(CompletionError, match="batch_2 is expired, and has no readable line"):
            ask(store.generation, stub, max_attempts=2)
        assert stub.batches.n_submitted == 2
    [run] = store.generation.list_runs()
    assert (run.states, run.spent.cost, run.spent.n_unknown) == ({"failed": 10}, 0, 0)

"""Interrupts, a store that refuses, and runs that are started again: each call is recorded, no row
is made up, and the run ends and says why.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.errors import BackendUnavailable, CompletionError, StoreError
from rlhf_pipeline.core.protocols import Budget
from rlhf_pipeline.generate.completions import (
    CompletionRequest,
    CompletionResult,
    HostedBackend,
    Reply,
    TemplateBackend,
)
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from tests.ledgers import temporary_ledger
from tests.providers.generation_runs import (
    PARAMS,
    YES,
    Scripted,
    ask,
    calls_of,
    kinds,
    openai,
    status,
)
from tests.providers.stub_provider import Fault, StubProvider

ONE = PARAMS.model_copy(update={"k": 1})


class Ended(BaseException):
    """As a signal handler raises it to end a run, in whatever is being done."""


@contextlib.contextmanager
def interrupted(is_reached: Callable[[], bool], n: int = 1) -> Iterator[None]:
    """Raises Ended in this thread once a point is reached, `n` times a tenth of a second apart, in
    whatever it does, as Dagster ends runs.
    """
    reasons = iter(("first", "second", "third"))
    has_ended = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        raise Ended(next(reasons))

    def send() -> None:
        while not is_reached():
            if has_ended.wait(0.01):
                return
        for _ in range(n):
            signal.pthread_kill(main, signal.SIGALRM)
            time.sleep(0.1)

    main, before = threading.get_ident(), signal.signal(signal.SIGALRM, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        has_ended.set()
        sender.join()
        signal.signal(signal.SIGALRM, before)


def slow_to_end(n: int) -> Any:
    """Answers that come a while after they were cancelled."""

    async def answer() -> Reply:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(0.3)
        return YES

    return answer()


def test_twice_interrupted_run_records_every_call(store: Store) -> None:
    backend = Scripted(slow_to_end)
    began = time.monotonic()
    with pytest.raises(Ended, match="first"), interrupted(lambda: len(backend.asked) == 4, n=2):
        ask(store.generation, backend, n=12, params=ONE, concurrency=4)
    assert time.monotonic() - began < 30, "the answers would take a minute"
    [run] = store.generation.list_runs()
    assert len(list(store.generation.read_calls(run.run_id))) == len(backend.asked) == 4
    assert run.states == {"succeeded": 4, "open": 8}


def test_interrupted_local_batch_keeps_its_completions(store: Store) -> None:
    is_stuck = threading.Event()

    class Slow(TemplateBackend):
        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            for n, result in enumerate(super().complete(requests)):
                if n == 5:
                    is_stuck.set()
                    for _ in range(600):  # a signal just before one long sleep would not end it
                        time.sleep(0.1)
                yield result

    with pytest.raises(Ended, match="first"), interrupted(is_stuck.is_set):
        ask(store.generation, Slow(), n=12, params=ONE)
    [run] = store.generation.list_runs()
    assert run.states == {"succeeded": 5, "open": 7}


class RefusedAtTheEnd(GenerationLedger):
    """A store that refuses what a run that is being ended still has to tell."""

    is_full = True

    def settle_and_claim(
        self, run_id: str, owner: str, attempts: Any, n_by_lane: Any, budget: Budget, **more: Any
    ) -> Any:
        if self.is_full and attempts and not n_by_lane:
            raise StoreError("database is locked")
        return super().settle_and_claim(run_id, owner, attempts, n_by_lane, budget, **more)


def test_calls_refused_by_the_store_are_recorded_as_lost(store: Store) -> None:
    ledger = RefusedAtTheEnd(
        store.database, store.completions_cache, lease_s=1.0, write_again_s=(0.01,)
    )
    backend = Scripted(slow_to_end)
    with pytest.raises(Ended, match="first"), interrupted(lambda: len(backend.asked) == 4):
        ask(ledger, backend, n=12, params=ONE, concurrency=4)
    [run] = ledger.list_runs()
    assert run.states == {"leased": 4, "open": 8}
    ledger.is_full = False
    outcome = ask(ledger, Scripted(lambda n: YES), n=12, params=ONE, concurrency=4)
    assert outcome.frame["text"].tolist() == ["yes"] * 12
    assert kinds(store, outcome) == {"lost": 4, "succeeded": 12}
    assert outcome.n_unknown == 4, "each of them counts at its worst"


class Forgetful(GenerationLedger):
    """Says `rounds` times that nothing is left to do."""

    rounds = 1

    def settle_and_claim(
        self, run_id: str, owner: str, attempts: Any, n_by_lane: Any, budget: Budget, **more: Any
    ) -> Any:
        nothing = self.rounds > 0 and not attempts
        n_by_lane = dict.fromkeys(n_by_lane, 0) if nothing else n_by_lane
        transaction = super().settle_and_claim(run_id, owner, attempts, n_by_lane, budget, **more)
        if not nothing:
            return transaction
        self.rounds -= 1
        return replace(transaction, n_open=0, n_leased=0)


def test_open_items_are_retried_and_never_rows() -> None:
    ledger = temporary_ledger(Forgetful)
    assert ask(ledger, Scripted(lambda n: YES), n=2).frame["text"].tolist() == ["yes"] * 4
    ledger.rounds = 99
    with pytest.raises(CompletionError, match=r"2 of 6 completions are neither made nor failed"):
        ask(ledger, Scripted(lambda n: YES), n=3)


def test_slot_is_free_only_after_its_call_is_recorded() -> None:
    """So that a kill pays no more calls twice than may be under way."""

    class Slow(GenerationLedger):
        def settle_and_claim(
            self, run_id: str, owner: str, attempts: Any, *more: Any, **k: Any
        ) -> Any:
            if attempts:
                time.sleep(1)
            return super().settle_and_claim(run_id, owner, attempts, *more, **k)

    backend = Scripted(lambda n: YES)
    ask(temporary_ledger(Slow), backend, n=2, params=ONE, concurrency=1)
    first, second = backend.asked
    assert second - first > 0.9


def test_backend_bug_ends_the_run_and_records_its_call(store: Store) -> None:
    def buggy(n: int) -> Reply:
        return YES if n < 3 else 1 // 0  # type: ignore[return-value]

    backend = Scripted(buggy)
    with pytest.raises(ZeroDivisionError):
        ask(store.generation, backend, n=40, concurrency=1)
    assert len(backend.asked) < 20, "nothing more is spent"
    [run] = store.generation.list_runs()
    calls = Counter(call["kind"] for call in store.generation.read_calls(run.run_id))
    assert calls.total() == len(backend.asked)
    assert calls["cancelled"] >= 1


# --- runs that are started again
# --------------------------------------------------------------------------------------------------


def test_budget_set_on_resume_holds(store: Store) -> None:
    with StubProvider(api_key=SecretStr("another")) as stub:
        with pytest.raises(BackendUnavailable):
            ask(store.generation, openai(stub), n=40, prompt_price=None, completion_price=None)
        stub.repair()
        outcome = ask(store.generation, openai(stub), n=40, concurrency=16, budget_per_run=0.001)
        counted = stub.counters
    assert 0 < (counted.n_prompt_tokens + counted.n_tokens) / 1e6 <= 0.001
    assert outcome.cost <= 0.001
    assert set(outcome.kinds) == {"budget"}


def test_restarted_run_has_all_its_attempts(store: Store) -> None:
    busy = status(429, 1)
    with StubProvider(faults=[None], chances=[(1.0, busy)]) as stub:
        first = ask(store.generation, openai(stub), n=1, concurrency=1, max_refusals=6)
        assert (stub.n_calls, first.kinds) == (1 + 6, {"rate_limited": 1})
        stub.chances = ()
        stub.add_faults([busy] * 3)
        outcome = ask(store.generation, openai(stub), n=1, concurrency=1, max_refusals=6)
        assert stub.n_calls == 7 + 4, "three more refusals are borne"
    assert outcome.frame["error"].isna().all()
    assert sorted(call["attempt_no"] for call in calls_of(store, outcome)) == [1, *range(1, 11)]


class Ahead:
    """A clock that is ahead of another."""

    def __init__(self, real: Any) -> None:
        self.real, self.ahead = real, timedelta()

    def now(self) -> datetime:
        now: datetime = self.real.now()
        return now + self.ahead


def test_long_local_batch_keeps_its_claims(store: Store) -> None:
    """By a clock that goes on by half a lease whenever they were renewed: the machine may be as
    slow as it likes.
    """
    renewed = threading.Semaphore(0)
    clock = store.database.clock = Ahead(store.database.clock)

    class Renewed(GenerationLedger):
        def settle_and_claim(self, *arguments: Any, **more: Any) -> Any:
            transaction = super().settle_and_claim(*arguments, **more)
            if threading.current_thread().name == "leases":
                renewed.release()
            return transaction

    ledger = Renewed(store.database, store.completions_cache, lease_s=600, renew_s=0.02)

    class Slow(TemplateBackend):
        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            for _ in range(6):
                clock.ahead += timedelta(seconds=300)
                for _ in range(2):  # the first may have begun before the clock went on
                    assert renewed.acquire(timeout=60), "nobody renews"
            yield from super().complete(requests)

    outcome = ask(ledger, Slow(), n=2)
    assert (outcome.n_attempts, len(calls_of(store, outcome))) == (4, 4), "none was lost meanwhile"


def test_error_within_a_stream_counts_as_perhaps_billed(
    store: Store, make: Callable[..., HostedBackend]
) -> None:
    late = Fault(kind="error_event", code="overloaded_error")
    with StubProvider(faults=[None, late]) as stub:
        outcome = ask(store.generation, make(stub), n=2, concurrency=1, stream=True)
    assert outcome.frame["error"].isna().all()
    [call] = [call for call in calls_of(store, outcome) if call["kind"] == "overloaded"]
    assert call["partial"]
    assert call["billing"] == "unknown", "part of it was made"

"""Whatever goes wrong after a reply came, on this side of the network: the call is booked, no row
is made up, and the run ends and says why.
"""

import asyncio
import base64
import contextlib
import json
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from rlhf_pipeline.completions import (
    AnthropicBackend,
    CallParams,
    CompletionParams,
    CompletionRequest,
    CompletionResult,
    Generation,
    HostedBackend,
    OpenAICompatibleBackend,
    Reply,
    TemplateBackend,
    generate,
)
from rlhf_pipeline.completions.drive import CompletionWork
from rlhf_pipeline.completions.faults import (
    LONGEST_WAIT_S,
    fault,
    seconds_until_quota_resets,
    waiting_time,
)
from rlhf_pipeline.completions.lanes import complete_hosted
from rlhf_pipeline.completions.request_plan import build_item
from rlhf_pipeline.completions.results import iterate_results
from rlhf_pipeline.errors import BackendUnavailable, CompletionError, ProviderParked, StoreError
from rlhf_pipeline.protocols import Budget, WorkLedger
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from tests.ledgers import states_of, temporary_ledger
from tests.providers.asking import prompts_of
from tests.providers.stub_provider import Fault, StubProvider

KEY = "sk-canary-5d21"
PARAMS = CompletionParams(k=1, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20)
FAST: dict[str, Any] = {
    "backoff_s": 0.01,
    "max_backoff_s": 0.05,
    "prompt_price": 1.0,
    "completion_price": 1.0,
}
BACKENDS: dict[str, Callable[..., HostedBackend]] = {
    "openai": OpenAICompatibleBackend,
    "anthropic": AnthropicBackend,
}
YES = Reply(
    outcome="succeeded",
    kind="succeeded",
    billing="metered",
    text="yes",
    finish_reason="stop",
    n_prompt_tokens=2,
    n_tokens=1,
)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Scripted:
    """Says what `answer` gives for the number of the call, from 1 on; notes when and what it was
    asked.
    """

    name = "scripted"
    model_version = "m"
    has_answered = True

    def __init__(
        self, answer: Callable[[int], Any], model: str = "m", provider: str = "nowhere"
    ) -> None:
        self._answer = answer
        self.model = self.model_version = model
        self.provider = provider
        self.asked: list[float] = []

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        raise NotImplementedError

    async def call(self, request: CompletionRequest, on_text: Any = None) -> Reply:
        self.asked.append(time.monotonic())
        said: Any = self._answer(len(self.asked))
        reply: Reply = await said if asyncio.iscoroutine(said) else said
        return reply

    async def close(self) -> None: ...


@pytest.fixture(params=sorted(BACKENDS))
def make(request: pytest.FixtureRequest) -> Callable[..., HostedBackend]:
    kind = BACKENDS[request.param]
    return lambda stub, **more: kind("stub-model", stub.base_url, SecretStr(KEY), **more)


def ask(
    ledger: WorkLedger,
    *backends: Any,
    n: int = 3,
    on_text: Any = None,
    params: CompletionParams = PARAMS,
    **calls: Any,
) -> Generation:
    return generate(
        prompts_of(n),
        backends,
        params,
        ledger=ledger,
        calls=CallParams(**(FAST | calls)),
        on_text=on_text,
    )


def in_time(seconds: float, do: Callable[[], Any]) -> Any:
    """What it comes to, or the error it ends in. A run that does not end fails its test, not the
    whole suite.
    """
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(do())
        except BaseException as error:  # noqa: BLE001  for the test to judge
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert ended, f"it has not ended after {seconds:g} s"
    return ended[0]


# --- every call is booked, and no row is made up
# -----------------------------------------------------------------------------------------


def test_a_reply_that_cannot_be_booked_as_it_is_is_booked_all_the_same_and_ends_the_run(
    store: Store,
) -> None:
    broken = Reply(
        outcome="succeeded",
        kind="succeeded",
        billing="metered",
        text="paid for",
        finish_reason="stop",
        n_tokens=-1,
    )
    backend = Scripted(lambda n: broken if n == 1 else YES)
    with pytest.raises(ValueError, match="n_tokens") as raised:
        ask(store.generation, backend, concurrency=1)
    assert any("nowhere" in note and "recorded" in note for note in raised.value.__notes__)
    [run] = store.generation.list_runs()
    assert run.ended_at is None, "something is open yet"
    calls = list(store.generation.read_calls(run.run_id))
    assert len(calls) == len(backend.asked), "each of them is booked"
    assert Counter(call["billing"] for call in calls)["unknown"] == 1
    assert run.spent.cost_unknown > 0, "at worst"
    made = ask(store.generation, backend, concurrency=1)
    assert made.frame["text"].tolist() == ["yes"] * 3
    assert len(list(store.generation.read_calls(made.run_id))) == len(backend.asked)


class Ended(BaseException):
    """As a signal handler raises it to end a run, in whatever is being done."""


def of_step(n: int) -> Reply:
    if n == 3:
        raise Ended("terminated")
    return YES


def test_a_backend_that_ends_the_run_ends_it_and_each_call_is_booked(store: Store) -> None:
    backend = Scripted(of_step)
    ended = in_time(20, lambda: ask(store.generation, backend, n=40, concurrency=1))
    assert isinstance(ended, Ended)
    assert len(backend.asked) < 20, "nothing more is spent"
    [run] = store.generation.list_runs()
    calls = list(store.generation.read_calls(run.run_id))
    assert len(calls) == len(backend.asked)
    assert Counter(call["kind"] for call in calls)["cancelled"] == 1


def test_what_ends_a_run_while_a_call_is_being_begun_ends_it_too() -> None:
    class Interrupted(list[CompletionRequest]):
        def __getitem__(self, n: Any) -> Any:
            raise Ended("terminated")

    backend = Scripted(lambda n: YES)
    request = CompletionRequest(
        prompt_id="p", prompt="Now?", temperature=1, top_p=1, sample_index=0, seed=1, max_tokens=9
    )
    params = CallParams()
    ledger = temporary_ledger()
    lane = ("nowhere", "m")
    items = [build_item(backend, request, params, item_no=0, position=0, key="k")]
    ledger.start("run", items, asset="a", record="{}")
    work = CompletionWork("run", ledger, items, Interrupted([request]), params, {0})
    assert isinstance(in_time(20, lambda: complete_hosted(work, {lane: backend})), Ended)


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


def test_a_run_that_is_interrupted_twice_still_books_every_call(store: Store) -> None:
    backend = Scripted(slow_to_end)
    began = time.monotonic()
    with pytest.raises(Ended, match="first"), interrupted(lambda: len(backend.asked) == 4, n=2):
        ask(store.generation, backend, n=12, concurrency=4)
    assert time.monotonic() - began < 30, "the answers would take a minute"
    [run] = store.generation.list_runs()
    calls = list(store.generation.read_calls(run.run_id))
    assert len(calls) == len(backend.asked) == 4
    assert run.states == {"succeeded": 4, "open": 8}


def test_an_error_at_the_end_of_an_interrupted_run_does_not_hide_the_interrupt(
    store: Store,
) -> None:
    ledger = RefusedAtTheEnd(store.database, store.completions_cache, write_again_s=(0.01,))
    ledger.n = 99
    backend = Scripted(slow_to_end)
    with pytest.raises(Ended, match="first"), interrupted(lambda: len(backend.asked) == 4):
        ask(ledger, backend, n=12, concurrency=4)


def test_an_interrupt_of_a_batch_on_this_machine_keeps_what_was_made(store: Store) -> None:
    is_stuck = threading.Event()

    class Slow(TemplateBackend):
        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            for n, result in enumerate(super().complete(requests)):
                if n == 5:
                    is_stuck.set()
                    for _ in range(600):  # a signal just before one long sleep would not end it
                        time.sleep(0.1)
                yield result

    began = time.monotonic()
    with pytest.raises(Ended, match="first"), interrupted(is_stuck.is_set):
        ask(store.generation, Slow(), n=12)
    assert time.monotonic() - began < 30
    [run] = store.generation.list_runs()
    assert run.states == {"succeeded": 5, "open": 7}


class RefusedAtTheEnd(GenerationLedger):
    """A store that refuses `n` times what a run that is being ended still has to tell."""

    n = 0

    def settle_and_claim(
        self, run_id: str, owner: str, attempts: Any, wanted: Any, budget: Budget, **more: Any
    ) -> Any:
        if self.n and attempts and not wanted:
            self.n -= 1
            raise StoreError("database is locked")
        return super().settle_and_claim(run_id, owner, attempts, wanted, budget, **more)


def ended_half_way(n: int) -> Any:
    """The second call ends the run; the answers to the first and to those after it come while it is
    being ended.
    """

    async def answer() -> Reply:
        if n == 2:
            await asyncio.sleep(0.1)
            raise RuntimeError("a bug")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(5)
        return YES

    return answer()


def test_what_came_while_a_run_was_ended_is_kept_though_the_store_refuses_it_at_first(
    store: Store,
) -> None:
    ledger = RefusedAtTheEnd(store.database, store.completions_cache, write_again_s=(0.01, 0.01))
    ledger.n = 2
    backend = Scripted(ended_half_way)
    with pytest.raises(RuntimeError, match="a bug"):
        ask(ledger, backend, n=12, concurrency=4)
    [run] = ledger.list_runs()
    calls = list(ledger.read_calls(run.run_id))
    assert Counter(call["kind"] for call in calls) == {
        "succeeded": len(backend.asked) - 1,
        "cancelled": 1,
    }
    assert run.states == {"succeeded": len(backend.asked) - 1, "open": 13 - len(backend.asked)}


def test_calls_that_the_store_would_not_hear_of_at_the_end_are_not_open_but_booked_as_lost(
    store: Store,
) -> None:
    ledger = RefusedAtTheEnd(
        store.database, store.completions_cache, lease_s=1.0, write_again_s=(0.01,)
    )
    ledger.n = 99
    backend = Scripted(ended_half_way)
    with pytest.raises(RuntimeError, match="a bug"):
        ask(ledger, backend, n=12, concurrency=4)
    n_untold = len(backend.asked) - 1
    [run] = ledger.list_runs()
    assert run.states == {"leased": n_untold, "open": 12 - n_untold}, (
        "what waited was given back, what was called for was not"
    )
    again = Scripted(lambda n: YES)
    made = ask(ledger, again, n=12, concurrency=4)
    assert made.frame["text"].tolist() == ["yes"] * 12
    calls = list(ledger.read_calls(run.run_id))
    assert Counter(call["kind"] for call in calls) == {
        "lost": n_untold,
        "cancelled": 1,
        "succeeded": 12,
    }
    assert len(calls) == len(backend.asked) + len(again.asked)
    assert made.n_unknown == len(backend.asked), "each of them counts at its worst"


def test_what_this_machine_made_is_kept_though_the_store_refuses_it_at_first(store: Store) -> None:

    class RefusedForAMoment(GenerationLedger):
        n = 2

        def settle_and_claim(
            self, run_id: str, owner: str, attempts: Any, wanted: Any, budget: Budget, **more: Any
        ) -> Any:
            if self.n and attempts:
                self.n -= 1
                raise StoreError("database is locked")
            return super().settle_and_claim(run_id, owner, attempts, wanted, budget, **more)

    made = ask(
        RefusedForAMoment(store.database, store.completions_cache, write_again_s=(0.01, 0.01)),
        TemplateBackend(),
    )
    assert made.frame["error"].isna().all()
    assert made.n_attempts == 3


class Forgetful(GenerationLedger):
    """Gives nothing to do in a run's first turns, and says that nothing is left to do: `rounds`
    times.
    """

    def __init__(self, *where: Any, rounds: int) -> None:
        super().__init__(*where)
        self.rounds = rounds
        self.has_ended = False

    def settle_and_claim(
        self, run_id: str, owner: str, attempts: Any, wanted: Any, budget: Budget, **more: Any
    ) -> Any:
        from dataclasses import replace

        if self.rounds and not attempts:
            self.rounds -= 1
            return replace(
                super().settle_and_claim(
                    run_id, owner, attempts, dict.fromkeys(wanted, 0), budget, **more
                ),
                n_open=0,
                n_leased=0,
            )
        return super().settle_and_claim(run_id, owner, attempts, wanted, budget, **more)

    def end(self, run_id: str) -> None:
        self.has_ended = True
        super().end(run_id)


@pytest.mark.parametrize(
    "backend", [Scripted(lambda n: YES), TemplateBackend()], ids=["hosted", "local"]
)
def test_what_is_open_after_a_round_is_asked_for_in_the_next(backend: Any) -> None:
    made = ask(temporary_ledger(Forgetful, rounds=1), backend)
    assert made.frame["error"].isna().all()
    assert (made.frame["text"] != "").all()


def test_what_stays_open_is_no_row_but_an_error_that_says_how_many() -> None:
    ledger = temporary_ledger(Forgetful, rounds=99)
    with pytest.raises(
        CompletionError, match=r"3 of 3 completions are neither made nor failed.*Run again"
    ):
        ask(ledger, Scripted(lambda n: YES))
    assert not ledger.has_ended


def test_what_stays_open_without_a_run_is_an_error_too() -> None:
    requests = [
        CompletionRequest(
            prompt_id="p",
            prompt="Now?",
            temperature=1,
            top_p=1,
            sample_index=0,
            seed=1,
            max_tokens=9,
        )
    ]
    ledger = temporary_ledger(Forgetful, rounds=99)
    with pytest.raises(CompletionError, match="1 of 1 completions are neither made nor failed"):
        list(iterate_results(Scripted(lambda n: YES), requests, CallParams(**FAST), ledger))
    assert not ledger.has_ended


def test_a_failure_of_one_whose_claim_another_process_took_is_not_the_items_end(
    store: Store,
) -> None:
    ledger = GenerationLedger(store.database, store.completions_cache, lease_s=0.4)
    other = "another host/7/1.00/0"

    def answer(n: int) -> Any:
        async def slowly() -> Reply:
            # Blocks this run for longer than its claim lasts; another takes the item and is still
            # at it when this one fails for good.
            time.sleep(0.5)
            [run] = ledger.list_runs()
            taken = await asyncio.to_thread(
                ledger.settle_and_claim,
                run.run_id,
                other,
                [],
                {("nowhere", "m"): 5},
                Budget(),
                is_dead=lambda _: False,
            )
            assert len(taken.claimed["nowhere", "m"]) == 1
            return fault("refusal", "no")

        return slowly() if n == 1 else YES

    made = in_time(30, lambda: ask(ledger, Scripted(answer), n=1, concurrency=1))
    assert isinstance(made, Generation), made
    assert made.frame["text"].tolist() == ["yes"], "the other never told what came of it"
    [run] = ledger.list_runs()
    assert run.states == {"succeeded": 1}
    assert [call["kind"] for call in ledger.read_calls(run.run_id)] == [
        "lost",
        "refusal",
        "lost",
        "succeeded",
    ]


# --- waiting times
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": f"{NOW.timestamp() + 30:.0f}"}, 30),
        ({"retry-after": f"{(NOW.timestamp() + 30) * 1000:.0f}"}, 30),
        ({"retry-after-ms": f"{(NOW.timestamp() + 30) * 1000:.0f}"}, 30),
        ({"retry-after": f"{NOW.timestamp() - 30:.0f}"}, 0),
        (
            {
                "retry-after": f"{NOW.timestamp() + 90:.0f}",
                "date": format_datetime(NOW + timedelta(seconds=60), usegmt=True),
            },
            30,
        ),
        ({"retry-after": "1e300"}, LONGEST_WAIT_S),
        ({"retry-after": "99999999"}, LONGEST_WAIT_S),
        ({"retry-after-ms": "1e20"}, LONGEST_WAIT_S),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST_WAIT_S),
    ],
)
def test_a_waiting_time_that_is_a_moment_is_read_as_one_and_none_is_longer_than_a_year(
    headers: dict[str, str], seconds: float
) -> None:
    assert waiting_time(headers, NOW) == pytest.approx(seconds, abs=1.01)
    reset = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": headers.get("retry-after", "1e300"),
    }
    if "date" not in headers and "GMT" not in str(headers) and "retry-after" in headers:
        assert seconds_until_quota_resets(reset, NOW) == pytest.approx(seconds, abs=1.01)


@pytest.mark.parametrize(
    "wait_ms", [int(1.73e15), int(1e12), 10**30], ids=["moment", "long", "absurd"]
)
def test_an_absurd_waiting_time_loses_no_call(
    store: Store, make: Callable[..., HostedBackend], wait_ms: int
) -> None:
    refusal = Fault(kind="status", status=429, retry_after_as="seconds", retry_after_ms=wait_ms)
    with StubProvider(faults=[refusal]) as stub:
        with contextlib.suppress(ProviderParked):  # where it is a wait, no moment that is past
            ask(store.generation, make(stub), concurrency=1)
        stub.repair()
        made = ask(store.generation, make(stub), concurrency=1)
        n_calls = stub.n_calls
    assert made.frame["error"].isna().all()
    assert len(list(store.generation.read_calls(made.run_id))) == n_calls == 4


def test_a_wait_that_no_calendar_holds_parks_the_run(store: Store) -> None:
    backend = Scripted(lambda n: fault("rate_limited", "HTTP 429", wait_s=1e300))
    with pytest.raises(ProviderParked):
        ask(store.generation, backend, concurrency=1)
    [run] = store.generation.paused_runs()
    assert run.parked_until is not None
    assert [call["kind"] for call in store.generation.read_calls(run.run_id)] == ["long_wait"]


# --- a provider that is closed while a call waits
# ----------------------------------------------------------------------------------------


class SlowToRelease(GenerationLedger):
    def release(self, *asked: Any, **more: Any) -> None:
        time.sleep(0.3)
        super().release(*asked, **more)


def test_a_call_that_wakes_while_its_closed_provider_is_cleared_is_given_back() -> None:
    peace = asyncio.Event()

    def answer(n: int) -> Any:
        async def closing() -> Reply:
            await asyncio.sleep(0.9)
            return fault("no_credit", "HTTP 402")

        async def success() -> Reply:
            await asyncio.sleep(0.5)
            peace.set()
            return YES

        # at the same moment: what the success let go waits until after the closing
        async def refusal() -> Reply:
            await peace.wait()
            await asyncio.sleep(0)
            return fault("rate_limited", "HTTP 429", wait_s=0.5)

        async def later() -> Reply:
            await asyncio.sleep(0.02 if n < 12 else 5)
            return YES

        return {1: closing, 2: success, 3: refusal}.get(n, later)()

    ledger = temporary_ledger(SlowToRelease)
    ended = in_time(12, lambda: ask(ledger, Scripted(answer), n=40, concurrency=6))
    assert isinstance(ended, BackendUnavailable)
    assert {settled.state for settled in states_of(ledger)} <= {"succeeded", "failed"}


def test_a_call_that_waits_hears_at_once_that_its_provider_is_closed() -> None:
    def answer(n: int) -> Any:
        async def closing() -> Reply:
            await asyncio.sleep(0.3)
            return fault("wrong_key", "HTTP 401")

        return closing() if n == 1 else fault("rate_limited", "HTTP 429", wait_s=60.0)

    began = time.monotonic()
    ended = in_time(20, lambda: ask(temporary_ledger(), Scripted(answer), n=20, concurrency=8))
    assert isinstance(ended, BackendUnavailable)
    assert time.monotonic() - began < 20


# --- whoever watches
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(32, "Broken pipe"),
        UnicodeEncodeError("latin-1", "→", 0, 1, "no"),
        KeyError("bug"),
    ],
)
def test_an_error_of_who_watches_is_no_fault_of_the_provider(
    store: Store, make: Callable[..., HostedBackend], error: Exception
) -> None:
    heard: list[str | None] = []

    def listen(_: int, piece: str | None) -> None:
        heard.append(piece)
        raise error

    with StubProvider() as stub:
        made = ask(store.generation, make(stub), stream=True, on_text=listen)
        assert stub.n_calls == 3
        assert made.cost == pytest.approx(
            (stub.counters.n_prompt_tokens + stub.counters.n_tokens) / 1e6
        )
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0
    assert len(heard) == 1, "it is told no more"
    assert made.callback_error is error


def test_an_error_of_who_watches_this_machine_spoils_nothing_either(store: Store) -> None:
    def listen(_: int, piece: str | None) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    made = ask(store.generation, TemplateBackend(), on_text=listen)
    assert made.frame["error"].isna().all()
    assert isinstance(made.callback_error, BrokenPipeError)


# --- one provider, several models
# --------------------------------------------------------------------------------------------------


def test_a_waiting_time_holds_for_every_model_of_a_provider_and_for_no_other() -> None:
    refused_at = 0.0

    def wait_once(n: int) -> Any:
        async def slowly() -> Reply:
            nonlocal refused_at
            await asyncio.sleep(0.05)
            if n > 1:
                return YES
            refused_at = time.monotonic()
            return fault("rate_limited", "HTTP 429", wait_s=1.0)

        return slowly()

    def steadily(n: int) -> Any:
        async def slowly() -> Reply:
            await asyncio.sleep(0.02)
            return YES

        return slowly()

    asking = Scripted(wait_once, "a")
    same = Scripted(steadily, "b")
    other = Scripted(steadily, "a", "elsewhere")
    made = ask(temporary_ledger(), asking, same, other, n=40, concurrency=2)
    assert made.frame["error"].isna().all()
    for backend in (asking, same):
        early = [at for at in backend.asked if refused_at + 0.02 < at < refused_at + 1.0]
        assert early == [], f"{backend.model} was asked in between"
    assert [at for at in other.asked if refused_at < at < refused_at + 0.9], (
        "who said nothing is asked meanwhile"
    )


def test_a_provider_that_wants_to_be_left_alone_for_too_long_is_left_alone_with_all_its_models(
    store: Store,
) -> None:
    def steadily(n: int) -> Any:
        async def slowly() -> Reply:
            await asyncio.sleep(0.1)
            return YES

        return slowly()

    asking = Scripted(lambda n: fault("rate_limited", "HTTP 429", wait_s=7200.0), "a")
    same, other = Scripted(steadily, "b"), Scripted(steadily, "a", "elsewhere")
    with pytest.raises(ProviderParked, match=r"7,200 s") as parked:
        ask(store.generation, asking, same, other, n=20, concurrency=1)
    assert str(parked.value).count("7,200 s") == 1, "said once"
    assert len(asking.asked) == 1
    assert len(same.asked) <= 1, "what was under way by then"
    assert len(other.asked) == 20
    [run] = store.generation.paused_runs()
    assert run.states["open"] == 40 - len(same.asked)


# --- errors within a stream
# --------------------------------------------------------------------------------------------------


def calls_of(store: Store) -> list[dict[str, Any]]:
    [run] = store.generation.list_runs()
    return list(store.generation.read_calls(run.run_id))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_error_after_a_status_of_success_is_what_it_says_it_is(
    store: Store, make: Callable[..., HostedBackend], stream: bool
) -> None:
    exhausted = Fault(
        kind="error_event", code="insufficient_quota", message="You exceeded your current quota"
    )
    with StubProvider(faults=[exhausted] * 9) as stub:
        with pytest.raises(BackendUnavailable, match=r"exceeded your current quota.*top it up"):
            ask(store.generation, make(stub), concurrency=1, stream=stream)
        assert stub.n_calls == 1, "it would refuse everything"
    [call] = calls_of(store)
    assert (call["kind"], bool(call["partial"])) == ("no_credit", stream), (
        "what came before it is kept"
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_request_error", "bad_request"),
        ("rate_limit_error", "rate_limited"),
        ("overloaded_error", "overloaded"),
        ("server_error", "server_error"),
    ],
)
def test_an_error_within_a_stream_is_told_apart_as_one_before_it(
    store: Store, make: Callable[..., HostedBackend], code: str, kind: str
) -> None:
    with StubProvider(faults=[None, Fault(kind="error_event", code=code)]) as stub:
        made = ask(store.generation, make(stub), concurrency=1, stream=True)
        assert stub.n_calls == (3 if kind == "bad_request" else 4)
    assert made.kinds == ({kind: 1} if kind == "bad_request" else {})
    [call] = [call for call in calls_of(store) if call["kind"] == kind]
    assert call["partial"]
    assert call["billing"] == "unknown", "part of it was made"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"error": {"message": "busy", "code": 429}}, "rate_limited"),
        ({"error": {"message": "no", "code": 400, "type": "BadRequestError"}}, "bad_request"),
        ({"object": "error", "message": "no such model", "code": 404}, "unknown_model"),
        ({"error": "something broke"}, "server_error"),
    ],
    ids=["a number", "vLLM", "older vLLM", "a text"],
)
def test_an_error_in_the_words_of_other_servers_is_read_too(
    said: dict[str, Any], kind: str
) -> None:
    reply = OpenAICompatibleBackend("m", "http://here/v1")._parse_message(said, 200, {})
    assert reply.kind == kind
    assert next(
        text for text in ("busy", "no such model", "something broke", "no") if text in str(said)
    ) in str(reply.error)


def streamed(kind: str, *said: dict[str, Any]) -> Reply:
    """What a backend makes of a stream of these events."""
    content = "".join(f"data: {json.dumps(event)}\n\n" for event in said).encode()

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    async def call() -> Reply:
        from openai import AsyncOpenAI

        wire = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        backend = BACKENDS[kind]("m", "http://here/v1", SecretStr(KEY))
        client = (
            AsyncOpenAI(base_url="http://here/v1", api_key=KEY, http_client=wire, max_retries=0)
            if kind == "openai"
            else wire
        )
        backend._open = (asyncio.get_running_loop(), client)  # type: ignore[attr-defined]
        request = CompletionRequest(
            prompt_id="p",
            prompt="Now?",
            temperature=1,
            top_p=1,
            sample_index=0,
            seed=1,
            max_tokens=9,
        )
        return await backend.call(request, lambda piece: None)

    return asyncio.run(call())


THOUGHT = {"choices": [{"delta": {"reasoning_content": "let me think"}}]}
COUNTED = {"usage": {"prompt_tokens": 9, "completion_tokens": 900}}
DIED = {"error": {"message": "upstream died", "code": 502}}
BEGUN = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
THINKING = {
    "type": "content_block_delta",
    "delta": {"type": "thinking_delta", "thinking": "let me think"},
}
ENDING = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 900}}
SPENT = {"usage": {"input_tokens": 9, "output_tokens": 900}}
FULL = {"type": "error", "error": {"type": "api_error", "message": "upstream died"}}


@pytest.mark.parametrize(
    ("kind", "said", "billed"),
    [
        ("openai", [DIED], ("none", 0, 0)),
        ("openai", [DIED | COUNTED], ("metered", 9, 900)),
        ("openai", [THOUGHT, DIED], ("unknown", 0, 0)),
        ("openai", [THOUGHT, THOUGHT | COUNTED, DIED], ("metered", 9, 900)),
        ("openai", [THOUGHT | COUNTED, THOUGHT, DIED], ("unknown", 0, 0)),
        ("openai", [THOUGHT, DIED | COUNTED], ("metered", 9, 900)),
        ("anthropic", [FULL], ("none", 0, 0)),
        ("anthropic", [FULL | SPENT], ("metered", 9, 900)),
        (
            "anthropic",
            [BEGUN, THINKING, FULL | {"usage": {"output_tokens": 900}}],
            ("metered", 9, 900),
        ),
        ("anthropic", [BEGUN, FULL], ("unknown", 0, 0)),
        ("anthropic", [BEGUN, THINKING, FULL], ("unknown", 0, 0)),
        ("anthropic", [BEGUN, THINKING, ENDING, FULL], ("metered", 9, 900)),
    ],
)
def test_a_stream_that_ends_in_an_error_before_its_text_is_free_only_if_nothing_came_before(
    kind: str, said: list[dict[str, Any]], billed: tuple[str, int, int]
) -> None:
    reply = streamed(kind, *said)
    assert (reply.kind, "upstream died" in str(reply.error)) == ("server_error", True)
    assert (reply.billing, reply.n_prompt_tokens, reply.n_tokens) == billed


@pytest.mark.parametrize(
    ("kind", "said"), [("openai", DIED | COUNTED), ("anthropic", FULL | SPENT)]
)
def test_an_error_behind_a_status_of_success_is_billed_as_it_counts(
    kind: str, said: dict[str, Any]
) -> None:
    backend = BACKENDS[kind]("m", "http://here/v1")
    parse = backend._parse_message
    reply = parse(said, 200, {})
    assert (reply.kind, reply.billing, reply.n_prompt_tokens, reply.n_tokens) == (
        "server_error",
        "metered",
        9,
        900,
    )


# --- secrets of an address
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_no_log_of_any_level_holds_a_secret_of_the_address(
    store: Store, make: Callable[..., HostedBackend], caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with StubProvider(faults=[None, Fault(kind="drop"), Fault(kind="status", status=500)]) as stub:
        for name in ("", "httpx2", "httpcore2", "httpcore", "openai", "anthropic"):
            caplog.set_level(logging.DEBUG, logger=name)
        backend = make(stub)
        backend.base_url = (
            stub.base_url.replace("http://", "http://me:canary-pa%40ss@") + "?key=canary-query"
        )  # type: ignore[attr-defined]
        made = ask(store.generation, backend, concurrency=1, stream=stream)
        assert stub.n_calls == 5
    assert made.frame["error"].isna().all()
    assert "HTTP Request: POST http://127.0.0.1" in caplog.text, "requests are logged"
    said = (
        caplog.text
        + "".join(map(repr, caplog.records))
        + repr([record.args for record in caplog.records])
    )
    assert [secret for secret in ("canary", "pa@ss", KEY) if secret in said] == []
    basic = "Basic " + base64.b64encode(b"me:canary-pa@ss").decode()
    assert {(path.partition("?")[2], authorization) for path, authorization in stub.shown} == {
        ("key=canary-query", basic)
    }, "both are sent"

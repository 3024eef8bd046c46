"""Runs whose provider, price, disk or neighbour lets them down half-way: they end, and nothing that
was paid for is thrown away.
"""

import asyncio
import base64
import json
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

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
    generate,
)
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.redaction import redact, secrets_of
from rlhf_pipeline.completions.responses import LONGEST_STREAM, UnreadableResponse, parse_events
from rlhf_pipeline.errors import BackendUnavailable, CompletionError, ConfigurationError, StoreError
from rlhf_pipeline.protocols import Attempt, Budget, Lane, LedgerTransaction, WorkLedger
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from tests.ledgers import states_of, temporary_ledger
from tests.providers.asking import prompts_of
from tests.providers.stub_provider import Fault, StubProvider

KEY = "sk-canary-72e0"
PARAMS = CompletionParams(k=2, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20)
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
ELSEWHERE = "another host/7/1.00/0"


@pytest.fixture(params=sorted(BACKENDS))
def make(request: pytest.FixtureRequest) -> Callable[..., HostedBackend]:
    kind = BACKENDS[request.param]
    return lambda stub, **more: kind("stub-model", stub.base_url, SecretStr(KEY), **more)


def openai(stub: StubProvider, key: str = KEY) -> OpenAICompatibleBackend:
    return OpenAICompatibleBackend("stub-model", stub.base_url, SecretStr(key))


def ask(
    ledger: WorkLedger,
    *backends: Any,
    n: int = 10,
    params: CompletionParams = PARAMS,
    text: str = "Prompt number {}?",
    **calls: Any,
) -> Generation:
    return generate(
        prompts_of(n, text), backends, params, ledger=ledger, calls=CallParams(**(FAST | calls))
    )


class Ahead:
    """A clock that is ahead of another."""

    def __init__(self, real: Any) -> None:
        self.real, self.ahead = real, timedelta()

    def now(self) -> datetime:
        now: datetime = self.real.now()
        return now + self.ahead


def in_time(seconds: float, do: Callable[[], Any]) -> Any:
    """What it comes to. A run that does not end fails its test, not the whole suite."""
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


# --- a closed provider whose items somebody else holds
# -----------------------------------------------------------------------------------


def test_a_run_whose_provider_is_closed_ends_though_another_host_died_holding_items(
    store: Store,
) -> None:
    ledger = GenerationLedger(store.database, store.completions_cache, lease_s=2.0)
    with StubProvider(api_key=SecretStr("another")) as stub:
        backend = openai(stub)
        with pytest.raises(BackendUnavailable):
            ask(ledger, backend)
        [run] = ledger.list_runs()
        # begun again elsewhere, and killed with some in its hands
        ledger.start(run.run_id, [], asset="completions", record="{}")
        lane = (backend.provider, backend.model)
        assert (
            len(
                ledger.settle_and_claim(
                    run.run_id, ELSEWHERE, [], {lane: 5}, Budget(), is_dead=lambda _: False
                ).claimed[lane]
            )
            == 5
        )
        refused = in_time(20, lambda: ask(ledger, backend))
    assert isinstance(refused, BackendUnavailable)
    [run] = ledger.list_runs()
    assert run.states == {"failed": 20}


def test_a_call_that_waits_for_a_closed_provider_is_not_made() -> None:
    class Closing:
        """Asks for a little peace at first; then its key is refused while the others wait."""

        name = "closing"
        model = "m"
        model_version = "m"
        provider = "nowhere"
        has_answered = True

        def __init__(self) -> None:
            self.n_calls = 0

        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            raise NotImplementedError

        async def call(self, request: CompletionRequest, on_text: Any = None) -> Reply:
            self.n_calls += 1
            if self.n_calls == 1:
                return fault("rate_limited", "HTTP 429", wait_s=0.5)
            return fault("wrong_key", "HTTP 401")

        async def close(self) -> None: ...

    backend = Closing()
    with pytest.raises(BackendUnavailable):
        ask(temporary_ledger(), backend, n=20, concurrency=8)
    assert backend.n_calls == 2, "the other seven were let go, waited, and found it closed"


# --- prices and budgets
# --------------------------------------------------------------------------------------------------


def test_a_budget_that_comes_after_the_first_start_holds(store: Store) -> None:
    with StubProvider(api_key=SecretStr("another")) as stub:
        with pytest.raises(BackendUnavailable):
            ask(store.generation, openai(stub), n=40, prompt_price=None, completion_price=None)
        stub.repair()
        made = ask(store.generation, openai(stub), n=40, concurrency=16, budget_per_run=0.001)
        counted = stub.counters
    assert 0 < (counted.n_prompt_tokens + counted.n_tokens) / 1e6 <= 0.001
    assert made.cost <= 0.001
    assert set(made.kinds) == {"budget"}


def test_one_prompt_that_a_budget_does_not_bear_costs_its_own_rows_alone(store: Store) -> None:
    prompts = prompts_of(10)
    prompts.loc[2, "text"] = "Sum this up: " + "word " * 2_000
    with StubProvider() as stub:
        calls = CallParams(**(FAST | {"budget_per_run": 0.008, "concurrency": 2}))
        made = generate(prompts, [openai(stub)], PARAMS, ledger=store.generation, calls=calls)
        assert stub.n_calls == 18
    assert made.kinds == {"budget": 2}
    failed = made.frame[made.frame["error"].notna()]
    assert set(failed["prompt_id"]) == {"p2"}
    assert failed["error"].str.contains("the budget of this run").all()


def test_an_answer_too_long_to_take_counts_at_its_worst(
    store: Store, make: Callable[..., HostedBackend]
) -> None:
    for stream in (False, True):
        with StubProvider(faults=[None, Fault(kind="huge")]) as stub:
            made = ask(store.generation, make(stub), n=3, concurrency=1, stream=stream)
            bill = (stub.counters.n_prompt_tokens + stub.counters.n_tokens) / 1e6
        assert made.kinds == {"oversized": 1}
        assert made.n_unknown == 1
        assert made.cost < bill <= made.cost + made.cost_unknown


@pytest.mark.parametrize("kind", ["refusal", "empty", "content_filter"])
def test_what_a_provider_did_not_count_is_not_booked_as_free(kind: str) -> None:
    refusal = {"content": None, "refusal": "No."} if kind == "refusal" else {"content": ""}
    found = {
        "choices": [
            {"message": refusal, "finish_reason": kind if kind == "content_filter" else "stop"}
        ]
    }
    backend = OpenAICompatibleBackend("m", "http://here/v1")
    assert [
        backend._parse_message(found | more, 200, {}).billing
        for more in ({}, {"usage": {"completion_tokens": 3}})
    ] == ["unknown", "metered"]
    message = {"content": [], "stop_reason": "refusal" if kind == "refusal" else "end_turn"}
    claude = AnthropicBackend("m", "http://here/v1")
    assert [
        claude._parse_message(message | more, 200, {}).billing
        for more in ({}, {"usage": {"output_tokens": 3}})
    ] == ["unknown", "metered"]


def test_a_run_that_is_started_again_has_all_its_tries_again(store: Store) -> None:
    with StubProvider(
        faults=[None], chances=[(1.0, Fault(kind="status", status=429, retry_after_ms=1))]
    ) as stub:
        first = ask(store.generation, openai(stub), n=1, concurrency=1, max_refusals=6)
        assert (stub.n_calls, first.kinds) == (1 + 6, {"rate_limited": 1})
        stub.reset()
        stub.chances = ()
        stub.add_faults([Fault(kind="status", status=429, retry_after_ms=1)] * 3)
        made = ask(store.generation, openai(stub), n=1, concurrency=1, max_refusals=6)
        assert stub.n_calls == 4, "three more refusals are borne"
    assert made.frame["error"].isna().all()
    numbers = [call["attempt_no"] for call in store.generation.read_calls(made.run_id)]
    assert sorted(numbers) == [1, *range(1, 11)]


# --- a disk that recovers
# --------------------------------------------------------------------------------------------------


class FullForLong(GenerationLedger):
    """A disk that is full until a turn has been refused as often as a run tries, and has room again
    after that.
    """

    def __init__(self, *where: Any, refusals: int, **more: Any) -> None:
        super().__init__(*where, **more)
        self.refusals = refusals

    def settle_and_claim(
        self,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        wanted: Mapping[Lane, int],
        budget: Budget,
        *,
        is_dead: Callable[[str], bool],
    ) -> LedgerTransaction:
        if attempts and self.refusals:
            self.refusals -= 1
            raise StoreError("database or disk is full")
        return super().settle_and_claim(run_id, owner, attempts, wanted, budget, is_dead=is_dead)


def test_what_came_while_the_disk_was_full_is_kept_where_it_has_room_in_the_end() -> None:
    ledger = temporary_ledger(FullForLong, refusals=2, write_again_s=(0.01,))
    with StubProvider() as stub:
        with pytest.raises(StoreError, match="disk is full"):
            ask(ledger, openai(stub), n=40, concurrency=4)
        n_kept = Counter(settled.state for settled in states_of(ledger))["succeeded"]
        (run,) = ledger.list_runs()
        kinds = Counter(call["kind"] for call in ledger.read_calls(run.run_id))
        # calls under way at the end are stopped, and recorded as such
        assert kinds.total() == stub.n_calls
        assert kinds["succeeded"] == n_kept > 0, "paid for, and kept"


def test_a_disk_that_is_full_while_a_provider_is_given_up_costs_a_moment() -> None:
    class Refusing(GenerationLedger):
        n_refused = 0

        def fail_open(self, *asked: Any, **more: Any) -> Any:
            self.n_refused += 1
            if self.n_refused <= 2:
                raise StoreError("database or disk is full")
            return super().fail_open(*asked, **more)

    ledger = temporary_ledger(Refusing, write_again_s=(0.01, 0.01))
    with StubProvider(api_key=SecretStr("another")) as stub, pytest.raises(BackendUnavailable):
        ask(ledger, openai(stub))
    assert Counter(settled.state for settled in states_of(ledger)) == {"failed": 20}


# --- prompts that come to nothing
# --------------------------------------------------------------------------------------------------


def test_what_a_budget_gave_up_makes_the_rest_of_its_prompt_useless(store: Store) -> None:
    prompts = prompts_of(6)
    prompts.loc[2, "text"] = "Sum this up: " + "word " * 2_000
    params = PARAMS.model_copy(update={"least_per_prompt": 2})
    with StubProvider() as cheap, StubProvider() as other:
        calls = CallParams(**(FAST | {"budget_per_provider": 0.005, "concurrency": 2}))
        made = generate(
            prompts,
            [openai(cheap), openai(other)],
            params.model_copy(update={"k": 1}),
            ledger=store.generation,
            calls=calls,
        )
        assert (cheap.n_calls, other.n_calls) == (5, 5)
    failed = made.frame[made.frame["error"].notna()]
    assert list(failed["prompt_id"]) == ["p2", "p2"]
    # The row of the lane that is settled second fails for its own budget or for the first.
    assert made.kinds in ({"budget": 2}, {"budget": 1, "no_pair": 1})


def test_a_prompt_that_is_useless_is_not_tried_again_for_a_passing_reason() -> None:
    class Odd:
        """Refuses first samples for good, after a second sample is under way; that one's server is
        busy for a moment.
        """

        name = "odd"
        model = "m"
        model_version = "m"
        provider = "nowhere"
        has_answered = True

        def __init__(self) -> None:
            self.asked: list[int] = []

        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            raise NotImplementedError

        async def call(self, request: CompletionRequest, on_text: Any = None) -> Reply:
            self.asked.append(request.sample_index)
            await asyncio.sleep(0.05)
            if request.sample_index:
                await asyncio.sleep(0.2)
                return fault("server_error", "HTTP 500")
            return fault("refusal", "no")

        async def close(self) -> None: ...

    backend = Odd()
    ledger = temporary_ledger()
    with pytest.raises(CompletionError, match="All 2"):
        ask(
            ledger,
            backend,
            n=1,
            params=PARAMS.model_copy(update={"least_per_prompt": 2}),
            concurrency=4,
            max_attempts=3,
        )
    assert sorted(backend.asked) == [0, 1]
    assert {settled.kind for settled in states_of(ledger)} == {"refusal", "no_pair"}


# --- streams
# --------------------------------------------------------------------------------------------------


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def read(*pieces: bytes) -> list[dict[str, Any]]:
    async def all_of() -> list[dict[str, Any]]:
        return [event async for event in parse_events(chunks(*pieces))]

    return asyncio.run(all_of())


def test_events_are_whole_however_their_bytes_are_cut() -> None:
    whole = (
        'data: {"text": "Grüße"}\r\n\r\n: still here\n\nevent: x\ndata: {"n": 1}\n\ndata: [DONE]\n'
    ).encode()
    for cut in range(1, len(whole)):
        assert read(whole[:cut], whole[cut:]) == [{"text": "Grüße"}, {"n": 1}]
    assert read(b'data: {"n": 2}') == [{"n": 2}], "also without a line's end"


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([b'data: {"text": "caf\xe9"}\n'], "invalid_utf8"),
        ([b"data: {\n"], "garbled"),
        ([b"data: [1]\n"], "garbled"),
        ([b"data: " + b"[" * 100_000 + b"\n"], "garbled"),
        ([b":" + b"x" * 1_000_000 + b"\n"] * (LONGEST_STREAM // 1_000_000), "oversized"),
    ],
    ids=["no UTF-8", "half", "a list", "deep", "endless"],
)
def test_a_stream_of_something_else_says_what_it_is(pieces: list[bytes], kind: str) -> None:
    with pytest.raises(UnreadableResponse) as spoiled:
        read(*pieces)
    assert spoiled.value.kind == kind


# --- keys and addresses
# --------------------------------------------------------------------------------------------------


def everything_said(store: Store, tmp_path: Path, *more: str) -> list[str]:
    store.close()
    return [
        *more,
        *(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()),
    ]


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {}", "{}\t\n\n"])
def test_white_space_around_a_key_is_no_part_of_it(
    store: Store, tmp_path: Path, around: str
) -> None:
    unclean = SecretStr(around.format(KEY))
    for kind in BACKENDS.values():
        with StubProvider(api_key=SecretStr(KEY)) as stub:
            made = ask(store.generation, kind("stub-model", stub.base_url, unclean), n=2)
        assert made.frame["error"].isna().all()
    assert [said[:80] for said in everything_said(store, tmp_path) if KEY in said] == []


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY} x", f"{KEY}é", f"{KEY}\x00"])
def test_a_key_that_no_request_can_carry_is_refused_without_a_word_of_it(key: str) -> None:
    for kind in BACKENDS.values():
        with pytest.raises(ConfigurationError, match="RLHF_API_KEY") as refused:
            kind("m", "http://here/v1", SecretStr(key))
        assert KEY not in "".join(traceback.format_exception(refused.value))


def test_a_key_is_found_in_what_is_said_whatever_stands_around_it() -> None:
    for secret in (f"{KEY}\n", f" {KEY}\r\n"):
        assert KEY not in redact(f"Illegal header value b'Bearer {secret!r}'", secret)
    assert "two words" not in redact("got two\nwords", "two\nwords")


@pytest.mark.parametrize(
    "faults",
    [[], [Fault(kind="html")] * 9, [None, *[Fault(kind="odd_shape")] * 20]],
    ids=["whole", "html", "odd"],
)
def test_secrets_in_an_address_stand_nowhere(
    store: Store, tmp_path: Path, faults: list[Fault | None], make: Callable[..., HostedBackend]
) -> None:
    with StubProvider(faults=faults, api_key=None if faults else SecretStr("another")) as stub:
        backend = make(stub)
        backend.base_url = stub.base_url.replace(  # type: ignore[attr-defined]
            "http://", "http://me:canary-5b5b@"
        )
        try:
            made = ask(store.generation, backend, n=2, concurrency=1, max_attempts=2)
            shown = json.dumps([str(error) for error in made.frame["error"]])
        except BackendUnavailable as refused:
            shown = str(refused)
        assert "127.0.0.1" in shown
    assert [
        said[:80]
        for said in everything_said(store, tmp_path, shown, repr(backend))
        if "canary-5b5b" in said
    ] == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "said",
    [
        "Invalid URL (POST /v1/chat/completions?key=canary-qu%40ery&v=1)",
        "Cannot POST /v1/messages?key=canary-qu@ery&v=1",
        "got https://me:canary-pa%2fss@here/v1",
        "got me and canary-pa/ss",
        f"got Basic {base64.b64encode(b'me:canary-pa/ss').decode()}",
    ],
)
def test_a_secret_of_an_address_that_a_provider_repeats_stands_nowhere(
    store: Store, tmp_path: Path, make: Callable[..., HostedBackend], said: str, stream: bool
) -> None:
    with StubProvider(
        faults=[Fault(kind="status", status=404, message=f"{said} (1 of me)")]
    ) as stub:
        backend = make(stub)
        with_secrets = (
            stub.base_url.replace("http://", "http://me:canary-pa%2Fss@")
            + "?key=canary-qu%40ery&v=1"
        )
        backend.base_url = with_secrets  # type: ignore[attr-defined]
        with pytest.raises(BackendUnavailable, match=r"\*\*\*.*\(1 of me\)") as refused:
            ask(store.generation, backend, n=2, concurrency=1, stream=stream)
    secrets = ("canary", base64.b64encode(b"me:canary-pa/ss").decode())
    shown = everything_said(store, tmp_path, str(refused.value))
    assert [text[:80] for text in shown if any(secret in text for secret in secrets)] == []


@pytest.mark.parametrize(
    ("url", "said", "shown"),
    [
        ("https://host/v1", "a: b@c?d=e", "a: b@c?d=e"),
        (
            "https://host/v1?v=1&debug&key=",
            "1 key of v, ?v=1&debug&key=2",
            "1 key of v, ?v=1&debug&key=2",
        ),
        ("https://host/v1?canary-bare", "/v1?canary-bare", "/v1?***"),
        (
            "https://host/v1?key=a+canary%20b",
            "a canary b, a+canary+b, a%20canary%20b",
            "***, ***, ***",
        ),
        ("https://token-7@host/v1", "//token-7@host, token-7", "//***host, ***"),
        (
            "https://a:b@host/v1",
            "a or b: https://a:b@host, Basic YTpi",
            "a or b: https://***host, Basic ***",
        ),
    ],
)
def test_what_is_short_is_a_secret_of_an_address_only_beside_its_name(
    url: str, said: str, shown: str
) -> None:
    assert redact(said, *secrets_of(url)) == shown


# --- what is used is kept
# --------------------------------------------------------------------------------------------------


def test_a_prune_keeps_what_the_same_run_asks_for_every_day(store: Store) -> None:
    clock = store.database.clock = Ahead(store.database.clock)
    with StubProvider() as stub:
        ask(store.generation, openai(stub))
        for _ in range(3):
            clock.ahead += timedelta(days=1)
            ask(store.generation, openai(stub))
        n = store.completions_cache.prune(unused_since=clock.now() - timedelta(days=2))
        assert n == 0
        ask(store.generation, openai(stub))
        assert stub.n_calls == 20


def test_a_long_batch_on_this_machine_keeps_its_claims(store: Store) -> None:
    """By a clock that goes on by half a lease whenever they were renewed: the machine may be as
    slow as it likes.
    """
    renewed = threading.Semaphore(0)
    clock = store.database.clock = Ahead(store.database.clock)

    class Renewed(GenerationLedger):
        def settle_and_claim(
            self, run_id: str, owner: str, *rest: Any, **more: Any
        ) -> LedgerTransaction:
            told = super().settle_and_claim(run_id, owner, *rest, **more)
            if owner != ELSEWHERE and threading.current_thread().name == "leases":
                renewed.release()
            return told

    ledger = Renewed(store.database, store.completions_cache, lease_s=600, renew_s=0.02)
    taken: list[int] = []

    class Slow:
        name, model_version = "slow", "slow-1"

        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            for _ in range(6):
                clock.ahead += timedelta(seconds=300)
                for _ in range(2):  # the first may have begun before the clock went on
                    assert renewed.acquire(timeout=60), "nobody renews"
            with ThreadPoolExecutor(1) as pool:
                lane = (self.name, self.model_version)
                [run] = ledger.list_runs()
                found = pool.submit(
                    ledger.settle_and_claim,
                    run.run_id,
                    ELSEWHERE,
                    [],
                    {lane: 9},
                    Budget(),
                    is_dead=lambda _: False,
                ).result()
                taken.extend(claim.item_no for claim in found.claimed[lane])
            for request in requests:
                yield CompletionResult(text=request.prompt)

    made = ask(ledger, Slow(), n=2)
    assert taken == []
    assert made.frame["error"].isna().all()

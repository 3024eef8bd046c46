"""Whole runs against the STUB with a real store: nothing lost, nothing twice, nothing too early,
nothing beyond a budget.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    ProviderParked,
    StoreError,
)
from rlhf_pipeline.core.processes import is_dead, make_owner
from rlhf_pipeline.core.protocols import Attempt, Budget, Lane, LedgerTransaction
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions import (
    AnthropicBackend,
    CompletionParams,
    Generation,
    HostedBackend,
    OpenAICompatibleBackend,
    RequestedBy,
    TemplateBackend,
    open_backend,
)
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from tests.ledgers import temporary_ledger
from tests.providers.generation_runs import (
    KEY,
    PARAMS,
    ask,
    calls_of,
    kinds,
    openai,
    status,
)
from tests.providers.stub_provider import Fault, StubFaultKind, StubProvider

ROOT = Path(__file__).parents[2]


# --- nothing lost, nothing twice
# --------------------------------------------------------------------------------------------------


def test_every_completion_is_called_and_billed_once(
    store: Store, make: Callable[..., HostedBackend]
) -> None:
    with StubProvider() as stub:
        outcome = ask(store.generation, make(stub))
        counted = stub.counters
    assert len(outcome.frame) == 20
    assert outcome.frame["error"].isna().all()
    assert outcome.frame["completion_id"].is_unique
    [spent] = outcome.spent.values()
    assert (spent.n_calls, spent.n_prompt_tokens, spent.n_tokens) == (
        20,
        counted.n_prompt_tokens,
        counted.n_tokens,
    )
    assert counted.n_calls == counted.n_billed == 20
    assert outcome.cost == pytest.approx((counted.n_prompt_tokens + counted.n_tokens) / 1e6)
    assert outcome.frame["n_tokens"].sum() == counted.n_tokens


def test_workers_timeouts_keys_and_prices_change_no_text(store: Store) -> None:
    with StubProvider() as stub:
        ask(store.generation, openai(stub), n=2)
        ask(
            store.generation,
            openai(stub, timeout_s=5),
            n=2,
            concurrency=3,
            stream=True,
            prompt_price=9.0,
            max_attempts=2,
        )
        ask(
            store.generation,
            OpenAICompatibleBackend("stub-model", stub.base_url, SecretStr("another")),
            n=2,
        )
        assert stub.n_calls == 4


def test_faults_lose_and_double_nothing(store: Store, make: Callable[..., HostedBackend]) -> None:
    chances = [
        (0.05, status(429, 20)),
        (0.05, status(500)),
        (0.05, status(529)),
        (0.03, Fault(kind="drop")),
        (0.03, Fault(kind="cut")),
    ]
    with StubProvider(chances=chances, seed=3) as stub:
        outcome = ask(store.generation, make(stub), n=100)
        counted = stub.counters
    assert outcome.frame["error"].isna().all()
    calls = calls_of(store, outcome)
    assert len(calls) == counted.n_calls
    assert sum(call["outcome"] == "succeeded" for call in calls) == 200
    assert {call["kind"] for call in calls} >= {"rate_limited", "server_error", "dropped"}
    assert outcome.n_unknown == counted.n_billed - counted.n_answered > 0
    assert outcome.cost == pytest.approx(
        sum(call["cost"] for call in calls if call["billing"] == "metered") / 1e9
    )


def test_generation_works_on_postgres(migrated_postgres_url: str) -> None:
    chances = [(0.05, status(429, 20)), (0.05, status(500)), (0.05, Fault(kind="drop"))]
    with (
        StubProvider(chances=chances, seed=3) as stub,
        Store.open(migrated_postgres_url) as store,
    ):
        outcome = ask(
            store.generation,
            openai(stub),
            n=50,
            budget_per_run=1.0,
            budget_per_day=1.0,
            budget_per_provider=1.0,
        )
        calls = calls_of(store, outcome)
        assert len(calls) == stub.n_calls
        again = ask(store.generation, openai(stub), n=50)
        assert stub.n_calls == len(calls)
    assert outcome.frame["error"].isna().all()
    assert again.frame.equals(outcome.frame)


def test_interrupted_run_stops_and_resumes(store: Store) -> None:
    def interrupt(done: int, total: int, note: str) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    with StubProvider(latency_s=0.1) as stub:
        with pytest.raises(KeyboardInterrupt):
            ask(store.generation, openai(stub), n=100, concurrency=8, progress=interrupt)
        [run] = store.generation.list_runs()
        assert "leased" not in run.states
        assert "open" in run.states
        n_before = stub.n_calls
        outcome = ask(store.generation, openai(stub), n=100)
        assert stub.n_calls == n_before + run.states["open"]
    assert outcome.frame["error"].isna().all()
    assert kinds(store, outcome)["cancelled"] <= 8


def test_text_missing_from_the_cache_is_made_again(store: Store) -> None:
    with StubProvider() as stub:
        first = ask(store.generation, openai(stub), n=2)
        store.completions_cache.prune(unused_since=datetime.now(UTC) + timedelta(days=1))
        again = ask(store.generation, openai(stub), n=2)
        assert stub.n_calls == 8
    assert again.frame["text"].tolist() == first.frame["text"].tolist()


# --- bad input: each a named state
# --------------------------------------------------------------------------------------------------

TERMINAL: list[tuple[Fault, str, bool]] = [  # and whether it is streamed
    (status(400), "bad_request", False),
    (Fault(kind="content_filter"), "content_filter", True),
    (Fault(kind="refusal"), "refusal", False),
    (Fault(kind="empty"), "empty", True),
]
PASSING: list[tuple[Fault, str, bool]] = [
    (Fault(kind="html"), "garbled", False),
    (Fault(kind="html"), "cut", True),
    (Fault(kind="broken_json"), "garbled", False),
    (Fault(kind="broken_json"), "garbled", True),
    (Fault(kind="drop"), "dropped", True),
    (Fault(kind="error_event", code="rate_limit_error"), "rate_limited", True),
    (status(500), "server_error", False),
    (status(429, 10), "rate_limited", False),
    (status(529), "overloaded", False),
]


@pytest.mark.parametrize(
    ("fault", "kind", "stream"), TERMINAL, ids=lambda v: v.kind if isinstance(v, Fault) else str(v)
)
def test_permanent_fault_fails_its_row_alone(
    store: Store, make: Callable[..., HostedBackend], fault: Fault, kind: str, stream: bool
) -> None:
    if (
        fault.kind == "content_filter"
        and make.__closure__
        and "Anthropic" in str(make.__closure__[0].cell_contents)
    ):
        kind = "refusal"  # one word there for both
    with StubProvider(faults=[None, fault]) as stub:
        outcome = ask(store.generation, make(stub), n=3, concurrency=1, stream=stream)
        assert stub.n_calls == 6
    failed = outcome.frame[outcome.frame["error"].notna()]
    assert outcome.kinds == {kind: 1}
    assert len(failed) == 1
    assert failed["text"].tolist() == [""]
    [call] = [call for call in calls_of(store, outcome) if call["outcome"] == "terminal"]
    assert (call["kind"], call["error"]) == (kind, failed["error"].iloc[0])


@pytest.mark.parametrize(
    ("fault", "kind", "stream"), PASSING, ids=lambda v: v.kind if isinstance(v, Fault) else str(v)
)
def test_transient_fault_is_retried_and_recorded_by_kind(
    store: Store, make: Callable[..., HostedBackend], fault: Fault, kind: str, stream: bool
) -> None:
    with StubProvider(faults=[None, fault]) as stub:
        outcome = ask(store.generation, make(stub), n=3, concurrency=1, stream=stream)
        assert stub.n_calls == 7
    assert outcome.frame["error"].isna().all()
    assert kinds(store, outcome) == {"succeeded": 6, kind: 1}


def test_exhausted_retries_fail_with_the_reason(store: Store) -> None:
    with StubProvider(faults=[None], chances=[(1.0, status(500, message="on fire"))]) as stub:
        outcome = ask(store.generation, openai(stub), n=2, concurrency=1, max_attempts=3)
        assert stub.n_calls == 1 + 3 * 3
    assert outcome.kinds == {"server_error": 3}
    assert outcome.frame["error"].dropna().str.contains("on fire").all()


def test_rate_limits_do_not_count_as_attempts_but_are_bounded(
    store: Store,
) -> None:
    with StubProvider(faults=[None], chances=[(1.0, status(429))]) as stub:
        outcome = ask(
            store.generation, openai(stub), n=1, concurrency=1, max_attempts=2, max_refusals=6
        )
        assert stub.n_calls == 1 + 6
    assert outcome.kinds == {"rate_limited": 1}


@pytest.mark.parametrize(
    ("stub_", "message", "kind"),
    [
        ({"api_key": SecretStr("right")}, "RLHF_API_KEY", "wrong_key"),
        ({"model": "another"}, "RLHF_API_MODEL", "unknown_model"),
        ({"faults": [status(429, 1, code="insufficient_quota")] * 99}, "no credit", "no_credit"),
    ],
    ids=["wrong key", "unknown model", "no credit"],
)
def test_fault_of_every_call_closes_the_provider(
    store: Store, make: Callable[..., HostedBackend], stub_: dict[str, Any], message: str, kind: str
) -> None:
    with StubProvider(**stub_) as stub:
        with pytest.raises(BackendUnavailable, match=message):
            ask(store.generation, make(stub), n=100, concurrency=4)
        assert 1 <= stub.n_calls <= 8
        [run] = store.generation.list_runs()
        settled = list(store.generation.item_states(run.run_id))
        assert Counter(s.state for s in settled) == {"failed": 200}
        assert {s.kind for s in settled} == {kind, "unavailable"}
        stub.repair()
        outcome = ask(store.generation, make(stub), n=100)
    assert outcome.run_id == run.run_id
    assert outcome.frame["error"].isna().all(), "mended, everything is asked for"


def test_unreachable_address_is_unavailable(store: Store) -> None:
    backend = OpenAICompatibleBackend("m", "http://127.0.0.1:9/v1")
    with pytest.raises(BackendUnavailable, match="RLHF_BASE_URL"):
        ask(store.generation, backend, n=3, max_attempts=2)
    [run] = store.generation.list_runs()
    assert run.spent.n_unknown == 0, "nothing was sent"


# --- waiting
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_", ["ms", "seconds", "date"])
def test_single_rate_limit_delays_its_own_call(store: Store, as_: str) -> None:
    with StubProvider(faults=[None, status(429, 2000, as_)]) as stub:
        outcome = ask(store.generation, openai(stub), n=5, concurrency=1)
        assert stub.counters.n_early_retries == 0
    assert outcome.frame["error"].isna().all()
    assert len(stub.arrivals) == 11
    assert stub.arrivals[-2] - stub.arrivals[1] < 2, "the others went on"
    assert stub.arrivals[-1] - stub.arrivals[1] >= 2, "only the refused one waited"


def test_overloaded_provider_pauses_all_calls(store: Store) -> None:
    with StubProvider(quota=(10, 2.0)) as stub:
        outcome = ask(store.generation, openai(stub), n=10, concurrency=4)
        assert stub.counters.n_early_retries == 0
        assert stub.counters.n_refused <= 10 + 4, "as many as were answered, and those under way"
    assert outcome.frame["error"].isna().all()


def test_calls_respect_the_rate_limit(store: Store) -> None:
    with StubProvider() as stub:
        began = time.monotonic()
        outcome = ask(store.generation, openai(stub), n=10, requests_per_minute=300)
        # 11 at once, and 9 at 5 a second
        assert time.monotonic() - began > 1.7
    assert outcome.frame["error"].isna().all()


def test_without_a_dagster_run_nothing_is_paused_for_the_sensor(store: Store) -> None:
    by_hand = RequestedBy("rlhf generate")
    with StubProvider(faults=[None, status(429, 7_200_000, "seconds")]) as stub:
        with pytest.raises(ProviderParked, match=r"7,200 s.*kept\. Start it again then\."):
            ask(store.generation, openai(stub), n=5, concurrency=1, requested_by=by_hand)
        assert store.generation.paused_runs() == []
        outcome = ask(store.generation, openai(stub), n=5, requested_by=by_hand)
        assert stub.n_calls == 11
    assert outcome.frame["error"].isna().all()


def test_too_long_retry_after_pauses_the_run(store: Store) -> None:
    with StubProvider(faults=[None, status(429, 7_200_000, "seconds")]) as stub:
        began = utc_now()
        with pytest.raises(ProviderParked, match=r"7,200 s.* 9 of 10 completions wait until"):
            ask(store.generation, openai(stub), n=5, concurrency=1)
        assert stub.n_calls == 2
        [run] = store.generation.paused_runs()
        assert run.states == {"succeeded": 1, "open": 9}
        assert run.ended_at is None
        assert timedelta(seconds=7_190) < run.paused_until - began < timedelta(seconds=7_260)
        assert "asked again after 7,200 s" in run.pause_reason
        outcome = ask(store.generation, openai(stub), n=5)
        assert stub.n_calls == 2 + 9, "exactly what was missing"
    assert outcome.frame["error"].isna().all()
    assert store.generation.paused_runs() == []
    assert kinds(store, outcome) == {"succeeded": 10, "long_wait": 1}


# --- money
# --------------------------------------------------------------------------------------------------


# --- streams
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "no_finish"])
def test_broken_stream_is_retried_and_its_text_recorded(
    store: Store, make: Callable[..., HostedBackend], kind: StubFaultKind
) -> None:
    with StubProvider(faults=[None, Fault(kind=kind)]) as stub:
        outcome = ask(store.generation, make(stub), n=2, concurrency=1, stream=True)
        assert stub.n_calls == 5
    assert outcome.frame["error"].isna().all()
    [cut] = [call for call in calls_of(store, outcome) if call["kind"] == "cut"]
    [whole] = {text for text in outcome.frame["text"] if text.startswith(cut["partial"])}
    assert 0 < len(cut["partial"]) < len(whole)
    assert cut["billing"] == "unknown"


# --- the ledger's own troubles
# --------------------------------------------------------------------------------------------------


class Refusing(GenerationLedger):
    """A disk that is full for some turns."""

    def __init__(self, *where: Any, refusals: int, **more: Any) -> None:
        super().__init__(*where, **more)
        self.refusals = refusals

    def settle_and_claim(
        self,
        run_id: str,
        owner: str,
        attempts: Sequence[Attempt],
        n_by_lane: Mapping[Lane, int],
        budget: Budget,
        *,
        is_dead: Callable[[str], bool],
    ) -> LedgerTransaction:
        if self.list_runs()[0].spent.n_calls and self.refusals:
            self.refusals -= 1
            raise StoreError("database or disk is full")
        return super().settle_and_claim(run_id, owner, attempts, n_by_lane, budget, is_dead=is_dead)


def test_full_disk_ends_the_run_with_its_reason() -> None:
    with StubProvider() as stub, pytest.raises(StoreError, match="disk is full"):
        ask(
            temporary_ledger(Refusing, refusals=10_000, write_again_s=(0.01, 0.01)),
            openai(stub),
            n=200,
            concurrency=4,
        )
    assert stub.n_calls < 60, "nothing is paid for that cannot be kept"


def test_owner_is_dead_when_its_process_is() -> None:
    assert not is_dead(make_owner())
    host, pid, begin, number = make_owner().rsplit("/", 3)
    assert is_dead(f"{host}/{pid}/{float(begin) - 100:.2f}/{number}"), "the number came again"
    assert is_dead(f"{host}/4194000/1.00/0")
    assert not is_dead("another host/4194000/1.00/0")


def test_generation_runs_in_a_notebook(store: Store) -> None:
    import asyncio

    async def cell() -> Generation:
        return ask(store.generation, openai(stub), n=2)

    with StubProvider() as stub:
        assert len(asyncio.run(cell()).frame) == 4


# --- the key
# --------------------------------------------------------------------------------------------------


def test_key_appears_only_in_requests(
    store: Store,
    make: Callable[..., HostedBackend],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    faults = [
        None,
        status(400, message=f"key {KEY} may not"),
        status(500, message=KEY),
        Fault(kind="cut"),
        Fault(kind="drop"),
        status(429, 5),
    ]
    with StubProvider(api_key=SecretStr(KEY), faults=faults) as stub:
        outcome = ask(store.generation, make(stub), n=5, concurrency=1)
        ask(store.generation, make(stub), n=2, stream=True)
    with StubProvider(api_key=SecretStr("another")) as stub:
        backend = make(stub)
        backend_repr = repr(backend)
        with pytest.raises(BackendUnavailable) as refused:
            ask(store.generation, backend, n=1, params=PARAMS.model_copy(update={"seed": 9}))
    store.close()
    texts = [
        outcome.frame.to_json(),
        repr(outcome),
        backend_repr,
        str(refused.value),
        repr(refused.value.__cause__),
        caplog.text,
        *capfd.readouterr(),
        json.dumps([r.record for r in store.generation.list_runs()]),
    ]
    assert "***" in "".join(texts), "the STUB did repeat it"
    assert [text for text in texts if KEY in text] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 1
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


# --- which provider
# --------------------------------------------------------------------------------------------------


def test_the_parameters_of_every_sample_are_sent(store: Store) -> None:
    params = CompletionParams(k=2, temperatures=[0.3, 1.2], top_ps=[0.8], max_new_tokens=20)
    with StubProvider() as stub:
        frame = ask(store.generation, openai(stub), n=5, params=params).frame
    names = ("temperature", "top_p", "seed", "max_tokens")
    samples = {
        (body["messages"][0]["content"], *(body[name] for name in names)) for body in stub.requests
    }
    assert samples == {
        (f"Prompt number {row.prompt_id[1:]}?", row.temperature, row.top_p, row.seed, 20)
        for row in frame.itertuples()
    }


def test_the_settings_name_the_provider_and_its_address() -> None:
    def open_with(**settings: Any) -> Any:
        policy = Path("policy"), "demo.policy@1"
        return open_backend(Settings(**settings), lambda: policy, timeout_s=9)

    assert isinstance(open_with(completion_backend="template"), TemplateBackend)
    assert open_with(completion_backend="local").model_version == "demo.policy@1"
    with pytest.raises(ConfigurationError, match=r"No 'x' in rlhf_pipeline.completions. Known: t"):
        open_with(completion_backend="x")
    [usual, own, named] = [
        open_with(completion_backend="openai_compatible", base_url="http://here/v1"),
        open_with(completion_backend="anthropic", api_key=SecretStr(KEY)),
        open_with(completion_backend="anthropic", base_url="http://here/v1"),
    ]
    assert isinstance(usual, OpenAICompatibleBackend)
    assert (usual.base_url, usual.timeout_s) == ("http://here/v1", 9)
    assert isinstance(own, AnthropicBackend)
    assert isinstance(named, AnthropicBackend)
    assert (own.provider, named.provider) == ("api.anthropic.com", "here")


def test_timed_out_call_is_retried(store: Store, make: Callable[..., HostedBackend]) -> None:
    with StubProvider(faults=[None, Fault(kind="html", delay_s=30)]) as stub:
        outcome = ask(store.generation, make(stub, timeout_s=2), n=2, concurrency=1)
        assert stub.n_calls == 5
    assert outcome.frame["error"].isna().all()
    [late] = [call for call in calls_of(store, outcome) if call["kind"] == "timeout"]
    assert late["billing"] == "unknown"

"""What a provider's refusal means, how long it asks to wait, and how fast it may be asked: pure
functions of what was said.
"""

from datetime import UTC, datetime

import pytest
import uvicorn
from pydantic import ValidationError

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.completions import CallParams, CompletionRequest
from rlhf_pipeline.generate.completions.faults import (
    KINDS,
    http_fault,
    waiting_time,
)
from rlhf_pipeline.generate.completions.http_backend import IDLE_S
from rlhf_pipeline.generate.completions.limits import (
    FULL,
    OVERHEAD,
    RECENT_S,
    Pause,
    Rate,
)
from rlhf_pipeline.generate.completions.openai_compatible import capabilities_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUEST = CompletionRequest(
    prompt_id="p", prompt="Grüße?", temperature=0.7, top_p=1, sample_index=0, seed=1, max_tokens=100
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, None, "rate_limited"),
        (429, "insufficient_quota", "no_credit"),
        (402, None, "no_credit"),
        (529, None, "overloaded"),
        (400, "overloaded_error", "overloaded"),
        (409, None, "server_error"),
        (408, None, "server_error"),
        (500, None, "server_error"),
        (503, None, "server_error"),
        (401, None, "wrong_key"),
        (403, None, "wrong_key"),
        (404, None, "unknown_model"),
        (400, None, "bad_request"),
        (413, None, "bad_request"),
        (422, None, "bad_request"),
        (302, None, "bad_request"),
    ],
)
def test_statuses_have_distinct_fault_kinds(status: int, code: str | None, kind: str) -> None:
    reply = http_fault(status, "no", code, {}, "m")
    assert (reply.kind, reply.outcome, reply.closes) == (
        kind,
        KINDS[kind].outcome,
        KINDS[kind].closes,
    )
    assert reply.billing == "none"
    assert str(status) in str(reply.error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:03 GMT"}, 4.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 1.0),
        # Their clock is an hour ahead of ours: what counts is how far apart their two moments are.
        (
            {
                "retry-after": "Thu, 01 Jan 2026 13:00:03 GMT",
                "date": "Thu, 01 Jan 2026 13:00:00 GMT",
            },
            4.0,
        ),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "in a while"}, None),
    ],
)
def test_retry_delay_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert waiting_time(headers, NOW) == seconds


def test_capabilities_name_seed_support_and_limit_field() -> None:
    assert capabilities_of("https://api.openai.com/v1").max_tokens == "max_completion_tokens"
    assert not capabilities_of("https://api.deepseek.com").seed
    assert capabilities_of("http://localhost:11434/v1").max_tokens == "max_tokens"


def test_prices_are_per_million_tokens_and_costs_round_up() -> None:
    params = CallParams(prompt_price=0.15, completion_price=0.6)
    assert params.cost(1_000_000, 0) == 150_000_000
    assert params.cost(1, 1) == 750
    assert CallParams(prompt_price=0.0001, completion_price=0).cost(1, 0) == 1
    assert CallParams().cost(5, 5) == 0


def test_worst_case_cost_counts_bytes_and_the_limit() -> None:
    params = CallParams(prompt_price=1, completion_price=10)
    assert params.max_cost(REQUEST) == ((8 + OVERHEAD) * 1 + 100 * 10) * 1000
    assert params.max_cost(REQUEST.model_copy(update={"system": "Be brief."})) > params.max_cost(
        REQUEST
    )


def test_a_budget_without_prices_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="prompt_price"):
        CallParams(budget_per_run=1).budget  # noqa: B018
    with pytest.raises(ConfigurationError, match="prices"):
        CallParams(budget_per_day=1, prompt_price=1).budget  # noqa: B018
    assert (
        CallParams(budget_per_run=0.5, prompt_price=1, completion_price=1).budget.run == 500_000_000
    )
    assert not CallParams().budget.is_set
    with pytest.raises(ValidationError):
        CallParams(concurrency=0)


def test_provider_pauses_after_most_recent_calls_were_refused() -> None:
    clock = Clock()
    pause = Pause(clock)
    for _ in range(FULL):  # nothing has succeeded yet
        assert pause.left_s == 0
        pause.record(120.0)
    assert pause.left_s == 120
    clock.now += 120
    assert pause.left_s == 0
    for _ in range(2 * FULL):
        pause.record(None)
        pause.record(30.0)
    assert pause.left_s == 0, "no more than half were refused"
    clock.now += RECENT_S + 1
    for _ in range(FULL - 1):
        pause.record(30.0)
    assert pause.left_s == 0, "earlier refusals count no more"
    pause.record(30.0)
    assert pause.left_s == 30


def test_request_rate_is_limited() -> None:
    clock = Clock()
    rate = Rate(60, clock)
    n_begun = 0
    for _ in range(60_000):
        if rate.left_s == 0:
            rate.take(1)
            n_begun += 1
        clock.now += 0.001
    assert 60 <= n_begun <= 60 + 3


def test_token_rate_is_limited_and_corrected_by_usage() -> None:
    clock = Clock()
    rate = Rate(6000, clock)  # 100 a second, 200 at once
    rate.take(300)
    assert rate.left_s == pytest.approx(1.0)
    rate.take(-200)
    assert rate.left_s == 0, "the provider counted 100"
    rate.take(5000)
    assert rate.left_s == pytest.approx(49.0), "later calls wait for one that is too large"
    clock.now += 49
    assert rate.left_s == pytest.approx(0.0)


def test_without_a_limit_no_call_waits() -> None:
    rate = Rate(None)
    rate.take(10**9)
    assert rate.left_s == 0


def test_idle_connections_end_before_servers_close_them() -> None:
    assert uvicorn.Config("app").timeout_keep_alive >= 2 * IDLE_S

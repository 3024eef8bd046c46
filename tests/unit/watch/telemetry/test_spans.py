"""What a trace collector receives: names, parents, attributes, headers; what a dead one costs."""

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.protocols import Attempt
from rlhf_pipeline.watch.telemetry import tracing
from rlhf_pipeline.watch.telemetry.current_step import in_step
from rlhf_pipeline.watch.telemetry.otlp import Tracer
from tests.collector import Collector, collecting

ROOT = Path(__file__).parents[4]
BEGAN = datetime(2026, 1, 2, 12, tzinfo=UTC)
SERVER, CLIENT = 2, 3


def attempt(**more: object) -> Attempt:
    fields = dict(
        item_no=1,
        provider="api.example:443",
        model="gpt-4o-mini",
        cache_key="k",
        started_at=BEGAN,
        latency_ms=1500.0,
        outcome="succeeded",
        kind="succeeded",
        becomes="succeeded",
        is_fault=False,
        billing="metered",
        status=200,
        n_prompt_tokens=12,
        n_tokens=34,
        cost=2_500_000,
        result='{"text": "a completion"}',
    )
    return Attempt(**{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def open_tracer(endpoint: str, headers: str) -> Tracer:
    settings = Settings(project="support", otlp_endpoint=endpoint, otlp_headers=headers)
    tracer = tracing.open_tracer(settings)
    assert tracer is not None
    assert tracing.open_tracer(settings) is tracer
    return tracer


@pytest.fixture
def tracer(collector: Collector) -> Iterator[Tracer]:
    tracer = open_tracer(
        f"{collector.url}/api/public/otel/", "Authorization=Basic%20c2VjcmV0,X-Project=demo"
    )
    yield tracer
    tracer.close(5)


def test_a_run_is_a_trace_with_its_steps_and_their_calls(tracer: Tracer, collector: Collector):
    run_id, began = str(uuid4()), BEGAN.timestamp()
    with in_step(run_id, "completions"):
        tracer.record_calls([attempt()])  # long before the run has ended
    shared = {"rlhf.run_id": run_id, "rlhf.job": "collection"}
    for step, times, error in (
        ("prompts", (began, began + 1), None),
        ("completions", (began + 1, began + 4), "step_failed"),
        ("", (began, began + 5), "run_failed"),
    ):
        tracer.record_step(run_id, step, times, shared, name=step or "run", error=error)
    tracer.flush(5)
    spans = {span.name: span for span in collector.spans}
    run, step = spans["run"], spans["completions"]
    call = spans["chat gpt-4o-mini"]
    assert len(spans) == 4
    assert {span.trace_id for span in spans.values()} == {run_id.replace("-", "")}
    assert run.parent_id == ""
    assert step.parent_id == spans["prompts"].parent_id == run.span_id
    assert call.parent_id == step.span_id
    assert (run.seconds, step.seconds, call.seconds) == (5, 3, 1.5)
    assert (run.is_error, step.is_error, spans["prompts"].is_error) == (True, True, False)
    assert run.attributes == {
        "rlhf.run_id": run_id,
        "rlhf.job": "collection",
        "error.type": "run_failed",
    }
    assert call.kind == CLIENT
    assert call.resource["service.name"] == "rlhf_pipeline"
    assert {span.resource["rlhf.project"] for span in spans.values()} == {"support"}


def test_a_call_has_the_attributes_of_generative_ai(tracer: Tracer, collector: Collector):
    refused = attempt(
        outcome="retryable",
        kind="rate_limit",
        becomes="open",
        billing="none",
        status=429,
        error="the prompt 'who am I' was refused",
        partial="I am",
        n_prompt_tokens=0,
        n_tokens=0,
        result=None,
    )
    tracer.record_calls([attempt(), refused])
    tracer.flush(5)
    called, failed = collector.spans
    assert called.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "api.example:443",
        "gen_ai.system": "api.example:443",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 34,
        "gen_ai.usage.cost": 0.0025,
        "http.response.status_code": 200,
        "rlhf.outcome": "succeeded",
        "rlhf.billing": "metered",
    }
    assert failed.is_error
    assert failed.attributes["error.type"] == "rate_limit"
    assert called.parent_id == failed.parent_id == ""
    assert called.trace_id != failed.trace_id  # a command's calls: no run holds them together
    body = b"".join(collector.bodies)
    for text in (b"a completion", b"who am I", b"I am", b"c2VjcmV0"):
        assert text not in body


def test_spans_arrive_at_the_signal_path_with_the_headers(tracer: Tracer, collector: Collector):
    tracer.record_request("/api/v1/votes", 503, BEGAN.timestamp(), BEGAN.timestamp() + 0.25)
    tracer.flush(5)
    assert collector.paths == ["/api/public/otel/v1/traces"]
    assert collector.headers[0]["authorization"] == "Basic c2VjcmV0"
    assert collector.headers[0]["x-project"] == "demo"
    (span,) = collector.spans
    assert (span.name, span.kind) == ("POST /api/v1/votes", SERVER)
    assert span.seconds == pytest.approx(0.25, abs=1e-5)
    assert span.is_error


@pytest.mark.parametrize("accepts", [False, True], ids=["closed port", "black hole"])
def test_dead_collector_delays_a_run_no_longer_than_the_set_waits(accepts: bool):
    assert 2 * tracing.FLUSH_S + tracing.EXIT_S < 1
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if accepts:  # connections, and never says a word
            silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tracer = tracing.open_tracer(Settings(otlp_endpoint=endpoint))
        assert tracer is not None
        tracer.record_calls([attempt()] * 10_000)  # more than are kept
        began = time.perf_counter()
        tracer.flush(tracing.FLUSH_S)  # of two steps with calls, and of the run
        tracer.flush(tracing.FLUSH_S)
        tracer.close(tracing.EXIT_S)
        assert time.perf_counter() - began < 5  # a busy machine; without limits it takes 10 or more

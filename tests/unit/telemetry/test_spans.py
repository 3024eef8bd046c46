"""What a trace collector receives: names, parents, attributes, headers; what a dead one costs."""

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.protocols import Attempt
from rlhf_pipeline.telemetry import tracing
from rlhf_pipeline.telemetry.current_step import in_step
from rlhf_pipeline.telemetry.spans import EndedRun, EndedStep, Tracer
from tests.collector import Collector, collecting

ROOT = Path(__file__).parents[3]
BEGAN = datetime(2026, 1, 2, 12, tzinfo=UTC)
SERVER, CLIENT = 2, 3


def attempt(**more: object) -> Attempt:
    given = dict(
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
    return Attempt(**{**given, **more})  # type: ignore[arg-type]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def open_tracer(endpoint: str, headers: str) -> Tracer:
    settings = Settings(
        organization="acme", project="support", otlp_endpoint=endpoint, otlp_headers=headers
    )
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
    tracer.receiver.close(5)


def test_a_run_is_a_trace_with_its_steps_and_their_calls(tracer: Tracer, collector: Collector):
    run_id, began = str(uuid4()), BEGAN.timestamp()
    with in_step(run_id, "completions"):
        tracer.record_calls([attempt()])  # long before the run has ended
    steps = [
        EndedStep("prompts", began, began + 1, has_failed=False),
        EndedStep("completions", began + 1, began + 4, has_failed=True, n_attempts=2),
    ]
    tracer.record_run(
        EndedRun(run_id, "collection", began, began + 5, True, partition="2026-01-02", steps=steps)
    )
    tracer.receiver.flush(5)
    spans = {span.name: span for span in collector.spans}
    run, step = spans["run collection"], spans["step completions"]
    call = spans["chat gpt-4o-mini"]
    assert len(spans) == 4
    assert {span.trace_id for span in spans.values()} == {run_id.replace("-", "")}
    assert run.parent_id == ""
    assert step.parent_id == spans["step prompts"].parent_id == run.span_id
    assert call.parent_id == step.span_id
    assert (run.seconds, step.seconds, call.seconds) == (5, 3, 1.5)
    assert (run.is_error, step.is_error, spans["step prompts"].is_error) == (True, True, False)
    assert run.attributes == {
        "rlhf.run_id": run_id,
        "rlhf.job": "collection",
        "rlhf.partition": "2026-01-02",
        "error.type": "run_failed",
    }
    assert step.attributes["rlhf.attempts"] == 2
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
    tracer.receiver.flush(5)
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
    sent = b"".join(collector.bodies)
    for text in (b"a completion", b"who am I", b"I am", b"c2VjcmV0"):
        assert text not in sent


# As docs/monitoring.md sets them: what is behind the host, the headers, and what must arrive.
RECEIVERS = {
    "collector": ("", "", "/v1/traces", {}),
    "Phoenix": (
        "",
        "Authorization=Bearer%20k3y",
        "/v1/traces",
        {"authorization": "Bearer k3y"},
    ),
    "Langfuse": (
        "/api/public/otel",
        "Authorization=Basic%20cGs6c2s=",
        "/api/public/otel/v1/traces",
        {"authorization": "Basic cGs6c2s="},
    ),
    "Latitude": (
        "",
        "Authorization=Bearer%20k3y,X-Latitude-Project=demo",
        "/v1/traces",
        {"authorization": "Bearer k3y", "x-latitude-project": "demo"},
    ),
}


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_each_receiver_gets_spans_as_it_documents(receiver: str, collector: Collector):
    path, headers, signal_path, received = RECEIVERS[receiver]
    tracer = open_tracer(f"{collector.url}{path}", headers)
    with in_step(str(uuid4()), "completions"):
        tracer.record_calls([attempt()])
    tracer.receiver.close(5)
    assert collector.paths == [signal_path]
    (sent,) = collector.headers
    assert sent["content-type"] == "application/x-protobuf"
    assert received.items() <= sent.items()
    assert ("authorization" in sent) == ("authorization" in received)
    (span,) = collector.spans  # parsed as ExportTraceServiceRequest
    assert (len(span.trace_id), len(span.span_id)) == (32, 16)
    assert span.name == "chat gpt-4o-mini"
    assert span.attributes["gen_ai.request.model"] == "gpt-4o-mini"
    assert span.resource["service.name"] == "rlhf_pipeline"


def test_the_receivers_of_the_docs_are_tested():
    table = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for path, headers, _, _ in RECEIVERS.values():
        assert f"{path}`" in table
        for name in (part.partition("=")[0] for part in headers.split(",")):
            assert name in table


def test_spans_arrive_at_the_signal_path_with_the_headers(tracer: Tracer, collector: Collector):
    tracer.record_vote_request("/api/v1/votes", 503, BEGAN.timestamp(), BEGAN.timestamp() + 0.25)
    tracer.receiver.flush(5)
    assert collector.paths == ["/api/public/otel/v1/traces"]
    assert collector.headers[0]["authorization"] == "Basic c2VjcmV0"
    assert collector.headers[0]["x-project"] == "demo"
    assert collector.headers[0]["content-type"] == "application/x-protobuf"
    (span,) = collector.spans
    assert (span.name, span.kind) == ("POST /api/v1/votes", SERVER)
    assert span.seconds == pytest.approx(0.25, abs=1e-5)
    assert span.is_error
    assert span.attributes["http.response.status_code"] == 503


@pytest.mark.parametrize("accepts", [False, True], ids=["closed port", "black hole"])
def test_a_dead_collector_costs_a_run_less_than_a_second(
    accepts: bool, caplog: pytest.LogCaptureFixture
):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if accepts:  # connections, and never says a word
            silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tracer = tracing.open_tracer(Settings(otlp_endpoint=endpoint))
        assert tracer is not None
        tracer.record_calls([attempt()] * 10_000)  # more than are kept
        began = time.perf_counter()
        tracer.receiver.flush(tracing.FLUSH_S)  # of two steps with calls, and of the run
        tracer.receiver.flush(tracing.FLUSH_S)
        tracer.receiver.close(tracing.EXIT_S)
        assert time.perf_counter() - began < 1
    assert len([r for r in caplog.records if "does not accept spans" in r.message]) == 1


def test_no_tracer_is_opened_unless_a_collector_is_named():
    assert tracing.open_tracer(Settings()) is None
    read = Settings.read({
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret",
        "RLHF_OTLP_ENDPOINT": "http://ours:4318",
    })  # fmt: skip
    assert read.otlp_endpoint == "http://ours:4318"
    assert read.otlp_headers is not None
    assert read.otlp_headers.get_secret_value() == "api-key=secret"
    assert "secret" not in repr(read)


@pytest.mark.parametrize(
    "variable", [{"RLHF_OTLP_ENDPOINT": "collector:4318"}, {"RLHF_OTLP_HEADERS": "hunter2"}]
)
def test_an_unusable_receiver_is_refused_without_its_secret(variable: dict[str, str]):
    with pytest.raises(ConfigurationError) as refused:
        Settings.read(variable)
    assert "hunter2" not in str(refused.value)

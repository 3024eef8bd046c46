"""A trace collector on loopback: what a receiver of OTLP over HTTP is sent, decoded."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as a receiver reads it; ids in hex, times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    seconds: float
    attributes: dict[str, Any]
    is_error: bool
    resource: dict[str, Any]


@dataclass
class Collector:
    """What arrived, in order of arrival."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> list[ReceivedSpan]:
        spans = []
        for body in list(self.bodies):
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = read_attributes(group.resource.attributes)
                spans += [read(span, resource) for s in group.scope_spans for span in s.spans]
        return spans


def read(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        attributes=read_attributes(span.attributes),
        is_error=span.status.code == 2,
        resource=resource,
    )


def read_attributes(pairs: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
        for pair in pairs
    }


def check_trace(spans: Sequence[ReceivedSpan], run_id: str) -> None:
    """Of a collection: steps under the run, calls under the step that made them."""
    assert {span.trace_id for span in spans} == {run_id.replace("-", "")}
    named = {span.name: span for span in spans}
    run = named["run collection"]
    assert run.parent_id == ""
    assert not run.is_error
    for stage in ("prompts", "completions", "comparisons"):
        assert named[f"step {stage}"].parent_id == run.span_id
        assert 0 < named[f"step {stage}"].seconds < run.seconds
    calls = [span for span in spans if span.name.startswith("chat ")]
    assert len(calls) > 5
    assert {call.parent_id for call in calls} == {named["step completions"].span_id}
    assert all(call.attributes["gen_ai.usage.output_tokens"] > 0 for call in calls)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.paths.append(self.path)
            collector.headers.append({name.lower(): text for name, text in self.headers.items()})
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()

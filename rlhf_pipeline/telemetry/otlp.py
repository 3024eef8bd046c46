"""Sends spans to a collector by OTLP over HTTP, in batches and from a thread of its own.

Never the global tracer provider, which other libraries of the process share.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from rlhf_pipeline.telemetry.spans import Attributes, Span

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0  # of one request; a batch that a collector does not take by then is dropped
DELAY_MS = 1000
MAX_QUEUED = 8192  # further spans are dropped while a collector does not answer
KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
    "server": trace.SpanKind.SERVER,
}


class OtlpReceiver:
    """A `SpanReceiver`. Sending costs microseconds, whatever the collector does."""

    def __init__(self, endpoint: str, headers: dict[str, str], resource: Attributes):
        self._ids = _GivenIds()
        self._lock = threading.Lock()
        address = f"{endpoint.rstrip('/')}/v1/traces"
        self._exporter = _ReportedExporter(
            OTLPSpanExporter(address, headers=headers, timeout=TIMEOUT_S), urlsplit(endpoint).netloc
        )
        processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=DELAY_MS
        )
        # Not closed by the provider at exit: it would wait half a minute for a dead collector.
        self._provider = TracerProvider(
            id_generator=self._ids, resource=Resource(resource), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("rlhf_pipeline")

    def send(self, span: Span) -> None:
        parent = None
        if span.parent_id is not None:
            context = trace.SpanContext(
                span.trace_id, span.parent_id, is_remote=True, trace_flags=trace.TraceFlags(1)
            )
            parent = trace.set_span_in_context(trace.NonRecordingSpan(context))
        with self._lock:
            self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
            started = self._tracer.start_span(
                span.name,
                context=parent or Context(),
                kind=KINDS[span.kind],
                attributes=span.attributes,
                start_time=int(span.started_at * 1e9),
            )
        if span.error is not None:
            started.set_attribute("error.type", span.error)
            started.set_status(trace.StatusCode.ERROR, span.error)
        started.end(int(max(span.ended_at, span.started_at) * 1e9))

    def flush(self, seconds: float) -> None:
        self._deliver(self._provider.force_flush, seconds)

    def close(self, seconds: float) -> None:
        self._deliver(self._provider.shutdown, seconds)

    def _deliver(self, deliver: Callable[[], object], seconds: float) -> None:
        """In a thread, because neither flush nor shutdown of the SDK keeps to a time limit."""
        thread = threading.Thread(target=deliver, name="spans", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._exporter.report_failure()


class _GivenIds(RandomIdGenerator):
    """Gives the next span the ids that were set."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _ReportedExporter(SpanExporter):
    """Reports that a collector fails once, and again after it worked; the exporter itself would
    report each retry.
    """

    def __init__(self, exporter: OTLPSpanExporter, receiver: str):
        self._exporter = exporter
        self._receiver = receiver
        self._is_failing = False
        for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._is_failing = False
        else:
            self.report_failure()
        return result

    def report_failure(self) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "The collector %s does not accept spans. They are dropped; runs continue. Check "
                "otlp_endpoint and otlp_headers.",
                self._receiver,
            )

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

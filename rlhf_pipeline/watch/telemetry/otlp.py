"""Sends spans of runs, steps, calls and votes to a collector by OTLP over HTTP, from a thread.

Ids follow from the ids of runs and steps: a run's trace has the run's own id. So a step in another
process knows its parent, nobody keeps a span open, and a run is described once it has ended. Never
the global tracer provider, which other libraries of the process share.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind

from rlhf_pipeline.core.protocols import Attempt
from rlhf_pipeline.watch.telemetry.current_step import current_step

Attributes = Mapping[str, str | int | float]
TIMEOUT_S = 5.0  # of one request; a batch that a collector does not take by then is dropped
DELAY_MS = 1000
MAX_QUEUED = 8192  # further spans are dropped while a collector does not answer
NANO = 1e-9


class Tracer:
    """Builds spans and hands them to the SDK, which costs microseconds, whatever the collector
    does.
    """

    def __init__(self, endpoint: str, headers: dict[str, str], resource: Attributes):
        self._ids = _GivenIds()
        self._lock = threading.Lock()
        address = f"{endpoint.rstrip('/')}/v1/traces"
        processor = BatchSpanProcessor(
            OTLPSpanExporter(address, headers=headers, timeout=TIMEOUT_S),
            max_queue_size=MAX_QUEUED,
            schedule_delay_millis=DELAY_MS,
        )
        # Not closed by the provider at exit: it would wait half a minute for a dead collector.
        self._provider = TracerProvider(
            id_generator=self._ids, resource=Resource(resource), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("rlhf_pipeline")

    def record_step(
        self,
        run_id: str,
        step: str,
        times: tuple[float, float],
        attributes: Attributes,
        *,
        name: str,
        error: str | None,
    ) -> None:
        """A step of a run, or with an empty `step` the run itself, that ended; times in seconds
        since 1970. `error` is a type of error, never a message: messages may quote a prompt.
        """
        own = (trace_id_of(run_id), span_id_of(run_id, step))
        parent = (run_id, "") if step else None
        self._send(name, times, attributes, own, parent, SpanKind.INTERNAL, error)

    def record_calls(self, attempts: Sequence[Attempt]) -> None:
        """Calls for completions as children of the step that this process executes; without one,
        such as in a command, each is a trace of its own.
        """
        step = current_step()
        for attempt in attempts:
            began = attempt.started_at.timestamp()
            self._send(
                f"chat {attempt.model}",
                (began, began + attempt.latency_ms / 1000),
                _describe_call(attempt),
                None,
                (step.run_id, step.key) if step else None,
                SpanKind.CLIENT,
                None if attempt.outcome == "succeeded" else attempt.kind,
            )

    def record_request(self, route: str, status: int, started_at: float, ended_at: float) -> None:
        """A request that casts votes, as a trace of its own."""
        attributes: Attributes = {
            "http.request.method": "POST",
            "http.route": route,
            "http.response.status_code": status,
        }
        error = str(status) if status >= 500 else None
        times = (started_at, ended_at)
        self._send(f"POST {route}", times, attributes, None, None, SpanKind.SERVER, error)

    def _send(
        self,
        name: str,
        times: tuple[float, float],
        attributes: Attributes,
        own: tuple[int, int] | None,
        parent: tuple[str, str] | None,
        kind: SpanKind,
        error: str | None,
    ) -> None:
        context = Context()
        if parent is not None:
            above = trace.SpanContext(
                trace_id_of(parent[0]),
                span_id_of(*parent),
                is_remote=True,
                trace_flags=trace.TraceFlags(1),
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(above))
        with self._lock:
            self._ids.given = own
            started = self._tracer.start_span(
                name, context, kind, attributes, start_time=int(times[0] / NANO)
            )
        if error is not None:
            started.set_attribute("error.type", error)
            started.set_status(trace.StatusCode.ERROR, error)
        started.end(int(max(times) / NANO))

    def flush(self, seconds: float) -> None:
        """Deliver what was recorded, for at most so many seconds."""
        _wait(self._provider.force_flush, seconds)

    def close(self, seconds: float) -> None:
        """`flush`, and accept no more."""
        _wait(self._provider.shutdown, seconds)


class _GivenIds(RandomIdGenerator):
    """Gives the next span the ids that were set, or random ones."""

    given: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return self.given[0] if self.given else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.given[1] if self.given else super().generate_span_id()


def _wait(deliver: Callable[[], object], seconds: float) -> None:
    """In a thread, because neither flush nor shutdown of the SDK keeps to a time limit."""
    thread = threading.Thread(target=deliver, name="spans", daemon=True)
    thread.start()
    thread.join(seconds)


def trace_id_of(run_id: str) -> int:
    """A run's id as the id of its trace, so that one is found by the other.

    >>> f"{trace_id_of('0d9f2f52-1c3e-4c8e-9b5a-6a7d3c1b2e4f'):032x}"
    '0d9f2f521c3e4c8e9b5a6a7d3c1b2e4f'
    """
    with suppress(ValueError):
        return UUID(run_id).int
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:16])


def span_id_of(run_id: str, step: str = "") -> int:
    """The id of the span of a run, or of one of its steps."""
    return int.from_bytes(hashlib.sha256(f"{run_id}/{step}".encode()).digest()[:8])


def _describe_call(attempt: Attempt) -> Attributes:
    """By the semantic conventions for generative AI: https://opentelemetry.io/docs/specs/semconv/
    gen-ai/gen-ai-spans. `gen_ai.system` is the provider's earlier name, which some receivers read.
    """
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": attempt.provider,
        "gen_ai.system": attempt.provider,
        "gen_ai.request.model": attempt.model,
        "gen_ai.usage.input_tokens": attempt.n_prompt_tokens,
        "gen_ai.usage.output_tokens": attempt.n_tokens,
        "rlhf.outcome": attempt.kind,
        "rlhf.billing": attempt.billing,
    }
    if attempt.billing == "metered":
        attributes["gen_ai.usage.cost"] = attempt.cost * NANO
    if attempt.status is not None:
        attributes["http.response.status_code"] = attempt.status
    return attributes

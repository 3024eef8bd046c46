"""Describes runs, steps, calls for completions and votes as spans with fixed ids.

Ids follow from the ids of runs and steps: a run's trace has the run's own id. So a step in another
process knows its parent, nobody keeps a span open, and a run is described once it has ended.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol
from uuid import UUID

from rlhf_pipeline.protocols import Attempt
from rlhf_pipeline.telemetry.current_step import current_step

Attributes = Mapping[str, str | int | float]
NANO = 1e-9


@dataclass(frozen=True)
class Span:
    """A unit of work that ended; times in seconds since 1970. `error` is a type of error, never a
    message: messages may quote a prompt.
    """

    name: str
    trace_id: int
    span_id: int
    started_at: float
    ended_at: float
    parent_id: int | None = None
    kind: Literal["internal", "client", "server"] = "internal"
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None


class SpanReceiver(Protocol):
    """Takes spans to a collector, later and in another thread."""

    def send(self, span: Span) -> None: ...

    def flush(self, seconds: float) -> None:
        """Deliver what was sent, for at most so many seconds."""
        ...

    def close(self, seconds: float) -> None:
        """`flush`, and accept no more."""
        ...


@dataclass(frozen=True)
class EndedStep:
    """A step of a run, its times in seconds since 1970."""

    key: str
    started_at: float
    ended_at: float
    has_failed: bool
    n_attempts: int = 1


@dataclass(frozen=True)
class EndedRun:
    """A run of a job with its steps."""

    run_id: str
    job: str
    started_at: float
    ended_at: float
    has_failed: bool
    partition: str = ""
    steps: Sequence[EndedStep] = ()


class Tracer:
    """Builds spans and hands them to a receiver."""

    def __init__(self, receiver: SpanReceiver):
        self.receiver = receiver

    def record_run(self, run: EndedRun) -> None:
        trace_id, root_id = trace_id_of(run.run_id), span_id_of(run.run_id)
        shared = {"rlhf.run_id": run.run_id, "rlhf.job": run.job}
        if run.partition:
            shared["rlhf.partition"] = run.partition
        self.receiver.send(
            Span(
                f"run {run.job}",
                trace_id,
                root_id,
                run.started_at,
                run.ended_at,
                attributes=shared,
                error="run_failed" if run.has_failed else None,
            )
        )
        for step in run.steps:
            self.receiver.send(
                Span(
                    f"step {step.key}",
                    trace_id,
                    span_id_of(run.run_id, step.key),
                    step.started_at,
                    step.ended_at,
                    parent_id=root_id,
                    attributes={
                        **shared,
                        "rlhf.step": step.key,
                        "rlhf.attempts": step.n_attempts,
                    },
                    error="step_failed" if step.has_failed else None,
                )
            )

    def record_calls(self, attempts: Sequence[Attempt]) -> None:
        """Calls for completions as children of the step that this process executes; without one,
        such as in a command, each is a trace of its own.
        """
        step = current_step()
        for attempt in attempts:
            began = attempt.started_at.timestamp()
            self.receiver.send(
                Span(
                    f"chat {attempt.model}",
                    trace_id_of(step.run_id) if step else secrets.randbits(128),
                    secrets.randbits(64),
                    began,
                    began + attempt.latency_ms / 1000,
                    parent_id=span_id_of(step.run_id, step.key) if step else None,
                    kind="client",
                    attributes=_describe_call(attempt),
                    error=None if attempt.outcome == "succeeded" else attempt.kind,
                )
            )

    def record_vote_request(
        self, route: str, status: int, started_at: float, ended_at: float
    ) -> None:
        """A request that casts votes, as a trace of its own."""
        self.receiver.send(
            Span(
                f"POST {route}",
                secrets.randbits(128),
                secrets.randbits(64),
                started_at,
                ended_at,
                kind="server",
                attributes={
                    "http.request.method": "POST",
                    "http.route": route,
                    "http.response.status_code": status,
                },
                error=str(status) if status >= 500 else None,
            )
        )


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

"""Opens the tracer of a home; there is none unless the settings name a collector."""

import atexit
from typing import TYPE_CHECKING
from urllib.parse import unquote

from rlhf_pipeline import __version__
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.protocols import CallObserver, ignore_calls

if TYPE_CHECKING:
    from rlhf_pipeline.watch.telemetry.otlp import Tracer

# Together below the second that a dead collector may cost a run: its process ends once, and of its
# steps at most two make calls in processes of their own.
EXIT_S = 0.4
FLUSH_S = 0.25

_opened: "dict[tuple[str, str, str], Tracer]" = {}


def open_tracer(settings: Settings) -> "Tracer | None":
    """The tracer of this process for the collector in the settings, or None. Importing the SDK
    takes 0.1 s, so that only those who name a collector pay for it.
    """
    if settings.otlp_endpoint is None:
        return None
    headers = settings.otlp_headers.get_secret_value() if settings.otlp_headers else ""
    key = (settings.otlp_endpoint, headers, settings.project)
    if key not in _opened:
        from rlhf_pipeline.watch.telemetry.otlp import Tracer

        resource = {
            "service.name": "rlhf_pipeline",
            "service.version": __version__,
            "rlhf.project": settings.project,
        }
        tracer = Tracer(settings.otlp_endpoint, parse_headers(headers), resource)
        atexit.register(tracer.close, EXIT_S)
        _opened[key] = tracer
    return _opened[key]


def find_call_observer(settings: Settings) -> CallObserver:
    """What a ledger reports its calls to: the tracer, or nobody."""
    tracer = open_tracer(settings)
    return ignore_calls if tracer is None else tracer.record_calls


def flush_spans() -> None:
    """Deliver the spans of this process, which ends without `atexit`, as step processes do."""
    for tracer in _opened.values():
        tracer.flush(FLUSH_S)


def parse_headers(text: str) -> dict[str, str]:
    """Headers as OpenTelemetry writes them, percent-encoded.

    >>> parse_headers("Authorization=Basic%20abc==,x-project=demo")
    {'Authorization': 'Basic abc==', 'x-project': 'demo'}
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}

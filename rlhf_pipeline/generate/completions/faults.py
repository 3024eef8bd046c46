"""Classifies faults of calls: retried, permanent, or closing the provider."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rlhf_pipeline.core.protocols import Billing, Outcome
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions.base import Reply

PARTIAL = 20_000  # characters kept of an interrupted text
# longest plausible wait in seconds: more is an error, and may exceed the calendar
LONGEST_WAIT_S = 366 * 86_400.0
DATE_SLACK_S = 1.0  # an HTTP date has whole seconds, so a call could come up to one second early


@dataclass(frozen=True, slots=True)
class FaultKind:
    """How a fault is handled and what it may have cost. `is_fault` counts against the item's
    attempts, `closes` ends the provider.
    """

    outcome: Outcome
    billing: Billing
    means: str
    is_fault: bool = True
    closes: bool = False


# Every end of a call except success; the name appears in the ledger, in the item's row
# and in the asset's metadata.
KINDS: dict[str, FaultKind] = {
    "rate_limited": FaultKind(
        "retryable", "none", "429: too many requests or tokens", is_fault=False
    ),
    "overloaded": FaultKind(
        "retryable", "none", "529, or an equivalent error: the provider is full", is_fault=False
    ),
    "server_error": FaultKind("retryable", "none", "any other 5xx, 408 and 409"),
    "unreachable": FaultKind("retryable", "none", "no connection: nothing was sent"),
    "timeout": FaultKind("retryable", "unknown", "no answer in time"),
    "dropped": FaultKind("retryable", "unknown", "the connection ended before an answer came"),
    "cut": FaultKind(
        "retryable", "unknown", "a stream that broke off, or ended without a finish reason"
    ),
    "garbled": FaultKind(
        "retryable", "unknown", "an answer that is no completion, such as the page of a proxy"
    ),
    "cancelled": FaultKind(
        "retryable", "unknown", "the run was ended during the call", is_fault=False
    ),
    "lost": FaultKind(
        "terminal",
        "unknown",
        "the worker ended during the call, or before it",
    ),
    "bad_request": FaultKind(
        "terminal", "none", "400, 413, 422 and any other 4xx: refused as it is"
    ),
    "content_filter": FaultKind("terminal", "metered", "stopped by the provider's filter"),
    "refusal": FaultKind("terminal", "metered", "the model refused"),
    "empty": FaultKind("terminal", "metered", "an answer without text, such as reasoning alone"),
    "not_text": FaultKind(
        "terminal", "unknown", "an answer with a part that is not text, such as an image"
    ),
    "unstorable": FaultKind(
        "terminal", "metered", "a text with NUL or a lone surrogate, which databases refuse"
    ),
    "backend_error": FaultKind("terminal", "none", "a backend on this machine reported an error"),
    "wrong_key": FaultKind("terminal", "none", "401 or 403: the key was refused", closes=True),
    "unknown_model": FaultKind("terminal", "none", "404: no such model or address", closes=True),
    "no_credit": FaultKind(
        "terminal", "none", "402, or 429 insufficient_quota: the account is empty", closes=True
    ),
    "long_wait": FaultKind(
        "retryable",
        "none",
        "the provider asked for a longer wait than a run makes: it is paused",
        is_fault=False,
        closes=True,
    ),
    "budget": FaultKind(
        "terminal", "none", "not called: the call could exceed a budget", closes=True
    ),
    "unavailable": FaultKind(
        "terminal",
        "none",
        "not called: the provider was closed before",
        closes=True,
    ),
}
# possibly not from the provider itself
NO_ANSWER = {"unreachable", "timeout", "dropped", "garbled", "cut"}
NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached", "billing_error"}
OVERLOADED = {"overloaded_error", "engine_overloaded"}
# The statuses of errors by their words, for those that come within an answer whose own status was
# 200.
STATUSES = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "authenticationerror": 401,
    "billing_error": 402,
    "permission_error": 403,
    "permissiondeniederror": 403,
    "not_found_error": 404,
    "notfounderror": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "ratelimiterror": 429,
    "insufficient_quota": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
    "engine_overloaded": 529,
}


def fault(kind: str, error: str, **more: Any) -> Reply:
    """The Reply of a kind; `billing` and `wait_s` override its defaults."""
    defaults = KINDS[kind]
    return Reply(
        **{
            "outcome": defaults.outcome,
            "kind": kind,
            "billing": defaults.billing,
            "error": error,
            "is_fault": defaults.is_fault,
            "closes": defaults.closes,
            **more,
        }
    )


CURES = {
    "wrong_key": "Set api_key (RLHF_API_KEY) to a key that may use this model",
    "no_credit": "The account of api_key (RLHF_API_KEY) has no credit left: top it up or use "
    "another",
}


def http_fault(
    status: int, message: str, code: str | None, headers: Mapping[str, str], model: str, **more: Any
) -> Reply:
    """The Reply of an HTTP status of 300 and above, with the cure if every call would fail."""
    kind = _classify_status(status, code)
    error = f"HTTP {status}: {message}"
    if KINDS[kind].closes:
        cure = (
            f"Correct the setting api_model (RLHF_API_MODEL), now {model!r}, or base_url "
            "(RLHF_BASE_URL)"
        )
        error += f". {CURES.get(kind, cure)}."
    return fault(kind, error, status=status, wait_s=waiting_time(headers, utc_now()), **more)


# Of messages about a parameter that the model does not take, whatever its value.
UNSUPPORTED = re.compile(
    r"not support|unsupported|not permitted|extra_forbidden|unrecognized|unexpected|unknown "
    r"(?:parameter|field|name)|deprecated|only the default",
    re.IGNORECASE,
)
QUOTED = r"['\"`](\w+)['\"`]"


def refused_parameter(error: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """The name of the parameter that a provider refuses, and the one that it wants instead.

    >>> refused_parameter({"param": "seed", "message": "Unsupported parameter: 'seed'"})
    ('seed', None)
    >>> refused_parameter({"message": "'n' is unsupported. Use 'm' instead."})
    ('n', 'm')
    >>> refused_parameter({"param": "n", "message": "n is too large"}) is None
    True
    """
    message = str(error)
    if not UNSUPPORTED.search(message):
        return None
    detail = error.get("detail")
    places = (
        [fault.get("loc") for fault in detail if isinstance(fault, dict)]
        if isinstance(detail, list)
        else []
    )
    names = [error.get("param"), *(place[-1] for place in places if place)]
    names += re.findall(QUOTED, str(error.get("message", "")))
    instead = re.search(rf"[Uu]se {QUOTED} instead", message)
    name = next((name for name in names if isinstance(name, str)), None)
    return None if name is None else (name, instead and instead[1])


def describe_empty(model: str, reason: str, reasoning: str | None) -> str:
    """Why an answer has no text, and what to do."""
    content = "an empty completion" if reasoning is None else "reasoning and no answer"
    cure = (
        "It reached the limit of tokens: raise max_new_tokens"
        if reason == "length"
        else "Ask it again with another seed or prompt"
    )
    return f"{model} sent {content} (finish reason {reason}). {cure}."


def status_of(error: Mapping[str, Any]) -> int:
    """The HTTP status that fits an error object within an answer.

    >>> status_of({"code": 429}), status_of({"message": "oops"})
    (429, 500)
    >>> status_of({"type": "invalid_request_error", "code": None})
    400
    """
    for status in (error.get("code"), error.get("type")):
        if isinstance(status, int) and 400 <= status < 600:
            return status
        if isinstance(status, str) and status.lower() in STATUSES:
            return STATUSES[status.lower()]
    return 500


def _classify_status(status: int, code: str | None) -> str:
    if code in NO_CREDIT or status == 402:
        return "no_credit"
    if code in OVERLOADED or status == 529:
        return "overloaded"
    if status in (408, 409) or status >= 500:
        return "server_error"
    kinds = {401: "wrong_key", 403: "wrong_key", 404: "unknown_model", 429: "rate_limited"}
    return kinds.get(status, "bad_request")


def waiting_time(headers: Mapping[str, str], now: datetime) -> float | None:
    """Waiting time in seconds that a provider asks for: `retry-after-ms`, or `Retry-After` in
    seconds or as a date; None without one. A date is compared with the `Date` of the answer if
    there is one, because this machine's clock may have jumped.

    >>> now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> waiting_time({"retry-after-ms": "1500", "retry-after": "9"}, now)
    1.5
    >>> waiting_time({"retry-after": "Thu, 01 Jan 2026 12:00:03 GMT"}, now)
    4.0
    >>> waiting_time({"retry-after": "soon"}, now) is None
    True
    """
    retry_after = headers.get("retry-after", "")
    for text, unit in ((headers.get("retry-after-ms", ""), 1000), (retry_after, 1)):
        try:
            seconds = float(text) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return min(seconds, LONGEST_WAIT_S)
    until = _parse_http_date(retry_after)
    if until is None:
        return None
    told_at = _parse_http_date(headers.get("date", "")) or now
    return min(LONGEST_WAIT_S, max(0.0, (until - told_at).total_seconds()) + DATE_SLACK_S)


def _parse_http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

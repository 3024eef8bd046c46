"""Classifies faults of calls: retried, permanent, or closing the provider."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rlhf_pipeline.completions.base import Reply
from rlhf_pipeline.completions.redaction import redact
from rlhf_pipeline.protocols import Billing, Outcome
from rlhf_pipeline.records import utc_now

PARTIAL = 20_000  # characters kept of an interrupted text
# longest plausible wait in seconds: more is an error, and may exceed the calendar
LONGEST_WAIT_S = 366 * 86_400.0
# a number from here on is a Unix time (2001), not a waiting time of thirty years
MOMENTS = (1e9, 1e10)
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
    "conflict": FaultKind("retryable", "none", "409: another request holds a lock"),
    "server_error": FaultKind("retryable", "none", "any other 5xx, and 408"),
    "unreachable": FaultKind("retryable", "none", "no connection: nothing was sent"),
    "timeout": FaultKind("retryable", "unknown", "no answer in time"),
    "dropped": FaultKind("retryable", "unknown", "the connection ended before an answer came"),
    "cut": FaultKind(
        "retryable", "unknown", "an interrupted answer, or a stream without a finish reason"
    ),
    "html": FaultKind("retryable", "unknown", "a web page instead of an answer, as proxies send"),
    "invalid_utf8": FaultKind("retryable", "unknown", "bytes that are not UTF-8"),
    "garbled": FaultKind("retryable", "unknown", "no JSON, or JSON of another form"),
    "cancelled": FaultKind(
        "retryable", "unknown", "the run was ended during the call", is_fault=False
    ),
    "lost": FaultKind(
        "terminal",
        "unknown",
        "the worker ended during the call, or before it; or the provider does not list the batch",
    ),
    "bad_request": FaultKind(
        "terminal", "none", "400, 413, 422 and any other 4xx: refused as it is"
    ),
    "content_filter": FaultKind("terminal", "metered", "stopped by the provider's filter"),
    "refusal": FaultKind("terminal", "metered", "the model refused"),
    "empty": FaultKind("terminal", "metered", "an answer without text"),
    "oversized": FaultKind("terminal", "unknown", "an answer of a megabyte or more"),
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
        "the provider asked for a longer wait than a run makes: it is parked",
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
NO_ANSWER = {"unreachable", "timeout", "dropped", "html", "garbled", "invalid_utf8", "cut"}
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
    known = KINDS[kind]
    return Reply(
        **{
            "outcome": known.outcome,
            "kind": kind,
            "billing": known.billing,
            "error": error,
            "is_fault": known.is_fault,
            "closes": known.closes,
            **more,
        }
    )


def http_fault(
    status: int, said: str, code: str | None, headers: Mapping[str, str], now: datetime
) -> Reply:
    """The Reply of an HTTP status of 400 and above."""
    wait_s = waiting_time(headers, now)
    quota_s = seconds_until_quota_resets(headers, now)
    return fault(
        _classify_status(status, code),
        f"HTTP {status}: {said}",
        status=status,
        wait_s=quota_s if wait_s is None else wait_s,
        is_quota_used=quota_s is not None,
    )


CURES = {
    "wrong_key": "Set api_key (RLHF_API_KEY) to a key that may use this model",
    "no_credit": "The account of api_key (RLHF_API_KEY) has no credit left: top it up or use "
    "another",
}


def provider_fault(
    model: str,
    where: str,
    status: int,
    headers: Mapping[str, str],
    error: Mapping[str, Any],
    secrets: Sequence[str],
    **begun: Any,
) -> Reply:
    """The Reply to an error object of a provider, with the cure if every call would fail; `begun`
    is what came before it.
    """
    # `code` is more specific than `type` if it is a word.
    word = next(
        (word for word in (error.get("code"), error.get("type")) if isinstance(word, str) and word),
        None,
    )
    reply = http_fault(
        status,
        f"{where}: {redact(error.get('message') or dict(error), *secrets)}",
        word,
        headers,
        utc_now(),
    )
    if reply.closes:
        cure = (
            f"Correct the setting api_model (RLHF_API_MODEL), now {model!r}, or base_url "
            "(RLHF_BASE_URL)"
        )
        reply = replace(reply, error=f"{reply.error}. {CURES.get(reply.kind, cure)}.")
    return replace(reply, **begun)


def status_of(error: Mapping[str, Any]) -> int:
    """The HTTP status that fits an error object within an answer.

    >>> status_of({"code": 429}), status_of({"message": "oops"})
    (429, 500)
    >>> status_of({"type": "invalid_request_error", "code": None})
    400
    """
    for said in (error.get("code"), error.get("type")):
        number = _parse_number(said) if isinstance(said, str) else said
        if isinstance(number, int | float) and 400 <= number < 600:
            return int(number)
        if isinstance(said, str) and said.lower() in STATUSES:
            return STATUSES[said.lower()]
    return 500


def _classify_status(status: int, code: str | None) -> str:
    if code in NO_CREDIT or status == 402:
        return "no_credit"
    if code in OVERLOADED or status == 529:
        return "overloaded"
    if status == 429:
        return "rate_limited"
    if status in (401, 403):
        return "wrong_key"
    if status == 404:
        return "unknown_model"
    if status == 409:
        return "conflict"
    if status == 408 or status >= 500:
        return "server_error"
    return "bad_request"


def waiting_time(headers: Mapping[str, str], now: datetime) -> float | None:
    """Waiting time in seconds that a provider asks for: `retry-after-ms`, or `Retry-After` in
    seconds or as a date; None without one. A date is compared with the `Date` of the answer if
    there is one, because this machine's clock may have jumped. So is a number that can only be a
    Unix time.

    >>> now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> waiting_time({"retry-after-ms": "1500", "retry-after": "9"}, now)
    1.5
    >>> waiting_time({"retry-after": "Thu, 01 Jan 2026 12:00:03 GMT"}, now)
    4.0
    >>> waiting_time({"retry-after": "soon"}, now) is None
    True
    """
    told_at = _parse_http_date(headers.get("date", "")) or now
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _normalise_wait(milliseconds / 1000, told_at)
    said = headers.get("retry-after")
    seconds = _parse_number(said)
    if seconds is not None:
        return _normalise_wait(seconds, told_at)
    until = _parse_http_date(said or "")
    if until is None:
        return None
    return min(LONGEST_WAIT_S, max(0.0, (until - told_at).total_seconds()) + DATE_SLACK_S)


def _normalise_wait(seconds: float, told_at: datetime) -> float:
    """Convert a wait that is a Unix time in seconds or milliseconds, which some servers send.

    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> _normalise_wait(1767268830, noon), _normalise_wait(1767268830_000, noon)
    (31.0, 31.0)
    """
    for moment in (seconds, seconds / 1000):
        if MOMENTS[0] <= moment < MOMENTS[1]:
            return max(0.0, moment - told_at.timestamp()) + DATE_SLACK_S
    return min(seconds, LONGEST_WAIT_S)


def _parse_number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _parse_http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_until_quota_resets(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until the quota resets, if the headers of an answer say that none remains; else None.

    >>> headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"}
    >>> seconds_until_quota_resets(headers, datetime(2026, 1, 1, tzinfo=UTC))
    90.0
    """
    waits = []
    for what in ("requests", "tokens"):
        for left, reset in (
            (f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}"),
            (f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset"),
        ):
            if (
                _parse_number(headers.get(left)) == 0
                and (wait := _seconds_until(headers.get(reset, ""), now)) is not None
            ):
                waits.append(wait)
    return max(waits, default=None)


def _seconds_until(text: str, now: datetime) -> float | None:
    """`6m0s`, `20ms`, `1.5` or a moment, in ISO or counted from 1970, as seconds from now."""
    if (seconds := _parse_number(text)) is not None:
        return _normalise_wait(seconds, now)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
    if parts and "".join(n + unit for n, unit in parts) == text:
        return min(LONGEST_WAIT_S, sum(float(n) * _UNITS[unit] for n, unit in parts))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return min(LONGEST_WAIT_S, max(0.0, (moment - now).total_seconds())) if moment.tzinfo else None

"""Parses provider responses; malformed ones become typed faults."""

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from rlhf_pipeline.completions.base import OnText, Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.redaction import address_of, redact
from rlhf_pipeline.protocols import Billing

if TYPE_CHECKING:
    import httpx2

LONGEST_ANSWER = 1_000_000  # bytes
LONGEST_STREAM = 64 * LONGEST_ANSWER  # each token arrives in an event of hundreds of bytes
CUT_OFF = "without sending complete message body"  # message of httpx2 for an interrupted answer


class TextCollector:
    """Collects the pieces of a streamed text in `partial` and passes them on. Raises
    UnreadableResponse beyond the size limit of an answer.
    """

    def __init__(self, on_text: OnText, partial: list[str]) -> None:
        self._on_text = on_text
        self._partial = partial
        self._n_bytes = 0

    def __call__(self, piece: str) -> None:
        self._n_bytes += len(piece.encode("utf-8", "surrogatepass"))
        if self._n_bytes >= LONGEST_ANSWER:
            raise UnreadableResponse(
                "oversized",
                f"streamed {self._n_bytes:,} bytes of text; {LONGEST_ANSWER:,} are the most that "
                "is taken. Lower max_tokens.",
            )
        self._partial.append(piece)
        self._on_text(piece)


class UnreadableResponse(ValueError):
    """A stream that goes wrong before its end; `kind` is one of `faults.KINDS`."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind = kind


@cache
def transport_errors() -> tuple[type[Exception], ...]:
    """Errors that can end a call before, within or instead of an answer."""
    import httpx2

    return (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError)


async def read_remaining(answer: Any) -> bytes:
    """The body of a refusal, read if necessary; empty if reading fails."""
    try:
        return bytes(await answer.aread())
    except transport_errors():
        return b""


def transport_fault(
    cause: BaseException, where: str, secrets: Sequence[str], *, partial: str | None = None
) -> Reply:
    """The Reply to a call that ended in an error of the transport."""
    import httpx2

    if isinstance(cause, UnreadableResponse):
        return fault(cause.kind, f"{where} {redact(cause, *secrets)}", partial=partial)
    said = redact(f"{type(cause).__name__}: {cause}", *secrets)
    if partial is not None:
        return fault("cut", f"{where} broke off its answer ({said})", partial=partial)
    if isinstance(
        cause,
        httpx2.ConnectError
        | httpx2.ConnectTimeout
        | httpx2.PoolTimeout
        | httpx2.UnsupportedProtocol
        | httpx2.ProxyError,
    ):
        return fault("unreachable", f"{where} cannot be reached ({said})")
    if isinstance(cause, httpx2.TimeoutException):
        return fault("timeout", f"{where} gave no answer in time ({said})")
    if isinstance(cause, httpx2.LocalProtocolError):
        return fault(
            "wrong_key",
            f"No request can be made for {where} ({said}). Set api_key (RLHF_API_KEY) to the key "
            "alone, on one line.",
        )
    if isinstance(cause, httpx2.RemoteProtocolError) and CUT_OFF in str(cause):
        return fault("cut", f"{where} broke off its answer ({said})")
    if isinstance(cause, httpx2.TransportError):
        return fault("dropped", f"{where} ended the connection before it answered ({said})")
    return fault("garbled", f"{where} sent what cannot be read ({said})")


def parse_answer(
    content: bytes, content_type: str, where: str, secrets: Sequence[str]
) -> dict[str, Any] | Reply:
    """Parse the JSON object of an answer, or return its fault."""
    if len(content) >= LONGEST_ANSWER:
        return fault(
            "oversized",
            f"{where} sent {len(content):,} bytes; {LONGEST_ANSWER:,} are the most that is taken. "
            "Lower max_tokens.",
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as cause:
        return fault(
            "invalid_utf8",
            f"{where} sent bytes that are not UTF-8 ({cause.reason} at byte {cause.start})",
        )
    if "html" in content_type or text.lstrip()[:15].lower().startswith(("<!doctype html", "<html")):
        return fault(
            "html", f"{where} sent a web page instead of a completion: {redact(text, *secrets)!r}"
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as cause:
        return fault("garbled", f"{where} sent incomplete JSON ({redact(cause, *secrets)})")
    if not isinstance(value, dict):
        return fault("garbled", f"{where} did not send a completion but {redact(text, *secrets)!r}")
    return value


async def parse_events(
    chunks: AsyncIterator[bytes], secrets: Sequence[str] = ()
) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events. Raises UnreadableResponse for invalid
    events and beyond the size limit.
    """
    rest, n_bytes = b"", 0
    async for chunk in chunks:
        n_bytes += len(chunk)
        if n_bytes >= LONGEST_STREAM:
            raise UnreadableResponse(
                "oversized",
                f"streamed {n_bytes:,} bytes; {LONGEST_STREAM:,} are the most that is taken. Lower "
                "max_tokens.",
            )
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if (event := _parse_event(line, secrets)) is not None:
                yield event
    if (event := _parse_event(rest, secrets)) is not None:
        yield event


def _parse_event(line: bytes, secrets: Sequence[str]) -> dict[str, Any] | None:
    """Parse one line of a stream; None for a line without data."""
    try:
        text = line.decode("utf-8").strip()
    except UnicodeDecodeError as cause:
        raise UnreadableResponse(
            "invalid_utf8", f"streamed bytes that are not UTF-8 ({cause.reason})"
        ) from None
    if not text.startswith("data:") or (data := text[5:].strip()) in ("", "[DONE]"):
        return None
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise UnreadableResponse(
            "garbled", f"streamed incomplete JSON ({redact(cause, *secrets)})"
        ) from None
    if not isinstance(event, dict):
        raise UnreadableResponse(
            "garbled", f"streamed {redact(data, *secrets)!r}, which is not an event"
        )
    return event


def find_error(found: object) -> dict[str, Any] | None:
    """The error object of an answer or event, in either of the common forms; None if it is not an
    error.

    >>> find_error({"error": "no"}), find_error({"object": "error", "message": "no"})["message"]
    ({'message': 'no'}, 'no')
    >>> print(find_error({"error": None, "choices": []}))
    None
    """
    if not isinstance(found, dict):
        return None
    error = found if found.get("object") == "error" else found.get("error")
    if isinstance(error, str) and error:
        return {"message": error}
    return error if isinstance(error, dict) and error else None


def open_client(
    base_url: str, timeout_s: float, headers: Mapping[str, str] | None = None
) -> "httpx2.AsyncClient":
    """A client for `address_of(base_url)`. User, password and query of the URL are sent with every
    request and never logged.
    """
    import httpx2

    url = httpx2.URL(base_url)
    # added only once, however often this runs
    logging.getLogger("httpx2").addFilter(_strip_query)
    return httpx2.AsyncClient(
        auth=(url.username, url.password) if url.userinfo else None,
        params=url.params,
        headers=headers,
        timeout=timeout_s,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        follow_redirects=False,
    )


def _strip_query(record: logging.LogRecord) -> bool:
    """Remove the query from logged addresses: httpx2 logs each address, and some providers take
    their key in the query.
    """
    import httpx2

    if isinstance(record.args, tuple):
        record.args = tuple(
            address_of(str(arg)) if isinstance(arg, httpx2.URL) else arg for arg in record.args
        )
    return True


def get_object(event: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A named object of an event, or {} if it is absent. Raises UnreadableResponse for another
    type.
    """
    found = event.get(name)
    if found is not None and not isinstance(found, dict):
        raise UnreadableResponse("garbled", f"streamed an event whose {name} is not an object")
    return found or {}


def get_text(event: Mapping[str, Any], name: str) -> str:
    """A named string of an event, or "" if it is absent. Raises UnreadableResponse for another
    type.
    """
    found = event.get(name)
    if found is not None and not isinstance(found, str):
        raise UnreadableResponse("garbled", f"streamed an event whose {name} is not a string")
    return found or ""


def build_reply(
    text: str,
    reason: str,
    n_prompt_tokens: int,
    n_tokens: int,
    status: int,
    model: str,
    *,
    is_told: bool,
) -> Reply:
    """The Reply to a whole answer: its text, unless there is none that could be read or kept.
    `is_told`: the provider counted tokens.
    """
    counted: dict[str, Any] = {
        "n_prompt_tokens": n_prompt_tokens,
        "n_tokens": n_tokens,
        "status": status,
    }
    # Without a token count the bill is unknown.
    counted["billing"] = "metered" if is_told else "unknown"
    if reason == "content_filter":
        return fault(
            "content_filter",
            f"{model} stopped by its content filter.",
            finish_reason=reason,
            **counted,
        )
    if not text.strip():
        return fault(
            "empty", f"{model} sent an empty completion (finish reason {reason}).", **counted
        )
    if "\x00" in text or not _is_encodable(text):
        return fault(
            "unstorable",
            f"{model} sent a text with NUL or a lone surrogate, which databases refuse.",
            **counted,
        )
    return Reply(outcome="succeeded", kind="succeeded", text=text, finish_reason=reason, **counted)


def billing_of(usage: object) -> Billing:
    """Whether the bill of an answer is known: it is unknown without a token count."""
    return "metered" if isinstance(usage, dict) and usage else "unknown"


def partial_reply_fields(
    partial: Sequence[str], usage: object, counts: tuple[str, str]
) -> dict[str, Any]:
    """Fields of the Reply to a stream that ended in an error: billed as counted by then, else
    unknown. A stream that begins with its error is free; any other made something, perhaps without
    visible text.
    """
    counted = usage if isinstance(usage, dict) else {}
    n_prompt, n = (parse_count(counted.get(name)) for name in counts)
    return {
        "partial": "".join(partial) or None,
        "billing": billing_of(usage),
        "n_prompt_tokens": n_prompt,
        "n_tokens": n,
    }


def error_billing_fields(usage: object, counts: tuple[str, str]) -> dict[str, Any]:
    """Billing of an answer that is only an error: nothing, unless it contains a token count."""
    return partial_reply_fields((), usage, counts) if billing_of(usage) == "metered" else {}


def parse_count(value: object) -> int:
    """A number of tokens as reported; 0 for anything else."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
        else 0
    )


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

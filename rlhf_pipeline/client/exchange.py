"""What both clients do around a request: the address, the token, when to ask again, which error an
answer is. Knows no transport's waiting.
"""

import random
from collections.abc import Iterator
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from rlhf_pipeline.client.answers import ProblemDocument
from rlhf_pipeline.client.calls import Call
from rlhf_pipeline.errors import (
    ApiError,
    ConfigurationError,
    ConflictingRequest,
    InvalidRequest,
    MissingResource,
    NotAuthorised,
    ServerUnavailable,
    TooManyRequests,
)

T = TypeVar("T")

API = "/api/v1/"
TIMEOUT_S = 30.0
TRIES = 6
LONGEST_WAIT_S = 5.0
ERRORS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: NotAuthorised,
    403: NotAuthorised,
    404: MissingResource,
    409: ConflictingRequest,
    412: ConflictingRequest,
    413: InvalidRequest,
    422: InvalidRequest,
    428: InvalidRequest,
    429: TooManyRequests,
}
DOWN = (502, 503, 504)


def base_url(url: str) -> httpx.URL:
    """Raises ConfigurationError for what is no address of a server."""
    try:
        parsed = httpx.URL(url.rstrip("/") + API)
    except httpx.InvalidURL as cause:
        raise ConfigurationError(
            f"{url!r} is no address of a server: {cause}. Write http://127.0.0.1:8080."
        ) from cause
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(f"{url!r} is no address of a server. Write http://127.0.0.1:8080.")
    return parsed


def build_request(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    path = f"/{call.path}"  # without the slash `votes:batch` would be a URL of scheme `votes`
    return client.build_request(
        call.method, path, params=dict(call.params), json=call.body, headers=call.headers()
    )


def may_repeat(call: Call[Any]) -> bool:
    """Whether doing it twice is doing it once: reading is, and what carries a key."""
    return call.method == "GET" or call.key is not None


def retry_delay_s(
    call: Call[Any], response: httpx.Response, longest_s: float = LONGEST_WAIT_S
) -> float | None:
    """Seconds after which to send the same again, under the same key; None where the answer
    stands.
    """
    if not may_repeat(call):
        return None
    asked = response.headers.get("retry-after")
    twin_is_at_work = response.status_code == 409 and asked is not None
    if response.status_code not in DOWN and not twin_is_at_work:
        return None
    try:
        seconds = float(asked) if asked is not None else 0.0
    except ValueError:  # a date: the server is down for longer than anybody waits here
        return None
    return seconds if seconds <= longest_s else None


def backoff_delays(random_: random.Random, longest_s: float = LONGEST_WAIT_S) -> Iterator[float]:
    """Growing, and different for everybody who waits for the same server."""
    for n in range(TRIES - 1):
        yield min(longest_s, 0.1 * 2**n) * (0.5 + random_.random())


def parse_answer(call: Call[T], response: httpx.Response) -> T:
    """Raises the ApiError that the answer is."""
    if not response.is_success:
        raise build_error(response)
    try:
        return call.read(_parse_document(response))
    except (ValueError, KeyError, TypeError, ValidationError) as cause:
        raise ServerUnavailable(
            f"{call.method} {call.path}: the answer is not of this API ({type(cause).__name__}: "
            f"{cause}). Is the address that of `rlhf serve`, and the client of its version?",
            status=response.status_code,
        ) from cause


def _parse_document(response: httpx.Response) -> Any:
    """The answer's JSON, its ETag among its fields."""
    document = response.json() if response.content else None
    etag = response.headers.get("etag")
    return (
        document if etag is None or not isinstance(document, dict) else {**document, "etag": etag}
    )


def build_error(response: httpx.Response) -> ApiError:
    try:
        problem = ProblemDocument.model_validate_json(response.content)
    except ValidationError:
        problem = ProblemDocument(detail=response.text[:300])
    kind = ERRORS.get(
        response.status_code, ServerUnavailable if response.status_code >= 500 else ApiError
    )
    fields = tuple((field.path, field.message) for field in problem.errors)
    said = problem.detail or problem.title or response.reason_phrase
    name = problem.type.removeprefix("urn:rlhf:problem:")
    return kind(
        f"{response.status_code}: {said}",
        status=response.status_code,
        kind=None if name == "about:blank" else name,
        fields=fields,
    )


def build_unreachable_error(url: httpx.URL, cause: Exception) -> ServerUnavailable:
    where = f"{url.scheme}://{url.netloc.decode()}"
    return ServerUnavailable(
        f"{where} does not answer: {cause or type(cause).__name__}. Start it with `rlhf serve`, or "
        "correct the address."
    )

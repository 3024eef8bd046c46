"""What both clients share around a request: address, token, retries and errors."""

import random
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from rlhf_pipeline.api_types.base import ProblemDocument
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
M = TypeVar("M", bound=Callable[..., Any])

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
NO_TYPE = "about:blank"  # RFC 9457: the status alone says what happened


def document_method(method: M, make: Callable[..., Call[Any]]) -> M:
    """Gives a method of a client the name, docstring and parameters of the function of `calls` that
    makes its call.
    """
    method.__name__ = make.__name__
    method.__doc__ = make.__doc__
    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    parameters = [own, *signature(make).parameters.values()]
    setattr(method, "__signature__", Signature(parameters))  # noqa: B010 (mypy knows no such attribute)
    return method


def base_url(url: str) -> httpx.URL:
    """Raises ConfigurationError for an address that is not an HTTP URL."""
    try:
        parsed = httpx.URL(url.rstrip("/") + API)
    except httpx.InvalidURL as cause:
        raise ConfigurationError(
            f"Invalid server address {url!r}: {cause}. Write it as http://127.0.0.1:8080."
        ) from cause
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(
            f"Invalid server address {url!r}. Write it as http://127.0.0.1:8080."
        )
    return parsed


def token_headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def build_request(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    path = f"/{call.path}"  # without the slash `votes:batch` would be a URL of scheme `votes`
    return client.build_request(
        call.method, path, params=dict(call.params), json=call.body, headers=call.headers()
    )


def may_repeat(call: Call[Any]) -> bool:
    """Whether repeating the call is safe: it only reads, or it carries an idempotency key."""
    return call.method == "GET" or call.key is not None


def retry_delay_s(
    call: Call[Any], response: httpx.Response, longest_s: float = LONGEST_WAIT_S
) -> float | None:
    """Seconds after which to repeat the call under the same key; None if the answer is final."""
    if not may_repeat(call):
        return None
    asked = response.headers.get("retry-after")
    first_is_in_progress = response.status_code == 409 and asked is not None
    if response.status_code not in DOWN and not first_is_in_progress:
        return None
    try:
        seconds = float(asked) if asked is not None else 0.0
    except ValueError:  # a date: the server is down for longer than a client waits
        return None
    return seconds if seconds <= longest_s else None


def backoff_delays(random_: random.Random, longest_s: float = LONGEST_WAIT_S) -> Iterator[float]:
    """Growing delays with jitter, so that waiting clients do not return at the same moment."""
    for n in range(TRIES - 1):
        yield min(longest_s, 0.1 * 2**n) * (0.5 + random_.random())


def parse_answer(call: Call[T], response: httpx.Response) -> T:
    """Raises the ApiError that matches an unsuccessful answer."""
    if not response.is_success:
        raise build_error(response)
    try:
        return call.read(response.json() if response.content else None)
    except (ValueError, KeyError, TypeError, ValidationError) as cause:
        raise ServerUnavailable(
            f"{call.method} {call.path}: the answer does not match this API "
            f"({type(cause).__name__}: {cause}). Check that the address is that of `rlhf serve` "
            "and that client and server have the same version.",
            status=response.status_code,
        ) from cause


def build_error(response: httpx.Response) -> ApiError:
    try:
        problem = ProblemDocument.model_validate_json(response.content)
    except ValidationError:
        problem = ProblemDocument(
            type=NO_TYPE, title="", status=response.status_code, detail=response.text[:300]
        )
    kind = ERRORS.get(
        response.status_code, ServerUnavailable if response.status_code >= 500 else ApiError
    )
    fields = tuple((field.path, field.message) for field in problem.errors)
    message = problem.detail or problem.title or response.reason_phrase
    name = problem.type.removeprefix("urn:rlhf:problem:")
    return kind(
        f"{response.status_code}: {message}",
        status=response.status_code,
        kind=None if name == NO_TYPE else name,
        fields=fields,
    )


def build_unreachable_error(url: httpx.URL, cause: Exception) -> ServerUnavailable:
    where = f"{url.scheme}://{url.netloc.decode()}"
    return ServerUnavailable(
        f"{where} does not answer: {cause or type(cause).__name__}. Start it with `rlhf serve`, or "
        "correct the address."
    )

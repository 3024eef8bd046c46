"""Middleware: hosts, origins, body sizes and security headers; counts of requests."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from time import perf_counter, time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_pipeline.watch.telemetry.prometheus import RequestCounts
from rlhf_pipeline.web.auth import SESSION
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import PREFIX

VOTES = {f"{PREFIX}/votes", f"{PREFIX}/votes:batch"}

if TYPE_CHECKING:
    from rlhf_pipeline.watch.telemetry.otlp import Tracer


MAX_BODY_BYTES = 2_000_000
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # under no-referrer browsers send their forms with `Origin: null`
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
NO_STORE = (b"cache-control", b"no-store")
# scripts import each other by name, so all must be of one version
REVALIDATE = (b"cache-control", b"no-cache")


class Guard:
    """Refuses unknown hosts, requests of other sites with a cookie, and large bodies; adds the
    security headers.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], secure: bool):
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._headers = (
            [*HEADERS, (b"strict-transport-security", b"max-age=31536000")]
            if secure
            else list(HEADERS)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_static = scope["path"].startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                route_headers = list(message.get("headers", ()))
                names = {name for name, _ in route_headers}  # a route may set a policy of its own
                headers = [
                    *route_headers,
                    *(header for header in self._headers if header[0] not in names),
                ]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(REVALIDATE if is_static else NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal.response(scope["path"])(scope, receive, send_with_headers)
            return
        await self._app(scope, _limit_body(receive), send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if host_name(host) not in self._hosts:
            return Problem(
                400,
                f"Unknown host {host_name(host)[:100]!r}. Use the configured address of this "
                "server (RLHF_WEB_URL).",
                kind="unknown_host",
            )
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
            return _too_large_problem()
        if scope["method"] not in SAFE_METHODS and _is_foreign(headers, host):
            return Problem(
                403,
                "The request comes from another site. Send it from a page of this site, or with a "
                "token.",
                kind="foreign_origin",
            )
        return None


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether a page of another site may have sent this with the user's cookie. Tokens are sent by
    programs, on purpose.
    """
    if headers.get("authorization"):
        return False
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    if origin is not None:
        return origin.partition("://")[2].lower() != host.lower()
    return SESSION in headers.get("cookie", "")


def _limit_body(receive: Receive) -> Receive:
    """Counts a body without a declared length while it is read."""
    n = 0

    async def receive_limited() -> Message:
        nonlocal n
        message = await receive()
        n += len(message.get("body", b""))
        if n > MAX_BODY_BYTES:
            refusal = _too_large_problem()
            raise HTTPException(refusal.status, refusal.detail, refusal.headers)
        return message

    return receive_limited


def _too_large_problem() -> Problem:
    return Problem(
        413,
        f"The body is larger than {MAX_BODY_BYTES:,} bytes. Split the request.",
        kind="too_large",
        headers={
            "Connection": "close"
        },  # otherwise the rest of the body would be read and discarded
    )


def host_name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.lower().rpartition(":")
    return (
        name
        if colon and (port.isdigit() or port == "") and (":" not in name or name.endswith("]"))
        else host.lower()
    )


class RequestMeter:
    """Middleware: counts by class of status, such as 2xx, and seconds of requests that cast votes.

    Costs microseconds: see bench_votes. The event loop's thread alone counts.
    """

    def __init__(
        self,
        app: ASGIApp,
        counts: RequestCounts,
        tracer: "Tracer | None" = None,
        monotonic: Callable[[], float] = perf_counter,
    ):
        self._app = app
        self._counts = counts
        self._tracer = tracer
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._monotonic()
        is_vote = scope["path"] in VOTES and scope["method"] == "POST"

        is_counted = False

        def count(status: int) -> None:
            nonlocal is_counted
            is_counted = True
            self._counts.by_status[f"{status // 100}xx"] += 1
            if is_vote:
                seconds = self._monotonic() - began
                self._counts.vote_seconds.observe(seconds)
                if self._tracer is not None:
                    now = time()
                    self._tracer.record_request(scope["path"], status, now - seconds, now)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        except Exception:
            if not is_counted:  # Starlette's error handler outside this class sends the 500
                count(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise

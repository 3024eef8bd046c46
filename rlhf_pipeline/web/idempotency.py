"""Answers repeated POST requests with the same Idempotency-Key without repeating the action."""

import json
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rlhf_pipeline.store import StoredResponse
from rlhf_pipeline.store.audit import joint_transaction
from rlhf_pipeline.web.dependencies import RequiredPermission, guard_of, site_of
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

HEADER = "idempotency-key"
MOST = 128  # characters
SECRETS = ("secret", "login_link")  # fields of answers that are shown once and never stored
REPLAYED = {"Idempotency-Replayed": "true"}

P = ParamSpec("P")
T = TypeVar("T", bound=BaseModel)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Filler = Callable[[Site, dict[str, Any]], dict[str, Any]]


@dataclass
class PendingRequest:
    """A request that is being answered under its key."""

    who: str
    key: str
    status: int
    has_answer: bool = False


_PENDING: ContextVar[PendingRequest | None] = ContextVar("pending", default=None)


def keeps_own_key(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a route whose own transaction keeps the key, as votes do."""
    return _mark_unrecorded(endpoint)


def keeps_no_record(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a route that ends its own session or receives a password: nothing of the request is
    stored.
    """
    return _mark_unrecorded(endpoint)


def runs_once(
    *, leaves_out: Sequence[str] = (), fills_in: Filler | None = None
) -> Callable[[Callable[Concatenate[Site, P], T]], Callable[Concatenate[Site, P], T]]:
    """Marks a route whose action, key and answer are stored in one transaction, so that a crash
    cannot separate them.

    Other routes (leases, offers) are safe to repeat; their answers are stored afterwards. Fields in
    `leaves_out` are not stored and filled in again for a repeated request.
    """

    def decorate(endpoint: Callable[Concatenate[Site, P], T]) -> Callable[Concatenate[Site, P], T]:
        @wraps(endpoint)
        def run_once(site: Site, *args: P.args, **kwargs: P.kwargs) -> Any:
            pending = _PENDING.get()
            if pending is None:
                with joint_transaction(site.store.database):
                    return endpoint(site, *args, **kwargs)
            with site.store.requests.answer_transaction(pending.who, pending.key) as keep:
                answer = endpoint(site, *args, **kwargs).model_dump_json()
                keep(
                    StoredResponse(pending.status, _remove_fields(answer, (*SECRETS, *leaves_out)))
                )
            pending.has_answer = True
            response = Response(answer, pending.status, media_type="application/json")
            said = kwargs.get("response")
            if isinstance(said, Response):
                response.headers.update(said.headers)
            return response

        run_once.fills_in = fills_in  # type: ignore[attr-defined]
        return cast("Callable[Concatenate[Site, P], T]", run_once)

    return decorate


class IdempotentRoute(APIRoute):
    """Stores successful answers for a week; a failed request changed nothing, and its key may be
    reused.
    """

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()
        guard = guard_of(self)
        if (
            "POST" not in (self.methods or ())
            or getattr(self.endpoint, "is_unrecorded", False)
            or not isinstance(guard, RequiredPermission)
        ):
            return handler
        fills_in: Filler | None = getattr(self.endpoint, "fills_in", None)

        async def handle_once(request: Request) -> Response:
            key = request.headers.get(HEADER)
            if key is None:
                return await handler(request)
            check_key(key)
            principal = await guard(request)
            site = await site_of(request)
            asked = site.auth.digest(
                request_bytes(
                    request.method, request.url.path, request.url.query, await request.body()
                )
            )
            known = await run_in_threadpool(
                site.store.requests.begin, principal.user_id, key, asked
            )
            if known is not None:
                body = (
                    known.body
                    if fills_in is None
                    else await run_in_threadpool(_fill_in, site, known.body, fills_in)
                )
                return Response(body, known.status, REPLAYED, "application/json" if body else None)
            return await _answer_once(
                site,
                PendingRequest(principal.user_id, key, self.status_code or 200),
                lambda: handler(request),
            )

        return handle_once


async def _answer_once(
    site: Site, pending: PendingRequest, handle: Callable[[], Coroutine[Any, Any, Response]]
) -> Response:
    requests = site.store.requests
    who = pending.who
    key = pending.key
    outer = _PENDING.set(pending)
    try:
        response = await handle()
    except Exception:
        # a request that was executed keeps its answer
        await run_in_threadpool(requests.forget, who, key)
        raise
    finally:
        _PENDING.reset(outer)
    if pending.has_answer:
        return response
    if 200 <= response.status_code < 300:
        await run_in_threadpool(
            requests.finish,
            who,
            key,
            StoredResponse(
                response.status_code, _remove_fields(bytes(response.body).decode(), SECRETS)
            ),
        )
    else:
        await run_in_threadpool(requests.forget, who, key)
    return response


def request_bytes(method: str, path: str, query: str, body: bytes) -> bytes:
    """Bytes whose digest identifies a repeated request."""
    return f"{method} {path}?{query}\n".encode() + body


def check_key(key: str) -> str:
    """Raises Problem 422 for a key that cannot be stored."""
    if not 1 <= len(key) <= MOST or not key.isprintable():
        said = f"must have 1 to {MOST} printable characters; a random UUID is a good one"
        raise Problem(
            422, f"Idempotency-Key {said}.", kind="invalid", errors=[(f"header.{HEADER}", said)]
        )
    return key


def _mark_unrecorded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    endpoint.is_unrecorded = True  # type: ignore[attr-defined]
    return endpoint


def _remove_fields(body: str, names: Sequence[str]) -> str:
    """The answer to store, without secrets and fields that are stored elsewhere."""
    if not any(f'"{name}"' in body for name in names):
        return body
    return json.dumps(
        {name: None if name in names else value for name, value in json.loads(body).items()},
        ensure_ascii=False,
    )


def _fill_in(site: Site, body: str, fills_in: Filler) -> str:
    document = json.loads(body)
    return json.dumps(document | fills_in(site, document), ensure_ascii=False)

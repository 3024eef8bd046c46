"""A POST that is sent again under its Idempotency-Key is answered again, not done again. Knows requests; knows nothing of what they do."""

import hashlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rlhf_pipeline.store import Answer, Store
from rlhf_pipeline.web.dependencies import Needs, guard_of, site_of
from rlhf_pipeline.web.problems import Problem

HEADER = "idempotency-key"
MOST = 128  # characters
SECRETS = ("secret", "login_link")  # fields of answers that are shown once and never kept
REPLAYED = {"Idempotency-Replayed": "true"}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def keeps_own_key(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a route whose own transaction keeps the key, as votes do."""
    endpoint.keeps_own_key = True  # type: ignore[attr-defined]
    return endpoint


class IdempotentRoute(APIRoute):
    """Answers that succeeded are kept for a week; one that failed did nothing, and its key is free again."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()
        guard = guard_of(self)
        if "POST" not in (self.methods or ()) or getattr(self.endpoint, "keeps_own_key", False) or not isinstance(guard, Needs):
            return handler

        async def once(request: Request) -> Response:
            key = request.headers.get(HEADER)
            if key is None:
                return await handler(request)
            check_key(key)
            principal = await guard(request)
            store = (await site_of(request)).store
            asked = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode() + await request.body()).hexdigest()
            return await _answered_once(store, principal.user_id, key, asked, lambda: handler(request))

        return once


async def _answered_once(store: Store, who: str, key: str, asked: str, handle: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
    known = await run_in_threadpool(store.requests.begin, who, key, asked)
    if known is not None:
        return Response(known.body, known.status, REPLAYED, "application/json" if known.body else None)
    is_done = False
    try:
        response = await handle()
        if 200 <= response.status_code < 300:
            answer = Answer(response.status_code, _without_secrets(bytes(response.body)))
            await run_in_threadpool(store.requests.finish, who, key, answer)
            is_done = True
        return response
    finally:
        if not is_done:
            await run_in_threadpool(store.requests.give_up, who, key)


def check_key(key: str) -> str:
    """Raises Problem 422 for a key that cannot be kept."""
    if not 1 <= len(key) <= MOST or not key.isprintable():
        said = f"must have 1 to {MOST} printable characters; a random UUID is a good one"
        raise Problem(422, f"Idempotency-Key {said}.", kind="invalid", errors=[(f"header.{HEADER}", said)])
    return key


def _without_secrets(body: bytes) -> str:
    """An answer as it is kept: tokens and login links stand in no table."""
    if not any(f'"{name}"'.encode() in body for name in SECRETS):
        return body.decode()
    document = json.loads(body)
    return json.dumps({name: None if name in SECRETS else value for name, value in document.items()})

"""A fast path for the route that casts votes.

FastAPI's own work per request (dependencies, parsing, exit stack, thread) costs more than the
transaction of a vote. A valid request skips it; any other is handled by FastAPI, which reports its
errors.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import RequiredPermission, guard_of
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

AT_ONCE = 40  # threads, as many as anyio uses

VoteEndpoint = Callable[[Site, Principal, Any, str], Response]


def fast_path(body: type[BaseModel]) -> Callable[[VoteEndpoint], VoteEndpoint]:
    """Marks an endpoint (site, principal, body, key) of a POST with an Idempotency-Key of its own
    for the fast path.
    """

    def mark(endpoint: VoteEndpoint) -> VoteEndpoint:
        endpoint.busy_body = body  # type: ignore[attr-defined]
        return endpoint

    return mark


class FastPathRoute(APIRoute):
    """Its endpoint is marked with `fast_path` and takes only the arguments it passes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()
        body: type[BaseModel] | None = getattr(self.endpoint, "busy_body", None)
        guard = guard_of(self)
        if body is None or not isinstance(guard, RequiredPermission):
            return usual
        endpoint: VoteEndpoint = self.endpoint
        threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="busy")

        async def handle(request: Request) -> Response:
            key = request.headers.get("idempotency-key", "")
            if (
                not 1 <= len(key) <= 128
                or not key.isprintable()
                or request.headers.get("content-type") != "application/json"
            ):
                return await usual(request)
            principal = await guard(request)
            try:
                sent = body.model_validate_json(await request.body())
            except (ValidationError, Problem):
                return await usual(request)
            site: Site = request.app.state.site
            return await asyncio.get_running_loop().run_in_executor(
                threads, endpoint, site, principal, sent, key
            )

        return handle

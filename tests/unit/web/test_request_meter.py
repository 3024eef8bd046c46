"""What the web app counts of the requests that it answers."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI, Response

from rlhf_pipeline.watch.telemetry.prometheus import RequestCounts
from rlhf_pipeline.web.middleware import RequestMeter


@pytest.mark.parametrize("has_handler", [False, True])
def test_a_bug_in_a_route_counts_as_5xx_with_its_time(has_handler: bool):
    app, counts = FastAPI(), RequestCounts()
    app.add_middleware(RequestMeter, counts=counts)
    if has_handler:
        app.add_exception_handler(Exception, lambda *_: Response(status_code=500))

    @app.post("/api/v1/votes")
    def cast() -> None:
        raise ZeroDivisionError

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/api/v1/votes")

    assert asyncio.run(post()).status_code == 500
    assert counts.by_status == {"5xx": 1}
    assert counts.vote_seconds.n == 1

"""Clients that leave in the middle of a request."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app


def test_a_client_that_disconnects_while_sending_is_not_a_bug(store: Store, settings: Settings):
    app = create_app(settings, store)
    messages = iter(
        [
            {"type": "http.request", "body": b"email=", "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    responses: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "raw_path": b"/login",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/x-www-form-urlencoded"),
        ],
        "http_version": "1.1",
        "server": ("localhost", 80),
        "client": ("192.0.2.1", 1),
        "asgi": {"version": "3.0"},
    }

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        responses.append(message)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(app(scope, receive, send))).result()
    assert responses[0]["status"] == 408

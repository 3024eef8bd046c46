"""Streams of events: how many of them one login may hold open, over the ASGI interface."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.streams import EventStream, Streams


def test_streams_beyond_the_limit_are_refused_until_one_ends():
    streams = Streams(most_per_token=2)
    with streams.open_stream("ann"), streams.open_stream("ann"):
        with pytest.raises(Problem) as refused, streams.open_stream("ann"):
            pass
        assert (refused.value.status, refused.value.kind) == (429, "too_many_streams")
        with streams.open_stream("bob"):
            pass
    with streams.open_stream("ann"), streams.open_stream("ann"):
        pass


def test_stream_counts_as_open_until_its_client_leaves():
    streams = Streams(most_per_token=1)

    async def endless() -> AsyncIterator[str]:
        while True:
            yield "data: 1\n\n"
            await asyncio.sleep(0)

    async def listen() -> None:
        left, sent = asyncio.Event(), list[dict[str, Any]]()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) > 2:
                with pytest.raises(Problem), streams.open_stream("ann"):
                    pass
                left.set()

        await EventStream(streams, "ann", endless)(
            {"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send
        )
        assert sent[0]["status"] == 200
        assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
        with streams.open_stream("ann"):
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(listen())).result()

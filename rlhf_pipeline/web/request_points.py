"""Adds what this process answered to the project's metric points, every few seconds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.store import Store
from rlhf_pipeline.telemetry.prometheus import RequestCounts

EVERY_S = 10.0  # a short transaction each; a kill loses what was counted since the last


class RequestPoints:
    """Stores only what is new, and nothing where nothing is. Several processes may add to the same
    points.
    """

    def __init__(self, store: Store, counts: RequestCounts):
        self._store = store
        self._counts = counts
        self._stored = RequestCounts()

    @asynccontextmanager
    async def storing(self, every_s: float = EVERY_S) -> AsyncIterator[None]:
        """Stores them meanwhile, and a last time at the end."""
        is_over = asyncio.Event()
        task = asyncio.create_task(self._keep_storing(is_over, every_s))
        try:
            yield
        finally:
            is_over.set()
            await task

    async def store(self) -> None:
        """What the database refuses is stored the next time."""
        # copied in the event loop's thread, which alone counts: no request is half in it
        counts = deepcopy(self._counts)
        points = _build_points(counts, self._stored, self._store.database.clock.now())
        if points:
            with suppress(StoreError):  # the next request reports it
                await run_in_threadpool(self._store.metric_points.add, points)
                self._stored = counts

    async def _keep_storing(self, is_over: asyncio.Event, every_s: float) -> None:
        # not cancelled: points whose writing was interrupted would be added twice
        while not is_over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), every_s)
            await self.store()


def _build_points(counts: RequestCounts, stored: RequestCounts, now: datetime) -> list[MetricPoint]:
    """What `counts` holds beyond `stored`."""
    points = [
        MetricPoint(
            day=now.date(),
            name="web.requests",
            labels={"status": status},
            n=n,
            value=n,
            measured_at=now,
        )
        for status, n in sorted((counts.by_status - stored.by_status).items())
    ]
    seconds, before = counts.vote_seconds, stored.vote_seconds
    n, total = seconds.n - before.n, seconds.total - before.total
    if n:
        points.append(
            MetricPoint(
                day=now.date(),
                name="web.vote_seconds",
                n=n,
                total=total,
                total_squares=seconds.total_squares - before.total_squares,
                value=total / n,
                measured_at=now,
            )
        )
    return points

"""Metric points of requests are added to those stored; points are read page by page."""

import asyncio
from datetime import date, timedelta

from rlhf_pipeline.client import Client
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.telemetry.prometheus import RequestCounts
from rlhf_pipeline.web.request_points import RequestPoints
from tests.web.conftest import NOON, Web
from tests.web.databases import on_sqlite

DAY = date(2026, 1, 2)


@on_sqlite
def test_points_are_read_by_name_label_and_day(web: Web):
    points = [
        MetricPoint(
            day=DAY + timedelta(days=n),
            name="drift.verdict",
            labels={"space": space},
            value=value,
            measured_at=NOON,
        )
        for n in range(3)
        for space, value in (("errors", None), ("overall", 1))
    ]
    web.store.metric_points.put(points)
    reader = web.client("auditor")
    page = reader.get("/metrics/points", params={"limit": 5}).json()
    rest = reader.get("/metrics/points", params={"cursor": page["next"]}).json()
    found = [(one["day"], one["labels"]["space"]) for one in page["items"] + rest["items"]]
    assert found == sorted(found, key=lambda one: (-int(one[0][-2:]), one[1]))
    assert (len(found), rest["next"]) == (6, None)

    secret = reader.headers["authorization"].removeprefix("Bearer ")
    with Client(web.url, secret) as client:
        overall = list(
            client.metric_points(
                "drift.verdict", labels={"space": "overall"}, since=DAY + timedelta(days=1), limit=1
            )
        )
    assert overall == [points[5], points[3]]

    unknown = reader.get("/metrics/points", params={"name": "drift"})
    assert (unknown.status_code, "No metric 'drift'" in unknown.json()["detail"]) == (404, True)
    assert reader.get("/metrics/points", params={"label": "space"}).status_code == 422


class FlakyStore:
    """A store that refuses the first writing of points, and counts the others."""

    def __init__(self, store):
        self.database = store.database
        self.metric_points = self
        self.n_writes = -1
        self._points = store.metric_points

    def add(self, points):
        self.n_writes += 1
        if self.n_writes == 0:
            raise StoreError("locked")
        self._points.add(points)


@on_sqlite
def test_counts_of_requests_are_stored_once_and_idle_ones_never(web: Web):
    counts, store = RequestCounts(), FlakyStore(web.store)
    points = RequestPoints(store, counts)

    def figures() -> dict[str, tuple[int, float | None]]:
        found = web.store.metric_points.latest(["web.requests", "web.vote_seconds"])
        return {p.labels.get("status", p.name): (p.n, p.value) for p in found}

    counts.by_status.update({"2xx": 2, "5xx": 1})
    counts.vote_seconds.observe(0.25)
    asyncio.run(points.store())
    assert figures() == {}
    counts.vote_seconds.observe(0.75)
    asyncio.run(points.store())
    asyncio.run(points.store())
    assert store.n_writes == 1
    assert figures() == {"2xx": (2, 2), "5xx": (1, 1), "web.vote_seconds": (2, 0.5)}
    other = RequestCounts()
    other.by_status["2xx"] = 5
    asyncio.run(RequestPoints(store, other).store())
    assert figures()["2xx"] == (7, 7)

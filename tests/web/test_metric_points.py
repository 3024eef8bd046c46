"""Metric points are read page by page."""

from datetime import date, timedelta

from rlhf_pipeline.client import Client
from rlhf_pipeline.core.monitoring import MetricPoint
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
    keys = [(point["day"], point["labels"]["space"]) for point in page["items"] + rest["items"]]
    assert keys == sorted(keys, key=lambda key: (-int(key[0][-2:]), key[1]))
    assert (len(keys), rest["next"]) == (6, None)

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

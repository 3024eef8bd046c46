"""The route of metric points: figures of the project by day."""

from datetime import date
from typing import Annotated

from fastapi import Depends, Query

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.metric_catalogue import METRICS, parse_labels, require_metrics
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pagination import Cursor, Limit, make_cursor, parse_cursor
from rlhf_pipeline.web.routing import api_router, problem_responses

api = api_router("metrics")
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Names = Annotated[
    list[str] | None, Query(max_length=50, description="Metrics; all if none is named.")
]
Labels = Annotated[
    list[str] | None,
    Query(max_length=20, description="`name=value`; only points that carry all of them."),
]


@api.get("/metrics/points", responses=problem_responses(404))
def read(
    site: AnySite,
    principal: Reader,
    name: Names = None,
    label: Labels = None,
    since: date | None = None,
    until: date | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[MetricPoint]:
    """Figures by day, name and labels, the newest day first. A gap is no point, or one whose value
    is null.
    """
    points, place = site.store.metric_points.page(
        [metric.name for metric in require_metrics(name or METRICS)],
        since=since,
        until=until,
        labels=parse_labels(label or ()),
        after=parse_cursor(cursor, str, str, str),
        limit=limit,
    )
    return Page(items=tuple(points), next=make_cursor(*place) if place else None)

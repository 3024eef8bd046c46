"""The route of metric points: figures of the project by day."""

from typing import Annotated

from fastapi import Depends, Query

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import PointFilter
from rlhf_pipeline.core.metric_catalogue import METRICS, parse_labels, require_metrics
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.web.lists import make_cursor, parse_cursor
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses

api = api_router("metrics")
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asked = Annotated[PointFilter, Query()]


@api.get("/metrics/points", responses=problem_responses(404))
def read(site: AnySite, _: Reader, filters: Asked) -> Page[MetricPoint]:
    """Figures by day, name and labels, the newest day first. A gap is no point, or one whose value
    is null.
    """
    points, place = site.store.metric_points.page(
        [metric.name for metric in require_metrics(filters.name or METRICS)],
        since=filters.since,
        until=filters.until,
        labels=parse_labels(filters.label),
        after=parse_cursor(filters.cursor, str, str, str),
        limit=filters.limit,
    )
    return Page(items=tuple(points), next=make_cursor(*place) if place else None)

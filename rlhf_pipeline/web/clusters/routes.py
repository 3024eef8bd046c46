"""Pages and chart of error clusters; their comparisons can be offered to people again."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import Filter, QueryFilter
from rlhf_pipeline.core.api_types.project import ComparisonOut
from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.cluster_days import chart_cluster_days
from rlhf_pipeline.watch.drift.cluster_history import find_cluster
from rlhf_pipeline.web.comparisons import queries
from rlhf_pipeline.web.comparisons.queries import ClusterOut
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    as_choices,
    make_cursor,
    page_filter,
    parse_cursor,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs

api, pages = api_router("charts"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]


class ClusterFilter(QueryFilter):
    """The clusters of which day."""

    day: date | None = Field(default=None, description="By default the last day with any.")


class ClusterPageFilter(ClusterFilter, Filter):
    """The same, and a page of the comparisons of one."""


Asked = Annotated[ClusterFilter, Query()]
Shown = Annotated[ClusterPageFilter, page_filter(ClusterPageFilter)]
CLUSTERS = RowList(
    "Error clusters", "/clusters", "clusters/page.html", ClusterOut, key="cluster_id"
)
MOST_PEOPLE = 9  # that may judge one comparison


@api.get("/charts/clusters", response_model=Chart)
def read_chart(site: AnySite, _: Reader, filters: Asked) -> Response:
    """Error rates of the clusters of a day, by default of the last day with any, over the days on
    which they were found.
    """
    return answer_chart(chart_cluster_days(queries.clusters(site, filters.day).items))


@pages.get("/clusters")
def show_list(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    page = queries.clusters(site, filters.day)
    if wants_csv(request):
        return send_csv(CLUSTERS, filters, lambda _: page)
    days = site.files.report_days("clusters")[::-1]
    newest = max(days, default="")
    day = filters.day or (date.fromisoformat(newest) if newest else None)
    fields = [FilterField("day", "Day", choices=as_choices(days), default=newest)]
    return render_list(
        replace(CLUSTERS, title=_write_headline(day, page.items)),
        request,
        site,
        principal,
        ListPage(filters.model_copy(update={"day": day}), page, fields),
        has_days=bool(days),
        is_drawn=any(len(cluster.trend) > 1 for cluster in page.items),
    )


@pages.get("/clusters/{cluster_id}")
def show_one(
    site: AnySite, request: Request, principal: Reader, cluster_id: str, filters: Shown
) -> Response:
    source = find_cluster(site.files, cluster_id, filters.day.isoformat() if filters.day else None)
    cluster = queries.build_cluster(*source)

    def read_page(part: ClusterPageFilter) -> Page[ComparisonOut]:
        (first,) = parse_cursor(part.cursor, int) or (0,)
        end = max(0, first) + part.limit
        ids = cluster.comparison_ids[max(0, first) : end]
        following = make_cursor(end) if end < len(cluster.comparison_ids) else None
        return Page(items=queries.read_comparisons(site, ids), next=following)

    rows = RowList(
        cluster.name,
        f"/clusters/{cluster_id}",
        "clusters/cluster.html",
        ComparisonOut,
        key="comparison_id",
    )
    if wants_csv(request):
        return send_csv(rows, filters, read_page)
    return render_list(
        rows,
        request,
        site,
        principal,
        ListPage(filters, read_page(filters), n_rows=len(cluster.comparison_ids)),
        cluster=cluster,
        rates={
            day.day: None if day.error is None else interval_of_share(day.error, day.n_prompts)
            for day in cluster.trend
        },
        overlap=min(MOST_PEOPLE, site.terms().rules.overlap + 1),
    )


def _write_headline(day: date | None, clusters: Sequence[ClusterOut]) -> str:
    if day is None or not clusters:
        return "Error clusters"
    failing = next((cluster.name for cluster in clusters if cluster.is_failing), None)
    words = f"{failing} has more errors than the rest" if failing else "No cluster stands out"
    n_worse = sum(cluster.is_worse for cluster in clusters)
    worse = f"; {n_worse} of {len(clusters)} got worse" if n_worse else ""
    return f"{words} on {day:%-d %b}{worse}"

"""Pages and chart of error clusters; their comparisons can be offered to people again."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import Filter, QueryFilter
from rlhf_pipeline.intervals import interval_of_share
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.cluster_days import chart_cluster_days
from rlhf_pipeline.web.comparisons import queries
from rlhf_pipeline.web.lists import make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs

api, pages = api_router("charts"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
SHOWN = 50
MOST_PEOPLE = 9  # that may judge one comparison


class ClusterFilter(QueryFilter):
    """The clusters of which day."""

    day: date | None = Field(default=None, description="By default the last day with any.")


class ClusterPageFilter(ClusterFilter, Filter):
    """The same, and a page of the comparisons of one."""


Asked = Annotated[ClusterFilter, Query()]


@api.get("/charts/clusters", response_model=Chart)
def read_chart(site: AnySite, _: Reader, asked: Asked) -> Response:
    """Error rates of the clusters of a day, by default of the last day with any, over the days on
    which they were found.
    """
    days = site.files.cluster_days()
    wanted = [one for one in days if asked.day is None or one == asked.day.isoformat()][-1:]
    found = [one for of in site.files.read_clusters(wanted).values() for one in of.clusters]
    return answer_chart(chart_cluster_days(found))


@pages.get("/clusters")
def show_list(site: AnySite, request: Request, principal: Reader, asked: Asked) -> Response:
    days = site.files.cluster_days()
    return render(
        "clusters/page.html",
        request,
        site,
        principal,
        clusters=queries.clusters(site, asked.day).items,
        days=days[::-1],
        day=str(asked.day or (days[-1] if days else "")),
        is_newest=asked.day is None or asked.day.isoformat() == max(days, default=""),
    )


@pages.get("/clusters/{cluster_id}")
def show_one(
    site: AnySite,
    request: Request,
    principal: Reader,
    cluster_id: str,
    asked: Annotated[ClusterPageFilter, Query()],
) -> Response:
    found = site.files.find_cluster(cluster_id, asked.day.isoformat() if asked.day else None)
    one = queries.build_cluster(*found)
    (first,) = parse_cursor(asked.cursor, int) or (0,)
    first = max(0, first)
    end = first + SHOWN
    rows = site.store.comparisons.with_ids(list(one.comparison_ids[first:end]))
    return render(
        "clusters/cluster.html",
        request,
        site,
        principal,
        one=one,
        rates={
            day.day: None if day.error is None else interval_of_share(day.error, day.n_prompts)
            for day in one.trend
        },
        page=Page(
            items=tuple(plain_rows(rows[["comparison_id", "prompt", "category"]])),
            next=make_cursor(end) if end < len(one.comparison_ids) else None,
        ),
        query=query_of({"day": one.day.isoformat()}),
        overlap=min(MOST_PEOPLE, site.terms().rules.overlap + 1),
    )

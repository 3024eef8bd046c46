"""Routes of progress: figures as JSON, as a page and as a file."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.core.api_types.filters import DayFilter
from rlhf_pipeline.core.api_types.project import Metrics
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.votes_by_day import chart_votes_by_day
from rlhf_pipeline.web.lists import csv_of, page_filter, wants_csv
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.progress import queries
from rlhf_pipeline.web.progress.queries import AnnotatorProgress, ProgressOut
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, Days, answer_chart, api_router, needs

api = api_router("progress", "charts")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.PROGRESS_READ))]
Shown = Annotated[DayFilter, page_filter(DayFilter)]
DAYS_DRAWN = 366


@api.get("/progress")
def read(site: AnySite, principal: Reader) -> ProgressOut:
    """Judgements offered, done and in progress; votes by day and by annotator."""
    return queries.project_progress(site, principal)


@api.get("/charts/votes", response_model=Chart)
def read_chart(site: AnySite, principal: Reader, days: Days) -> Response:
    """Votes by people by day. Without `until`, up to the newest day with votes; without `since`,
    366 days.
    """
    counts = site.vote_counts().by_day
    may_list = principal.may(Permission.VOTES_READ)
    first, last = days.resolve(max(counts, default=None), DAYS_DRAWN)
    return answer_chart(chart_votes_by_day(counts, first, last, links=may_list))


@api.get("/metrics", tags=["metrics"])
def metrics(
    site: AnySite, _: Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
) -> Metrics:
    """Figures for scripts."""
    return queries.metrics(site)


@pages.get("/progress")
def show_page(site: AnySite, request: Request, principal: Reader, days: Shown) -> Response:
    now = queries.project_progress(site, principal)
    if wants_csv(request):
        return csv_of("annotators", list(AnnotatorProgress.model_fields), now.annotators)
    return render(
        "progress/page.html",
        request,
        site,
        principal,
        progress=now,
        n_cast=site.store.votes.max_seq(),
        filters=days.chosen,
        left_out=days.find_left_out(site.vote_counts().by_day, DAYS_DRAWN),
    )

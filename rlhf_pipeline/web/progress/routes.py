"""Routes of progress: figures once, as events, as a page and as a file."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.api_types.project import AnnotatorProgress, Metrics, ProgressOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.votes_by_day import chart_votes_by_day
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.charts import Days, answer_chart
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import csv_of
from rlhf_pipeline.web.progress import queries
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.streams import EventStream

api = api_router("progress", "charts")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.PROGRESS_READ))]
LOOK_S = 1.0
STILL_HERE_S = 15.0  # between two comments on a quiet stream: proxies drop silent ones
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "An event `progress` whenever a figure changes.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
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


@api.get(
    "/progress/events",
    status_code=200,
    responses=EVENTS | problem_responses(429),
    response_class=EventStream,
)
async def events(site: AnySite, principal: Reader, request: Request) -> EventStream:
    """Progress as server-sent events, as long as you may read it; at most 10 streams of a token or
    session at once.
    """
    secret = site.auth.secret_of(request) or ""
    return EventStream(
        site.streams,
        principal.token.token_id,
        lambda: stream_progress(site, secret, from_cookie=principal.is_session),
    )


@api.get("/metrics", tags=["metrics"])
def metrics(
    site: AnySite, _: Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
) -> Metrics:
    """Figures for scripts."""
    return queries.metrics(site)


async def stream_progress(
    site: Site,
    secret: str,
    *,
    from_cookie: bool,
    look_s: float = LOOK_S,
    still_here_s: float = STILL_HERE_S,
) -> AsyncIterator[str]:
    seen_seq = -1
    sent = ""
    quiet = 0.0
    while True:
        newest = await run_in_threadpool(site.store.audit.head)
        if newest[0] != seen_seq:
            # The stream ends with the session.
            principal = site.auth.cached_principal(secret) or await run_in_threadpool(
                site.auth.find_principal, secret, from_cookie=from_cookie
            )
            if principal is None or not principal.may(Permission.PROGRESS_READ):
                return
            now = (
                await run_in_threadpool(queries.project_progress, site, principal)
            ).model_dump_json()
            seen_seq = newest[0]
            if now != sent:
                sent, quiet = now, 0.0
                yield f"event: progress\ndata: {now}\n\n"
        if quiet >= still_here_s:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(look_s)
        quiet += look_s


@pages.get("/progress")
def show_page(site: AnySite, request: Request, principal: Reader, days: Days) -> Response:
    now = queries.project_progress(site, principal)
    return render(
        "progress/page.html",
        request,
        site,
        principal,
        progress=now,
        filters={"since": days.since, "until": days.until},
        left_out=days.find_left_out(site.vote_counts().by_day, DAYS_DRAWN),
    )


@pages.get("/progress.csv")
def download(site: AnySite, principal: Reader) -> Response:
    now = queries.project_progress(site, principal)
    return csv_of("annotators", list(AnnotatorProgress.model_fields), now.annotators)

"""Routes of progress: figures once, as events, as a page and as a file."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.api_types.project import AnnotatorProgress, Metrics, ProgressOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.votes_by_day import chart_votes_by_day
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
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
    """Judgements offered, done and in progress; votes by day and by annotator. For users who may
    vote, only votes on comparisons they have judged are counted."""
    return queries.project_progress(site, principal)


@api.get("/charts/votes", response_model=Chart)
def read_chart(site: AnySite, principal: Reader, days: Days) -> Response:
    """Votes by people by day; for users who may vote, those on comparisons that they have judged.
    Without `until`, up to the newest day with votes; without `since`, 366 days.
    """
    counts = _read_days(site, principal)
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
    site: AnySite, principal: Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
) -> Metrics:
    """Figures for scripts. For users who may vote, limited as in `progress`."""
    return queries.metrics(site, principal)


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
            # otherwise the time of an event would reveal votes that are hidden from a blind reader
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
    notice = (
        None
        if blind_reader_id(principal) is None
        else "You may vote, so this page counts only votes on comparisons that you have judged."
    )
    return render(
        "progress/page.html",
        request,
        site,
        principal,
        notice=notice,
        progress=now,
        filters={"since": days.since, "until": days.until},
        left_out=days.find_left_out(_read_days(site, principal), DAYS_DRAWN),
    )


@pages.get("/progress.csv")
def download(site: AnySite, principal: Reader) -> Response:
    now = queries.project_progress(site, principal)
    return csv_of("annotators", list(AnnotatorProgress.model_fields), now.annotators)


def _read_days(site: Site, principal: Principal) -> dict[date, int]:
    """Votes by day, as far as the reader may see them."""
    return site.vote_counter.counts(seen_by=blind_reader_id(principal)).by_day

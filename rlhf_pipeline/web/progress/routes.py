"""Routes of progress: figures once, as events, as a page and as a file."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.api_types.project import AnnotatorProgress, DayCount, Metrics, ProgressOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import csv_of
from rlhf_pipeline.web.progress import queries
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.streams import EventStream

api = api_router("progress")
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
WIDTH, HEIGHT = 900, 120
WIDEST = 48.0
DAYS_DRAWN = 366


@api.get("/progress")
def read(site: AnySite, principal: Reader) -> ProgressOut:
    """Judgements offered, done and in progress; votes by day and by annotator. For users who may
    vote, only votes on comparisons they have judged are counted."""
    return queries.project_progress(site, principal)


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
            if await run_in_threadpool(queries.is_current, site, principal):
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


@dataclass(frozen=True)
class Bar:
    """One day's votes, in the units of the chart."""

    day: date
    n: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Bars:
    """All days from the first to the last, including those without votes; at most the last year."""

    days: list[Bar]
    most: int
    width: int = WIDTH
    height: int = HEIGHT


@pages.get("/progress")
def show_page(site: AnySite, request: Request, principal: Reader) -> Response:
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
        bars=build_bars(now.votes_by_day),
    )


@pages.get("/progress.csv")
def download(site: AnySite, principal: Reader) -> Response:
    now = queries.project_progress(site, principal)
    return csv_of("annotators", list(AnnotatorProgress.model_fields), now.annotators)


def build_bars(counts: Sequence[DayCount]) -> Bars:
    if not counts:
        return Bars([], 0)
    last = counts[-1].day.toordinal()
    first = max(counts[0].day.toordinal(), last - DAYS_DRAWN + 1)
    n_days = last - first + 1
    by_day = {one.day.toordinal(): one.n for one in counts if one.day.toordinal() >= first}
    most = max(by_day.values())
    step = min(WIDEST, WIDTH / n_days)
    days = []
    for i in range(n_days):
        n = by_day.get(first + i, 0)
        height = HEIGHT * n / most if most else 0.0
        bar = Bar(
            date.fromordinal(first + i),
            n,
            round(i * step, 2),
            round(HEIGHT - height, 2),
            round(step * 0.8, 2),
            round(height, 2),
        )
        days.append(bar)
    return Bars(days, most)

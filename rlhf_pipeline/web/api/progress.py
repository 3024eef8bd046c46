"""How far the work is: for pages, for scripts, and as a stream of events. Knows counts; knows no
text.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.api_types.project import Metrics, ProgressOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web import progress
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.streams import EventStream

router = api_router("progress")
Reader = Annotated[Principal, Depends(needs(Permission.PROGRESS_READ))]
LOOK_S = 1.0
STILL_HERE_S = 15.0  # between two comments on a quiet stream: proxies drop silent ones
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "an event `progress` whenever one of its numbers changed",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/progress")
def read(site: AnySite, principal: Reader) -> ProgressOut:
    """Judgements that are offered, done and under way; votes by day and by annotator. Users who may
    vote get only votes on comparisons they have judged."""
    return progress.project_progress(site, principal)


@router.get(
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


@router.get("/metrics", tags=["metrics"])
def metrics(
    site: AnySite, principal: Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
) -> Metrics:
    """Numbers for scripts. For users who may vote as `progress`."""
    return progress.metrics(site, principal)


async def stream_progress(
    site: Site,
    secret: str,
    *,
    from_cookie: bool,
    look_s: float = LOOK_S,
    still_here_s: float = STILL_HERE_S,
) -> AsyncIterator[str]:
    looked_at, told, quiet = -1, "", 0.0
    while True:
        newest = await run_in_threadpool(site.store.audit.head)
        if newest[0] != looked_at:
            # Somebody whose session ended reads no further.
            principal = site.auth.cached_principal(secret) or await run_in_threadpool(
                site.auth.find_principal, secret, from_cookie=from_cookie
            )
            if principal is None or not principal.may(Permission.PROGRESS_READ):
                return
            now = (
                await run_in_threadpool(progress.project_progress, site, principal)
            ).model_dump_json()
            if await run_in_threadpool(progress.is_current, site, principal):
                looked_at = newest[0]
            # else the moment of an event would reveal votes that a blind reader does not see
            if now != told:
                told, quiet = now, 0.0
                yield f"event: progress\ndata: {now}\n\n"
        if quiet >= still_here_s:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(look_s)
        quiet += look_s

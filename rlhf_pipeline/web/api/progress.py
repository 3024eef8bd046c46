"""How far the work is: for pages, for scripts, and as a stream of events. Knows counts; knows no text."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.web import progress
from rlhf_pipeline.web.api.routing import api_router, documented
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.schemas import Metrics, ProgressOut
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.streams import EventStream

router = api_router("progress")
Reader = Annotated[Principal, Depends(needs(Permission.PROGRESS_READ))]
LOOK_S = 1.0
STILL_HERE_S = 15.0  # between two comments on a quiet stream: proxies drop silent ones
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "an event `progress` whenever a vote arrived", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/progress")
def read(site: AnySite, principal: Reader) -> ProgressOut:
    """What is wanted, done and on somebody's table; votes by day and by annotator."""
    return progress.of_project(site, shows_names=principal.may(Permission.USERS_READ))


@router.get("/progress/events", status_code=200, responses=EVENTS | documented(429), response_class=EventStream)
async def events(site: AnySite, principal: Reader, request: Request) -> EventStream:
    """Progress as server-sent events, as long as you may read it; at most 10 streams of a token or session at once."""
    secret = site.auth.secret_of(request) or ""
    return EventStream(site.streams, principal.token.token_id, lambda: _events(site, secret, from_cookie=principal.is_session))


@router.get("/metrics", dependencies=[Depends(needs(Permission.METRICS_READ))], tags=["metrics"])
def metrics(site: AnySite) -> Metrics:
    """Numbers for scripts."""
    return progress.metrics(site)


async def _events(site: Site, secret: str, *, from_cookie: bool) -> AsyncIterator[str]:
    told, quiet = -1, 0.0
    while True:
        newest = await run_in_threadpool(site.store.audit.head)
        if newest[0] != told:
            # Somebody whose session ended reads no further.
            principal = site.auth.remembered(secret) or await run_in_threadpool(site.auth.principal, secret, from_cookie=from_cookie)
            if principal is None or not principal.may(Permission.PROGRESS_READ):
                return
            now = await run_in_threadpool(progress.of_project, site, shows_names=principal.may(Permission.USERS_READ))
            told, quiet = newest[0], 0.0
            yield f"event: progress\nid: {told}\ndata: {now.model_dump_json()}\n\n"
        elif quiet >= STILL_HERE_S:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_S)
        quiet += LOOK_S

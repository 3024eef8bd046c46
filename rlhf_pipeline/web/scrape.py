"""`GET /metrics` for Prometheus: the newest figures of the project and counts of this process."""

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.telemetry.prometheus import CONTENT_TYPE
from rlhf_pipeline.web.dependencies import AnySite, address_of, needs, public
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.security import LOOPBACK, host_name
from rlhf_pipeline.web.site import Site

router = APIRouter()
HERE = frozenset({"127.0.0.1", "::1"})  # the addresses of this machine's own programs
OPEN = public("open to programs of this machine; others need the permission metrics.read")
AUTHORIZED = needs(Permission.METRICS_READ)


@router.get("/metrics", dependencies=[Depends(OPEN)], include_in_schema=False)
async def scrape(site: AnySite, request: Request) -> Response:
    if not _is_from_this_machine(site, request):
        try:
            await AUTHORIZED(request)
        except Problem as refusal:  # elsewhere than below /api/ it would become a page
            return refusal.response()
    text = await run_in_threadpool(site.metrics_text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


def _is_from_this_machine(site: Site, request: Request) -> bool:
    """Whether the client needs no token. With a public address there is a proxy, perhaps on this
    machine, which may hide its clients.
    """
    return (
        LOOPBACK.issuperset(site.settings.web_hosts)
        and "authorization" not in request.headers
        and address_of(request) in HERE
        and host_name(request.headers.get("host", "")) in LOOPBACK
    )

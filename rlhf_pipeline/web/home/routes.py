"""Routes of the home page: the state of the project, and the page that shows it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import RedirectResponse

from rlhf_pipeline.web.home import queries
from rlhf_pipeline.web.home.answers import HomeOut
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, SignedIn, api_router, needs

api = api_router("home")
# of no section: for all who are logged in, most of whom it redirects
start_page = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]


@api.get("/home")
def read(site: AnySite, principal: Reader) -> HomeOut:
    """What happened to taste, what the loop did and what it waits for; then its champions, the
    accuracy of the newest day beside its noise ceiling, work and the last gate.
    """
    return queries.read_home(site, principal)


@start_page.get("/")
def start(site: AnySite, request: Request, principal: SignedIn) -> Response:
    """The state of the project; annotators are redirected to their cards."""
    if not principal.may(Permission.METRICS_READ):
        if principal.user.paused_at is not None:
            return RedirectResponse("/annotate", 302)  # which says why there is no card
        menu = request.app.state.pages.menu(principal)
        return RedirectResponse(menu[0].path if menu else "/me", 302)
    return render(
        "home/page.html",
        request,
        site,
        principal,
        home=queries.read_home(site, principal),
        labels_alone=queries.labels_alone(site, principal),
    )

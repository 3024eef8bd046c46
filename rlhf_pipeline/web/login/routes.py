"""Routes of logging in and out, by password or one-time link."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import RequestBody
from rlhf_pipeline.core.errors import LoginEnded
from rlhf_pipeline.core.records import Text
from rlhf_pipeline.web.forms import Form, attempt
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import MOST_NEXT, render, see_other
from rlhf_pipeline.web.routing import (
    AnySite,
    SignedIn,
    address_of,
    api_router,
    problem_responses,
    public,
)
from rlhf_pipeline.web.site import Site

api = api_router("auth")
pages = APIRouter()
OPEN = [Depends(public("a login starts without a session"))]
Next = Annotated[str, Query(alias="next", max_length=MOST_NEXT)]


class Login(RequestBody):
    email: Annotated[Text, Field(max_length=254)]
    password: Annotated[Text, Field(max_length=1000)]


class Redemption(RequestBody):
    token: Annotated[Text, Field(max_length=200)]


@api.post("/auth/login", status_code=204, dependencies=OPEN, responses=problem_responses(401, 429))
def log_in(site: AnySite, request: Request, body: Login) -> Response:
    """Start a session. The answer sets the session cookie."""
    response = Response(status_code=204)
    device = request.cookies.get(site.auth.device_cookie)
    site.auth.log_in(
        response, body.email, body.password, address=address_of(request), device=device
    )
    return response


@api.post("/auth/redeem", status_code=204, dependencies=OPEN, responses=problem_responses(401))
def redeem(site: AnySite, body: Redemption) -> Response:
    """Start a session with the token of a one-time login link."""
    response = Response(status_code=204)
    site.auth.redeem(response, body.token)
    return response


@api.post("/auth/logout", status_code=204)
def log_out(site: AnySite, principal: SignedIn) -> Response:
    """End this session."""
    if not principal.is_session:
        raise Problem(
            403,
            "A token has no session to end. Revoke the token under /me/tokens.",
            kind="no_session",
        )
    response = Response(status_code=204)
    site.auth.end_session(response, principal)
    return response


@pages.get("/login", dependencies=OPEN)
def login(
    site: AnySite,
    request: Request,
    token: Annotated[str, Query(max_length=200)] = "",
    after: Next = "/",
) -> Response:
    """The login form. A link's token is redeemed by a button, because link previews open the
    address.
    """
    return _render_page(site, request, after, token=token)


@pages.post("/login", dependencies=OPEN)
def submit_login(site: AnySite, request: Request, form: Form) -> Response:
    token, email = form.text("token"), form.text("email")
    after = _own_path(form.text("next"))
    response = see_other(after)

    def enter() -> None:
        if token:
            site.auth.redeem(response, token)
        else:
            device = request.cookies.get(site.auth.device_cookie)
            site.auth.log_in(
                response, email, form.text("password"), address=address_of(request), device=device
            )

    _, problem = attempt(enter, LoginEnded)
    if problem is None:
        return response
    page = _render_page(site, request, after, email=email, problem=problem)
    page.headers.update(problem.headers)
    return page


def _render_page(
    site: Site,
    request: Request,
    after: str,
    *,
    token: str = "",
    email: str = "",
    problem: Problem | None = None,
) -> Response:
    return render(
        "login/page.html",
        request,
        site,
        None,
        status=problem.status if problem else 200,
        token=token,
        next=_own_path(after),
        problem=problem.detail if problem else None,
        email=email,
    )


@pages.post("/logout")
def submit_logout(site: AnySite, principal: SignedIn) -> Response:
    response = see_other("/login")
    if principal.is_session:
        site.auth.end_session(response, principal)
    return response


def _own_path(path: str) -> str:
    """A path of this site, never an address of another.

    >>> others = ("//evil.example", "https://evil.example", "/\\\\evil.example", "")
    >>> _own_path("/votes?q=1"), {_own_path(path) for path in others}
    ('/votes?q=1', {'/'})
    """
    is_own = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and path.isascii()
    )
    return path if is_own else "/"

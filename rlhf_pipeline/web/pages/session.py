"""The way in and out: login by password or by a one-time link, logout, and where one starts. Knows
cookies by `web.auth`.
"""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import RedirectResponse

from rlhf_pipeline.errors import LoginEnded
from rlhf_pipeline.web.dependencies import AnySite, SignedIn, address_of, public
from rlhf_pipeline.web.pages.forms import Form, attempt
from rlhf_pipeline.web.pages.rendering import menu_entries, render, see_other

router = APIRouter()
OPEN = [Depends(public("nobody is logged in before logging in"))]
Next = Annotated[str, Query(alias="next", max_length=500)]


@router.get("/")
def start(principal: SignedIn) -> Response:
    """To one's work: judging, or looking how far it is."""
    return RedirectResponse(menu_entries(principal)[0].path, 302)


@router.get("/login", dependencies=OPEN)
def login(
    site: AnySite,
    request: Request,
    token: Annotated[str, Query(max_length=200)] = "",
    after: Next = "/",
) -> Response:
    """A form; a link's token is redeemed by a button and not by looking at it, as programs that
    preview links do.
    """
    return render(
        "login.html",
        request,
        site,
        None,
        token=token,
        next=_own_path(after),
        problem=None,
        email="",
    )


@router.post("/login", dependencies=OPEN)
def log_in(site: AnySite, request: Request, form: Form) -> Response:
    token, email, after = form.text("token"), form.text("email"), _own_path(form.text("next"))
    response = see_other(after)

    def enter() -> bool:
        if token:
            site.auth.redeem(response, token)
        else:
            device = request.cookies.get(site.auth.device_cookie)
            site.auth.log_in(
                response, email, form.text("password"), address=address_of(request), device=device
            )
        return True

    is_in, problem = attempt(enter, LoginEnded)
    if is_in is None:
        status = problem.status if problem else 401
        detail = problem.detail if problem else ""
        page = render(
            "login.html",
            request,
            site,
            None,
            status=status,
            token="",
            next=after,
            problem=detail,
            email=email,
        )
        page.headers.update(problem.headers if problem else {})
        return page
    return response


@router.post("/logout")
def log_out(site: AnySite, principal: SignedIn) -> Response:
    response = see_other("/login")
    if principal.is_session:
        site.auth.end_session(response, principal)
    return response


def login_path(request: Request) -> str:
    """The login page that leads back to what was asked for."""
    path = request.url.path
    if request.method != "GET" or path in ("/", "/logout"):
        return "/login"
    return f"/login?next={quote(path)}"


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

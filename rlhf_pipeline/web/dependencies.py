"""What routes are handed: the site they belong to, and who asks. A route that declares neither a
permission nor that it is public keeps the app from starting. Knows FastAPI's dependencies; knows no
route."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Mount

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import LOG_IN, Problem
from rlhf_pipeline.web.site import Site

# a user id: for whom a page asks, which may be older than the login that its browser now sends
ANNOTATOR = "x-annotator"
_ASKED = "rlhf.principal"  # in the scope: once per request


async def site_of(request: HTTPConnection) -> Site:
    site: Site = request.app.state.site
    return site


AnySite = Annotated[Site, Depends(site_of)]


async def asker_of(request: HTTPConnection) -> Principal | None:
    """Who asks; None for somebody without a token. Raises Problem 401 for a token that does not
    hold.
    """
    if _ASKED in request.scope:
        known: Principal | None = request.scope[_ASKED]
        return known
    auth = (await site_of(request)).auth
    secret = auth.secret_of(request)
    principal = None
    if secret is not None:
        principal = auth.remembered(secret)
        if principal is None and secret:
            from_cookie = "authorization" not in request.headers
            principal = await run_in_threadpool(auth.principal, secret, from_cookie=from_cookie)
        if principal is None:
            raise _unknown()
    request.scope[_ASKED] = principal
    return principal


def asked_before(request: HTTPConnection) -> Principal | None:
    """Who asks, where this request has looked it up already."""
    known: Principal | None = request.scope.get(_ASKED)
    return known


@dataclass(frozen=True)
class Needs:
    """Lets in who is logged in, is who `X-Annotator` names, where it is sent, and has the
    permission, where one is named.
    """

    permission: Permission | None

    async def __call__(self, request: Request) -> Principal:
        """Raises Problem 401 for nobody, 403 for somebody else than the request is meant to come
        from, and for somebody who may not.
        """
        principal = await asker_of(request)
        if principal is None:
            raise _unknown()
        if request.headers.get(ANNOTATOR, principal.user_id) != principal.user_id:
            raise Problem(
                403,
                "Somebody else than the user named in X-Annotator is logged in, and nothing was "
                "done. Log in as that user and send it again.",
                kind="other_login",
            )
        if self.permission is not None and self.permission not in principal.permissions:
            raise Problem(
                403,
                f"This needs the permission {self.permission}, which your roles or this token do "
                "not bring. Ask an admin for a role that does.",
                kind="forbidden",
            )
        return principal


@dataclass(frozen=True)
class Public:
    """Lets everybody in, for a reason that is said."""

    why: str

    async def __call__(self) -> None: ...


def needs(permission: Permission | None = None) -> Needs:
    """For `Depends`: who asks, if they have the permission. None: anybody who is logged in."""
    return Needs(permission)


def public(why: str) -> Public:
    """For `Depends`: a route without a login."""
    return Public(why)


SignedIn = Annotated[Principal, Depends(needs())]


def address_of(request: HTTPConnection) -> str:
    return request.client.host if request.client else "unknown"


def guard_of(route: APIRoute) -> Needs | Public | None:
    """What a route declares."""
    return next(_guards(route.dependant), None)


def refuse_undeclared(app: FastAPI) -> None:
    """Raises ConfigurationError naming the routes that declare neither a permission nor that they
    are public.
    """
    bare = [_told(route) for route in app.routes if not _is_declared(route)]
    if bare:
        raise ConfigurationError(
            f"Routes without a declared permission: {', '.join(bare)}. Add "
            "Depends(needs(Permission.…)) or Depends(public(reason)) to each."
        )


def _guards(dependant: Dependant) -> Iterator[Needs | Public]:
    if isinstance(dependant.call, Needs | Public):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _guards(inner)


def _is_declared(route: BaseRoute) -> bool:
    if isinstance(route, APIRoute):
        return guard_of(route) is not None
    return isinstance(route, Mount) and route.name == "static"


def _told(route: BaseRoute) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or ()))
    return f"{methods} {getattr(route, 'path', route)}".strip()


def _unknown() -> Problem:
    return Problem(
        401,
        "This needs a login, and the token or session sent is missing, expired or revoked. Log in, "
        "or send `Authorization: Bearer rlhf_…`.",
        kind="not_logged_in",
        headers=LOG_IN,
    )

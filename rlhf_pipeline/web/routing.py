"""Routers of the API, what their routes depend on, and the headers that they share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Mount

from rlhf_pipeline.core.api_types.filters import OF_SCRIPTS, AuditFilter, DayFilter
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import LARGEST
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.chart_answers import ChartAnswer, read_chart_format
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import LOG_IN, QUERY, Problem, problem_response
from rlhf_pipeline.web.site import Site

PREFIX = "/api/v1"
# user id of the page that sends the request; the browser may have logged in as another since
ANNOTATOR = "x-annotator"
_PRINCIPAL_KEY = "rlhf.principal"  # cached in the scope of the request
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", max_length=200, description="ETag of the version that was edited"),
]
_HEADER = Header(
    alias="Idempotency-Key",
    min_length=1,
    max_length=128,
    pattern="^[ -~]+$",
    description="Repeating the request with the same key stores it once; a random UUID is a good "
    "key.",
)
RequiredKey = Annotated[str, _HEADER]
OptionalKey = Annotated[str | None, _HEADER]
Days = Annotated[DayFilter, Query()]


class ApiRoute(APIRoute):
    """A route of the API; one of charts has the parameter `format`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any):
        if more.get("response_model") is Chart:
            more["dependencies"] = [*(more.get("dependencies") or ()), Depends(read_chart_format)]
        super().__init__(path, endpoint, **more)


def api_router(*nouns: str, prefix: str = PREFIX) -> APIRouter:
    return APIRouter(prefix=prefix, tags=list(nouns), route_class=ApiRoute)


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems of a route in addition to the common ones."""
    return {status: problem_response(status) for status in statuses}


async def site_of(request: HTTPConnection) -> Site:
    site: Site = request.app.state.site
    return site


AnySite = Annotated[Site, Depends(site_of)]


async def find_principal(request: HTTPConnection) -> Principal | None:
    """The user of a request; None without a token. Raises Problem 401 for an invalid token."""
    if _PRINCIPAL_KEY in request.scope:
        stored_principal: Principal | None = request.scope[_PRINCIPAL_KEY]
        return stored_principal
    auth = (await site_of(request)).auth
    secret = auth.secret_of(request)
    principal = None
    if secret is not None:
        principal = auth.cached_principal(secret)
        if principal is None and secret:
            from_cookie = "authorization" not in request.headers
            principal = await run_in_threadpool(
                auth.find_principal, secret, from_cookie=from_cookie
            )
        if principal is None:
            raise _login_problem()
    request.scope[_PRINCIPAL_KEY] = principal
    return principal


def cached_principal(request: HTTPConnection) -> Principal | None:
    """The user of a request if it was already looked up."""
    principal: Principal | None = request.scope.get(_PRINCIPAL_KEY)
    return principal


@dataclass(frozen=True)
class RequiredPermission:
    """Admits logged-in users with the permission, and only query parameters that the route takes.
    `X-Annotator`, if sent, must name the user.
    """

    permission: Permission | None

    async def __call__(self, request: Request) -> Principal:
        """Raises Problem 401 without a login, 403 for another user than `X-Annotator` names and
        without the permission, 422 for an unknown query parameter.
        """
        principal = await find_principal(request)
        if principal is None:
            raise _login_problem()
        if request.headers.get(ANNOTATOR, principal.user_id) != principal.user_id:
            raise Problem(
                403,
                "A user other than the one named in X-Annotator is logged in; nothing was done. "
                "Log in as that user and repeat the request.",
                kind="other_login",
            )
        if self.permission == Permission.VOTES_CAST and principal.user.paused_at is not None:
            raise await run_in_threadpool(
                _describe_pause, await site_of(request), principal.user_id
            )
        if self.permission is not None and self.permission not in principal.permissions:
            raise Problem(
                403,
                f"This requires the permission {self.permission}, which your roles or this token "
                "lack. Ask an admin for a role with it.",
                kind="forbidden",
            )
        _refuse_unknown_parameters(request)
        return principal


@dataclass(frozen=True)
class PublicRoute:
    """Admits everyone, for a stated reason, and only query parameters that the route takes."""

    why: str

    async def __call__(self, request: Request) -> None:
        """Raises Problem 422 for an unknown query parameter."""
        _refuse_unknown_parameters(request)


def needs(permission: Permission | None = None) -> RequiredPermission:
    """For `Depends`: requires the permission; None requires a login only."""
    return RequiredPermission(permission)


def public(why: str) -> PublicRoute:
    """For `Depends`: a route without a login."""
    return PublicRoute(why)


SignedIn = Annotated[Principal, Depends(needs())]


def address_of(request: HTTPConnection) -> str:
    return request.client.host if request.client else "unknown"


def guard_of(route: APIRoute) -> RequiredPermission | PublicRoute | None:
    """The guard that a route declares."""
    return next(_guards(route.dependant), None)


def refuse_undeclared(app: FastAPI) -> None:
    """Raises ConfigurationError naming the routes that declare neither a permission nor that they
    are public.
    """
    bare = [_describe_route(route) for route in app.routes if not _is_declared(route)]
    if bare:
        raise ConfigurationError(
            f"Routes without a declared permission: {', '.join(bare)}. Add "
            "Depends(needs(Permission.…)) or Depends(public(reason)) to each."
        )


def _refuse_unknown_parameters(request: Request) -> None:
    """A misspelt filter would be ignored, and the answer would be of all rows."""
    if not request.query_params:
        return
    parameters = _name_parameters(request.scope["route"].dependant)
    unknown = sorted(set(request.query_params) - set(parameters) - OF_SCRIPTS)
    if unknown:
        words = (
            f"this address takes {', '.join(parameters)}"
            if parameters
            else "this address takes none"
        )
        raise Problem(
            422,
            f"Unknown parameter {', '.join(unknown)}: {words}. Correct it or leave it out.",
            kind="invalid",
            errors=[(f"{QUERY}{name}", f"is not a parameter; {words}") for name in unknown],
        )


def _name_parameters(of: Dependant) -> list[str]:
    own = [
        name
        for parameter in of.query_params
        for name in getattr(parameter.field_info.annotation, "model_fields", [parameter.alias])
    ]
    return own + [name for inner in of.dependencies for name in _name_parameters(inner)]


def _guards(dependant: Dependant) -> Iterator[RequiredPermission | PublicRoute]:
    if isinstance(dependant.call, RequiredPermission | PublicRoute):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _guards(inner)


def _is_declared(route: BaseRoute) -> bool:
    if isinstance(route, APIRoute):
        return guard_of(route) is not None
    return isinstance(route, Mount) and route.name == "static"


def _describe_route(route: BaseRoute) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or ()))
    return f"{methods} {getattr(route, 'path', route)}".strip()


def _describe_pause(site: Site, user_id: str) -> Problem:
    """Since when a user may not vote, and who decided it."""
    paused = AuditFilter(action="users.pause", object_id=user_id, limit=1)
    links, _ = site.store.audit.page(paused, within=LARGEST)
    names = {user.user_id: user.name for user in site.store.users.all()}
    who = names.get(links[0].actor) if links else None
    on = f" on {links[0].at:%-d %B %Y at %H:%M} UTC" if links else ""
    return Problem(
        403,
        f"{who or 'An admin'} paused your voting{on}. Your earlier votes are kept. "
        f"Ask {who or 'an admin'} when it goes on.",
        kind="paused",
        title="Your voting is paused",
    )


def _login_problem() -> Problem:
    return Problem(
        401,
        "This requires a login; the token or session is missing, expired or revoked. Log in, or "
        "send `Authorization: Bearer rlhf_…`.",
        kind="not_logged_in",
        headers=LOG_IN,
    )


def etag_of(version: int) -> str:
    """
    >>> etag_of(3)
    '"3"'
    """
    return f'"{version}"'


def require_version(if_match: str | None) -> int:
    """The version that an edit is based on. Raises Problem 428 if it is missing, 422 if it is
    invalid.
    """
    if if_match is None:
        raise Problem(
            428,
            "If-Match is missing. Send the ETag of the version you edited, so that a newer one is "
            "not overwritten.",
            kind="unconditional_edit",
            errors=[("header.if-match", "is missing")],
        )
    word = if_match.strip().strip('"')
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise Problem(
            422,
            'Invalid If-Match; expected a version such as "3".',
            kind="invalid",
            errors=[("header.if-match", "is not a version")],
        )
    return int(word)


def answer_chart(chart: Chart) -> Response:
    return ChartAnswer(chart)

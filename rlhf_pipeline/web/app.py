"""Builds the web app from its sections; serves health checks, /metrics and OpenAPI."""

import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse

from rlhf_pipeline import __version__
from rlhf_pipeline.core.api_types.base import Answer, ProblemDetail, ProblemDocument
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store, homes
from rlhf_pipeline.watch.alerts.rounds import watch_alerts
from rlhf_pipeline.watch.telemetry.prometheus import CONTENT_TYPE
from rlhf_pipeline.watch.telemetry.tracing import open_tracer
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.middleware import LOOPBACK, Guard, RequestMeter, host_name
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.preferences.queries import read_ahead
from rlhf_pipeline.web.problems import OPENAI, Problem, install_problem_handlers, problem_response
from rlhf_pipeline.web.readiness import Readiness
from rlhf_pipeline.web.rendering import STATIC, Pages, problem_page
from rlhf_pipeline.web.routing import (
    PREFIX,
    AnySite,
    RequiredPermission,
    address_of,
    api_router,
    guard_of,
    needs,
    public,
    refuse_undeclared,
)
from rlhf_pipeline.web.section import Section, SectionFiles
from rlhf_pipeline.web.sections import SECTIONS
from rlhf_pipeline.web.site import Site

THIS_MACHINE = frozenset({"127.0.0.1", "::1"})  # the addresses of this machine's own programs
health = api_router("health")
VERSION = "3.1.0"
ABOUT = (
    "Every action of the pages is available as a route. Errors are problem documents (RFC 9457). "
    "Repeating a vote or feedback with the same `Idempotency-Key` stores it once and returns the "
    "first answer. "
    "Lists continue with `cursor` = `next`."
)
TOKEN_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "`rlhf_…`, created on the page `me` or with `rlhf users token`.",
}


class Health(Answer):
    status: Literal["ok"]


def describe_api(app: FastAPI, routes: list[APIRoute]) -> dict[str, Any]:
    """The OpenAPI document of the routes, with `x-permission`."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=VERSION,
        description=ABOUT,
        routes=routes,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (ProblemDetail, ProblemDocument):
        schemas[model.__name__] = model.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        schemas[model.__name__].pop("$defs", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    session = {
        "type": "apiKey",
        "in": "cookie",
        "name": app.state.site.auth.cookie,
        "description": "Session of a browser that logged in.",
    }
    document["components"]["securitySchemes"] = {"token": TOKEN_SCHEME, "session": session}
    for route in routes:
        for method in route.methods or ():
            _complete_operation(document["paths"][route.path_format][method.lower()], route, method)
    return document


def _complete_operation(operation: dict[str, Any], route: APIRoute, method: str) -> None:
    guard = guard_of(route)
    responses = operation.setdefault("responses", {})
    statuses = [400, 422, 500, 503]
    if isinstance(guard, RequiredPermission):
        operation["security"] = [{"token": []}, {"session": []}]
        operation["x-permission"] = guard.permission.value if guard.permission else None
        statuses += [401, 403]
    else:
        operation["security"] = []
        operation["x-public"] = guard.why if guard else None
    if route.path.startswith(OPENAI):  # its errors are not problem documents
        responses.pop("422", None)
        return
    if "{" in route.path:
        statuses.append(404)
    if method in ("POST", "PUT", "PATCH"):
        statuses.append(413)
    if method == "POST":
        statuses.append(409)
    for status in statuses:
        if status == 422 or str(status) not in responses:
            responses[str(status)] = problem_response(status)


metrics = APIRouter()
SCRAPED = public("open to programs of this machine; others need the permission metrics.read")
SCRAPER = needs(Permission.METRICS_READ)


@metrics.get("/metrics", dependencies=[Depends(SCRAPED)], include_in_schema=False)
async def scrape(site: AnySite, request: Request) -> Response:
    if not _is_from_this_machine(site, request):
        try:
            await SCRAPER(request)
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
        and address_of(request) in THIS_MACHINE
        and host_name(request.headers.get("host", "")) in LOOPBACK
    )


OPEN = [Depends(public("health checks reveal no data"))]


@health.get("/healthz", dependencies=OPEN)
def alive() -> Health:
    """Whether the process responds."""
    return Health(status="ok")


@health.get("/readyz", dependencies=OPEN)
def ready(site: AnySite) -> Readiness:
    """Whether the database responds, 503 if it does not; and whether registry and daemon do."""
    return site.readiness()


def create_app(
    settings: Settings,
    store: Store | None = None,
    *,
    has_pages: bool = True,
    sections: Mapping[str, Section] = SECTIONS,
    cache_times: CacheTimes = CacheTimes(),  # noqa: B008 (frozen)
) -> FastAPI:
    """The app over a migrated store, with pages or the API alone. Raises ConfigurationError if a
    route declares no permission.
    """
    if store is None:
        homes.refuse_broken(settings)
        store = Store.of_home(settings)
    store.rules.draw_seed()
    site = Site(settings, store, cache_times)
    title = f"rlhf_pipeline: {settings.project}"
    app = FastAPI(
        title=title,
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=_make_lifespan(site),
    )
    app.state.site = site
    app.state.pages = Pages(sections)
    described = [route for section in sections.values() for route in section.api_routes()]
    described += [route for route in health.routes if isinstance(route, APIRoute)]
    app.router.routes.extend([*described, *metrics.routes])
    if has_pages:
        for section in sections.values():
            app.router.routes.extend(section.page_routes())
    _mount_static_files(app, sections)
    _serve_description(app, described)
    install_problem_handlers(app, problem_page if has_pages else None)
    refuse_undeclared(app)
    app.add_middleware(Guard, hosts=settings.web_hosts, secure=site.auth.is_secure)
    # outermost: refusals count too
    app.add_middleware(RequestMeter, counts=site.request_counts, tracer=open_tracer(settings))
    return app


def _mount_static_files(app: FastAPI, sections: Mapping[str, Section]) -> None:
    folders = {f"/{name}": section.folder for name, section in sections.items()} | {"": STATIC}
    for path, folder in folders.items():
        if folder is not None:
            # Pages are not compressed: the length of one would help to guess a secret in it.
            files = GZipMiddleware(SectionFiles(directory=folder, check_dir=False))
            app.mount(f"/static{path}", files, name="static")


def _make_lifespan(site: Site) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Starts counting votes in a thread, so that a million votes are counted before the first
    request; watches the daemon in another.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=_count_votes, args=(site,), name="counting", daemon=True).start()
        with watch_alerts(site.store, site.settings):
            yield
        if "chat_server" in vars(site):  # it was asked something
            site.chat_server.close()

    return lifespan


def _count_votes(site: Site) -> None:
    with suppress(StoreError):  # the next request reports it
        site.tallies()
        read_ahead(site)


def _serve_description(app: FastAPI, routes: list[APIRoute]) -> None:
    @functools.cache
    def document() -> JSONResponse:
        # takes 0.2 s; blocks no other request
        return JSONResponse(describe_api(app, routes))

    def describe() -> Response:
        """This document."""
        return document()

    app.add_api_route(
        f"{PREFIX}/openapi.json",
        describe,
        include_in_schema=False,
        dependencies=[Depends(public("the routes are not secret"))],
    )

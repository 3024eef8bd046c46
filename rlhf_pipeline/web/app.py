"""Builds the web app of one project from its sections, and serves health checks and OpenAPI."""

import functools
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse, Response

from rlhf_pipeline import __version__
from rlhf_pipeline.alerts.rounds import watch_alerts
from rlhf_pipeline.api_types.project import Health, Readiness
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store, homes
from rlhf_pipeline.telemetry.tracing import open_tracer
from rlhf_pipeline.web import openapi, scrape
from rlhf_pipeline.web.dependencies import AnySite, public, refuse_undeclared
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.preferences.queries import read_ahead
from rlhf_pipeline.web.problems import install_problem_handlers
from rlhf_pipeline.web.rendering import STATIC, Pages, problem_page
from rlhf_pipeline.web.request_meter import RequestMeter
from rlhf_pipeline.web.routing import PREFIX, api_router
from rlhf_pipeline.web.section import Section, SectionFiles
from rlhf_pipeline.web.sections import SECTIONS
from rlhf_pipeline.web.security import Guard
from rlhf_pipeline.web.site import Site

health = api_router("health")
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
    app.router.routes.extend([*described, *scrape.router.routes])
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

    return lifespan


def _count_votes(site: Site) -> None:
    with suppress(StoreError):  # the next request reports it
        site.tallies()
        read_ahead(site)


def _serve_description(app: FastAPI, routes: list[APIRoute]) -> None:
    @functools.cache
    def document() -> JSONResponse:
        # takes 0.2 s; blocks no other request
        return JSONResponse(openapi.describe(app, routes))

    def describe() -> Response:
        """This document."""
        return document()

    app.add_api_route(
        f"{PREFIX}/openapi.json",
        describe,
        include_in_schema=False,
        dependencies=[Depends(public("the routes are not secret"))],
    )

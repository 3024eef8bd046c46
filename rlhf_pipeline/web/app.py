"""The web app of one project, put together: routes, guards, problems. Knows all rooms of `web`;
nobody imports it but those who serve.
"""

import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from rlhf_pipeline import __version__, homes
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store
from rlhf_pipeline.web import api, openapi, pages
from rlhf_pipeline.web.api.routing import PREFIX
from rlhf_pipeline.web.dependencies import public, refuse_undeclared
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.problems import install_problem_handlers
from rlhf_pipeline.web.security import Guard
from rlhf_pipeline.web.site import Site

STATIC = Path(__file__).parent / "static"


def create_app(
    settings: Settings,
    store: Store | None = None,
    *,
    has_pages: bool = True,
    cache_times: CacheTimes = CacheTimes(),  # noqa: B008 (frozen)
) -> FastAPI:
    """The app over a migrated store, with the pages or the API alone. Raises ConfigurationError
    where a route declares no permission.
    """
    if store is None:
        homes.refuse_broken(settings)
        store = Store.open(
            settings.store_url, organization=settings.organization, project=settings.project
        )
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
    described = api.routes()
    app.router.routes.extend(described)
    if has_pages:
        app.router.routes.extend(pages.router.routes)
    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")
    _serve_description(app, described)
    install_problem_handlers(app, pages.problem_page if has_pages else None)
    refuse_undeclared(app)
    app.add_middleware(Guard, hosts=settings.web_hosts, secure=site.auth.is_secure)
    return app


def _make_lifespan(site: Site) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Counts a million votes before anybody asks for them, and keeps nobody waiting for it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=_count_votes, args=(site,), name="counting", daemon=True).start()
        yield

    return lifespan


def _count_votes(site: Site) -> None:
    with suppress(StoreError):  # whoever asks will be told
        site.vote_counter.counts()
        site.quality_counters.catch_up()


def _serve_description(app: FastAPI, routes: list[APIRoute]) -> None:
    @functools.cache
    def document() -> JSONResponse:
        # 0.2 s, which no other request waits for
        return JSONResponse(openapi.describe(app, routes))

    def describe() -> Response:
        """This document."""
        return document()

    app.add_api_route(
        f"{PREFIX}/openapi.json",
        describe,
        include_in_schema=False,
        dependencies=[Depends(public("the routes are no secret"))],
    )

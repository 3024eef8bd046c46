"""A section of the web app: its routes, its tab in the menu, its templates and static files."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import stat_result
from pathlib import Path, PurePath

from fastapi import APIRouter, Depends
from fastapi.dependencies.utils import get_parameterless_sub_dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import API, OPENAI
from rlhf_pipeline.web.routing import PublicRoute, guard_of, needs

STATIC_SUFFIXES = frozenset({".css", ".js", ".png", ".svg", ".woff2"})


@dataclass(frozen=True)
class Section:
    """Routes, and with a `place` a tab for users with the permission.

    The menu lists places; a place of several sections shows them as tabs, named by `tab` and
    leading to `path`. A new name makes a place of its own.
    Routes below /api and /v1 are described in OpenAPI; the others are pages. A route that declares
    no permission of its own requires the section's, and none of its routes may be public.
    `folder` holds the templates, rendered as `<section>/page.html`, and the static files, served at
    `/static/<section>/page.js`.
    """

    routers: tuple[APIRouter, ...]
    permission: Permission | None = None  # None: each route declares its own
    place: str = ""
    tab: str = ""
    path: str = ""
    folder: Path | None = None

    def api_routes(self) -> list[APIRoute]:
        return [
            route
            for route in self._routes()
            if isinstance(route, APIRoute) and route.path.startswith((API, OPENAI))
        ]

    def page_routes(self) -> list[BaseRoute]:
        described = self.api_routes()
        return [route for route in self._routes() if route not in described]

    def _routes(self) -> Iterator[BaseRoute]:
        for router in self.routers:
            for route in router.routes:
                if self.permission is not None and isinstance(route, APIRoute):
                    self._require_permission(route, self.permission)
                yield route

    def _require_permission(self, route: APIRoute, permission: Permission) -> None:
        declared = guard_of(route)
        if isinstance(declared, PublicRoute):
            raise ConfigurationError(
                f"{route.path} is public, but its section {self.tab!r} requires {permission}. "
                "Remove public(…) from the route."
            )
        if declared is not None and declared.permission is not None:
            return
        own = get_parameterless_sub_dependant(
            depends=Depends(needs(permission)), path=route.path_format
        )
        route.dependant.dependencies.insert(0, own)


@dataclass(frozen=True)
class Place:
    """An entry of the menu: sections of one subject, at least one."""

    name: str
    tabs: tuple[Section, ...]

    @property
    def path(self) -> str:
        return self.tabs[0].path


class SectionFiles(StaticFiles):
    """Serves scripts, styles, fonts and pictures of a folder, but no code or templates."""

    def lookup_path(self, path: str) -> tuple[str, stat_result | None]:
        if PurePath(path).suffix not in STATIC_SUFFIXES:
            return "", None
        return super().lookup_path(path)

"""Sections of the web app: an installed package brings one, and its permission is enforced."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import httpx
import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.plugins import Members
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.sections import BUILT_IN
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, ShiftedClock, Web

PACKAGE = {
    "__init__.py": "",
    "routes.py": '''
from pathlib import Path

from fastapi import APIRouter, Request, Response

from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.routing import AnySite, SignedIn
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import api_router
from rlhf_pipeline.web.section import Section

api, pages = api_router("leaderboard"), APIRouter()


@api.get("/leaderboard")
def read(site: AnySite) -> list[str]:
    """Comparisons by name."""
    return [f"{site.store.comparisons.count()} comparisons"]


@pages.get("/leaderboard")
def show_page(site: AnySite, request: Request, principal: SignedIn) -> Response:
    return render("leaderboard/page.html", request, site, principal, title="Best <models>")


section = Section(
    (api, pages),
    Permission.COMPARISONS_READ,
    place="Research",
    tab="Leaderboard",
    path="/leaderboard",
    folder=Path(__file__).parent,
)
''',
    "page.html": """{% extends "base.html" %}
{% block title %}Leaderboard{% endblock %}
{% block head %}<script src="{{ static('leaderboard/page.js') }}"></script>{% endblock %}
{% block main %}<h1>{{ title }}</h1>{% endblock %}
""",
    "page.js": "console.log('leaderboard');\n",
}


@pytest.fixture
def web(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    open_store: Callable[[], Store],
    clock: ShiftedClock,
) -> Iterator[Web]:
    """The app with a section of the installed package `leaderboard_section`."""
    folder = tmp_path / "site-packages" / "leaderboard_section"
    folder.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        monkeypatch.delitem(sys.modules, name)  # an earlier test's folder is gone
    point = EntryPoint("leaderboard", "leaderboard_section.routes:section", "rlhf_pipeline.web")
    sections = Members("web", BUILT_IN, find=lambda group: [point])
    store = open_store()
    app = create_app(settings, store, cache_times=UNCACHED, sections=sections)
    with WebServer(app) as server:
        web = Web(store, settings, server.url, clock)
        yield web
        for client in web.clients:
            client.close()


def get(web: Web, client: httpx.Client, path: str) -> httpx.Response:
    return client.get(f"{web.url}{path}")


def test_installed_section_has_routes_menu_entry_template_and_script(web: Web) -> None:
    reader = web.browser(web.add(Role.ENGINEER))
    page = get(web, reader, "/leaderboard")
    assert page.status_code == 200
    assert "<h1>Best &lt;models&gt;</h1>" in page.text
    assert '<a href="/leaderboard" aria-current="page">Research</a>' in page.text
    assert '<a href="/leaderboard">Research</a>' in get(web, reader, "/progress").text
    script = page.text.partition('<script src="/static/leaderboard/')[2].partition('"')[0]
    answer = get(web, reader, f"/static/leaderboard/{script}")
    assert answer.text == PACKAGE["page.js"]
    assert answer.headers["content-type"].startswith("text/javascript")
    assert reader.get("/leaderboard").json() == ["0 comparisons"]


def test_menu_links_to_places_with_tabs(web: Web) -> None:
    reader = web.browser(web.add(Role.ENGINEER))
    page = get(web, reader, "/runs/spending").text
    menu, _, main = page.partition("</nav>")
    assert '<a href="/runs" aria-current="true">Runs</a>' in menu
    assert 'href="/runs/spending"' not in menu
    assert '<a href="/runs/spending" aria-current="page">Spending</a>' in main
    assert '<a href="/runs">State</a>' in main


def test_menu_has_at_most_twelve_places_of_the_project(web: Web) -> None:
    page = get(web, web.browser(web.add(Role.ADMIN)), "/me").text
    links = page.partition('<nav id="nav"')[2].partition("</nav>")[0].count("<a ")
    assert links == 12 + 1, "and one of the installed package"


def test_routes_without_a_guard_need_the_permission_of_the_section(web: Web) -> None:
    annotator = web.browser(web.add(Role.ANNOTATOR))
    assert get(web, annotator, "/leaderboard").status_code == 403
    assert annotator.get("/leaderboard").status_code == 403
    assert web.anonymous().get("/leaderboard").status_code == 401
    assert 'href="/leaderboard"' not in get(web, annotator, "/annotate").text
    document = web.anonymous().get("/openapi.json").json()
    operation = document["paths"]["/api/v1/leaderboard"]["get"]
    assert operation["x-permission"] == "comparisons.read"


def test_wheel_ships_templates_scripts_and_styles_of_every_section() -> None:
    import tomllib

    root = Path(__file__).parents[2]
    package = root / "rlhf_pipeline"
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    globs = config["tool"]["setuptools"]["package-data"]["rlhf_pipeline"]
    shipped = {path for pattern in globs for path in package.glob(pattern)}
    files = {
        path
        for path in (package / "web").rglob("*")
        if path.suffix in {".html", ".js", ".css", ".svg"}
    }
    assert len(files) > 30
    assert files - shipped == set()

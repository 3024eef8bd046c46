"""Sections of the web app: an installed package brings one, and its permission is enforced."""

import runpy
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
from rlhf_pipeline.web.section import Section
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

api, pages = api_router("standings"), APIRouter()


@api.get("/standings")
def read(site: AnySite) -> list[str]:
    """Comparisons by name."""
    return [f"{site.store.comparisons.count()} comparisons"]


@pages.get("/standings")
def show_page(site: AnySite, request: Request, principal: SignedIn) -> Response:
    return render("standings/page.html", request, site, principal, title="Best <models>")


section = Section(
    (api, pages),
    Permission.COMPARISONS_READ,
    place="Research",
    tab="Standings",
    path="/standings",
    folder=Path(__file__).parent,
)
''',
    "page.html": """{% extends "base.html" %}
{% block title %}Standings{% endblock %}
{% block head %}<script src="{{ static('standings/page.js') }}"></script>{% endblock %}
{% block main %}<h1>{{ title }}</h1>{% endblock %}
""",
    "page.js": "console.log('standings');\n",
}


@pytest.fixture
def web(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    open_store: Callable[[], Store],
    clock: ShiftedClock,
) -> Iterator[Web]:
    """The app with a section of the installed package `standings_section`, and the one of the
    guide.
    """
    folder = tmp_path / "site-packages" / "standings_section"
    folder.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        monkeypatch.delitem(sys.modules, name)  # an earlier test's folder is gone
    point = EntryPoint("standings", "standings_section.routes:section", "rlhf_pipeline.web")
    guide_section = make_section_of_the_guide(tmp_path)
    sections = Members("web", {**BUILT_IN, "leaderboard": guide_section}, find=lambda _: [point])
    store = open_store()
    app = create_app(settings, store, cache_times=UNCACHED, sections=sections)
    with WebServer(app) as server:
        web = Web(store, settings, server.url, clock)
        yield web
        for client in web.clients:
            client.close()


def make_section_of_the_guide(folder: Path) -> Section:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "extending-web.md"
    text = guide.read_text(encoding="utf-8").partition("\n## A page\n")[2]
    files = {"python": "routes.py", "html": "page.html"}
    for language, name in files.items():
        block = text.partition(f"```{language}\n")[2].partition("```")[0]
        (folder / name).write_text(block, encoding="utf-8")
    section: Section = runpy.run_path(str(folder / "routes.py"))["section"]
    return section


def test_the_page_of_the_guide_is_shown_to_whom_it_is_for(web: Web) -> None:
    page = get(web, web.browser(web.add(Role.ENGINEER)), "/leaderboard")
    assert "<h1>Leaderboard</h1>" in page.text
    assert '<a href="/leaderboard" aria-current="page">Leaderboard</a>' in page.text
    assert get(web, web.browser(web.add(Role.ANNOTATOR)), "/leaderboard").status_code == 403


def get(web: Web, client: httpx.Client, path: str) -> httpx.Response:
    return client.get(f"{web.url}{path}")


def test_installed_section_has_routes_menu_entry_template_and_script(web: Web) -> None:
    reader = web.browser(web.add(Role.ENGINEER))
    page = get(web, reader, "/standings")
    assert page.status_code == 200
    assert "<h1>Best &lt;models&gt;</h1>" in page.text
    assert '<a href="/standings" aria-current="page">Research</a>' in page.text
    assert '<a href="/standings">Research</a>' in get(web, reader, "/progress").text
    script = page.text.partition('<script src="/static/standings/')[2].partition('"')[0]
    answer = get(web, reader, f"/static/standings/{script}")
    assert answer.text == PACKAGE["page.js"]
    assert answer.headers["content-type"].startswith("text/javascript")
    assert reader.get("/standings").json() == ["0 comparisons"]


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
    assert get(web, annotator, "/standings").status_code == 403
    assert annotator.get("/standings").status_code == 403
    assert web.anonymous().get("/standings").status_code == 401
    assert 'href="/standings"' not in get(web, annotator, "/annotate").text
    document = web.anonymous().get("/openapi.json").json()
    operation = document["paths"]["/api/v1/standings"]["get"]
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

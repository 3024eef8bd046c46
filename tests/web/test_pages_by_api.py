"""Every action of the pages is an operation of the API: forms, hx- attributes and fetches, as they
stand in templates and modules.
"""

import re
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.rules.routes import LABELS
from tests.web.conftest import UNCACHED
from tests.web.databases import on_sqlite

WEB = Path(create_app.__code__.co_filename).parent
API = "/api/v1"
# Where a form cannot say it as the API does: it has no other method than POST.
SAID_OTHERWISE = {
    "/login": ("post", "/auth/login"),
    "/logout": ("post", "/auth/logout"),
    "/rules": ("put", "/rules"),
    "/users/{}": ("patch", "/users/{}"),
    "/users/{}/disable": ("patch", "/users/{}"),
    "/users/{}/enable": ("patch", "/users/{}"),
    "/alerts/silences/{}/end": ("delete", "/alerts/silences/{}"),
    "/consensus/offer": ("post", "/comparisons:offer"),
    "/me/tokens/{}/revoke": ("delete", "/me/tokens/{}"),
}
# Fields of forms that are no part of the act, or stand elsewhere in its request.
BESIDE = {
    "version": "a header",
    "after": "a header",
    "which": "a day, or all",
    "next": "where the page goes on",
    "is_sure": "that it is meant",
    "hours": "an end, counted from now",
    "id": "one of the ids, a ticked row",
    "comparison_id": "one of the ids",
    "flag": "of another button of the form",
}
# Pages that show what the API gives under another noun.
NOUNS = {
    "annotate": "assignments",
    "login": "auth",
    "alignment": "charts",
    "preferences": "charts",
    "drift": "drift-tests",
    "production": "metrics",
    "calibration": "calibrations",
    "calibration.csv": "calibrations",
    "compare.csv": "compare",
    "": "home",
}


def templates() -> dict[str, str]:
    return {
        path.relative_to(WEB).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(WEB.rglob("*.html"))
    }


def test_every_choice_of_a_list_has_a_value() -> None:
    """The text of an option loses spaces at its ends and all but one in a row."""
    bare = {
        name: found
        for name, text in templates().items()
        if (found := re.findall(r"<option(?! value=).*", text))
    }
    assert bare == {}


def modules() -> dict[str, str]:
    return {
        path.relative_to(WEB).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(WEB.rglob("*.js"))
        if "vendor" not in path.parts
    }


def expanded(address: str) -> set[str]:
    """The addresses an expression of a template may become: each word of a choice, {} for what is
    filled in.
    """
    choice = re.search(r"\{\{ ?['\"](\w+)['\"] if .*? else ['\"](\w+)['\"] ?\}\}", address)
    if choice:
        return {
            one
            for word in choice.groups()
            for one in expanded(address.replace(choice.group(), word))
        }
    return {re.sub(r"\{\{.*?\}\}|\$\{.*?\}", "{}", address)}


def forms() -> list[tuple[str, str, set[str]]]:
    """(template, address, names of its fields) of each form that changes something."""
    found = []
    for name, source in templates().items():
        for head, inside in re.findall(
            r"<form ([^>]*(?:\{\{[^}]*\}\}[^>]*)*)>(.*?)</form>", source, re.DOTALL
        ):
            if 'method="post"' not in head:
                continue
            fields = set(re.findall(r'\bname="(\w+)"', inside)) | set(
                re.findall(r'boxes\(.*?, "(\w+)",', inside)
            )
            for attribute in ("action", "hx-post"):
                said = re.search(rf'{attribute}="([^"]*(?:\{{\{{.*?\}}\}}[^"]*)*)"', head)
                found += [
                    (name, address.partition("?")[0], fields)
                    for address in (expanded(said.group(1)) if said else ())
                ]
            # another button of the form, which sends the same fields
            found += [(name, one, set()) for one in re.findall(r'formaction="([^"?]*)', inside)]
    return found


def bare(path: str) -> str:
    return re.sub(r"\{\w*(:\w+)?\}", "{}", path.removeprefix(API))


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method, bare(path)): one
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }


def operation_of(address: str, known: dict[tuple[str, str], Any]) -> tuple[str, str] | None:
    """`/comparisons/offer` is `POST comparisons:offer`."""
    noun, _, verb = address.rpartition("/")
    for one in (SAID_OTHERWISE.get(address), ("post", address), ("post", f"{noun}:{verb}")):
        if one in known:
            return one
    return None


def document_of(web: Any) -> dict[str, Any]:
    return web.anonymous().get("/openapi.json").json()


def body_of(operation: dict[str, Any], document: dict[str, Any]) -> set[str]:
    schema = (
        operation.get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
    )
    for one in (schema, *schema.get("anyOf", ())):
        if "$ref" in one:
            return set(
                document["components"]["schemas"][one["$ref"].rpartition("/")[2]]["properties"]
            )
    return set(schema.get("properties", ()))


@on_sqlite
def test_every_form_is_an_operation_and_says_nothing_that_the_operation_does_not_take(web):
    document = document_of(web)
    known = operations(document)
    assert len(forms()) >= 15
    for template, address, fields in forms():
        operation = operation_of(address, known)
        assert operation is not None, (template, address)
        takes = body_of(known[operation], document)
        if address == "/rules":  # its fields are filled in
            assert set(LABELS) <= takes
        if address == "/login":
            takes |= body_of(known["post", "/auth/redeem"], document)
        assert fields - BESIDE.keys() <= takes, (template, address, operation)


@on_sqlite
def test_every_route_of_the_pages_that_changes_something_stands_in_a_form(
    settings, open_store, web
):
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    routes = {
        bare(route.path)
        for route in app.routes
        if isinstance(route, APIRoute)
        and "POST" in route.methods
        and not route.path.startswith(API)
    }
    assert routes == {address for _, address, _ in forms()}
    assert all(operation_of(address, operations(document_of(web))) for address in routes)
    changing = {
        route.path
        for route in app.routes
        if isinstance(route, APIRoute)
        and not route.path.startswith(API)
        and route.methods - {"GET", "HEAD", "POST"}
    }
    assert changing == set()


@on_sqlite
def test_every_page_shows_what_the_api_gives(settings, open_store, web):
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    nouns = {
        path.strip("/").replace(":", "/").split("/")[0] for _, path in operations(document_of(web))
    }
    pages = {
        route.path.strip("/").split("/")[0]
        for route in app.routes
        if isinstance(route, APIRoute) and "GET" in route.methods and not route.path.startswith(API)
    }
    assert len(pages) > 12
    shown = {NOUNS.get(page, page.removesuffix(".csv")) for page in pages}
    assert shown <= nouns, shown - nouns


@on_sqlite
def test_what_scripts_and_attributes_ask_for_is_of_the_api_or_a_page(settings, open_store, web):
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    known = {path for _, path in operations(document_of(web))}
    pages = {
        bare(route.path)
        for route in app.routes
        if isinstance(route, APIRoute) and not route.path.startswith(API)
    }
    sources = {**modules(), **templates()}
    asked = {
        bare(one)
        for source in sources.values()
        for address in re.findall(rf"[\"'`]({API}/[^\"'`\s?]*)", source)
        for one in expanded(address)
    }
    assert asked <= known, asked - known
    assert {
        "/votes",
        "/assignments:lease",
        "/assignments/{}:release",
        "/progress/events",
        "/me/statistics",
    } <= asked
    for name, source in modules().items():
        # Each goes to an address that was looked at above, by itself or as what a function is
        # handed.
        calls = re.findall(
            r"\b(?:fetch|sendBeacon|EventSource|XMLHttpRequest)\(\s*([^,)\s]*)", source
        )
        assert all(
            re.match(rf"[\"'`]{API}/", one) or one in ("VOTES", "path", "url", "live.dataset.live")
            for one in calls
        ), (name, calls)
    for name, source in templates().items():
        for address in re.findall(r'hx-(?:get|post|put|patch|delete)="([^"?]*)', source):
            # {}: the list's own address
            assert expanded(address) <= pages | {"{}"}, (name, address)

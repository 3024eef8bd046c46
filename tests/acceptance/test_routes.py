"""Every route of the API and of the pages lets in the roles of routes.csv, and nobody else.

`routes.csv` says per method and path who may: `public`, `any` for everybody who is logged in, or
roles. A new route needs its line there; a removed one loses it.
"""

import csv
import re
from pathlib import Path

import httpx
import pytest

from tests.acceptance.home import ROLES, Server

TABLE = Path(__file__).with_name("routes.csv")
# They end the login that asks, or answer a wrong one with 401.
OF_LOGINS = {("POST", "/api/v1/auth/logout"), ("POST", "/logout"), ("POST", "/login")}
REFUSED = (401, 403)
Route = tuple[str, str]


def read_table() -> dict[Route, str]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {(row["method"], row["path"]): row["roles"] for row in csv.DictReader(file)}


def is_api(route: Route) -> bool:
    return route[1].startswith(("/api/", "/v1/"))


def ask(client: httpx.Client, route: Route) -> int:
    """The status of a request that is let in or not, and does nothing: its ids name nothing, its
    body is wrong.
    """
    method, path = route
    address = re.sub(r"\{[^}]*(version|_id)\}", "999", path)
    address = re.sub(r"\{[^}]*\}", "none", address)
    body = {"json": {"nothing": 1}} if is_api(route) else {"data": {}}
    with client.stream(method, address, **({} if method == "GET" else body)) as answer:  # type: ignore[arg-type]
        to_login = answer.headers.get("location", "").startswith("/login")
        return 401 if to_login else answer.status_code


def who_may(route: Route, clients: dict[str, httpx.Client], anonymous: httpx.Client) -> str:
    """What the live server answers, in the words of the table."""
    statuses = {role: ask(client, route) for role, client in clients.items()}
    assert all(status < 500 for status in statuses.values()), (route, statuses)
    is_in = [role for role, status in statuses.items() if status not in REFUSED]
    if ask(anonymous, route) not in REFUSED:
        return "public"
    return "any" if len(is_in) == len(clients) else " ".join(is_in)


@pytest.fixture(scope="module")
def clients(site: Server) -> dict[str, httpx.Client]:
    """One person of each role, and somebody who may log in and has none."""
    return {role: site.add(role).api for role in ROLES} | {"nobody": site.add().api}


def test_the_table_has_every_operation_of_the_api(site: Server) -> None:
    document = site.connect().get("/api/v1/openapi.json").json()
    live = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert live == {route for route in read_table() if is_api(route)}


def test_route_table_has_every_linked_page(site: Server) -> None:
    """A crawl from the start page of an admin: links, forms and downloads."""
    known = {
        (method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path) + "$"))
        for method, path in read_table()
    }
    todo, routes = ["/"], set()
    while todo:
        path = todo.pop()
        answer = site.admin.get(path)
        assert answer.status_code == 200, (path, answer.status_code)
        if "text/html" not in answer.headers["content-type"]:
            continue
        forms = re.findall(r'<form[^>]*\bmethod="post"[^>]*>', answer.text)
        targets = [("POST", a) for form in forms for a in re.findall(r'\baction="([^"]+)"', form)]
        targets += [("GET", a) for a in re.findall(r'<a [^>]*\bhref="(/[^"]*)"', answer.text)]
        for method, address in targets:
            bare = re.split(r"[?#]", address)[0]
            if (method, bare) in routes or bare.startswith("/static/"):
                continue
            routes.add((method, bare))
            if method == "GET":
                todo.append(bare)
    assert len(routes) > 30
    unknown = {
        (method, path)
        for method, path in routes
        if not any(method == m and pattern.match(path) for m, pattern in known)
    }
    assert unknown == set()


def test_every_operation_admits_the_roles_of_the_table(
    site: Server, clients: dict[str, httpx.Client]
) -> None:
    anonymous = site.connect()
    table = {
        route: roles
        for route, roles in read_table().items()
        if is_api(route) and route not in OF_LOGINS
    }
    assert {route: who_may(route, clients, anonymous) for route in table} == table


def test_every_page_admits_the_roles_of_the_table(
    site: Server, clients: dict[str, httpx.Client]
) -> None:
    anonymous = site.connect()
    table = {
        route: roles
        for route, roles in read_table().items()
        if not is_api(route) and route not in OF_LOGINS
    }
    assert {route: who_may(route, clients, anonymous) for route in table} == table


def test_a_token_of_another_home_is_refused_everywhere(site: Server, server: Server) -> None:
    theirs = server.home.token(server.add("admin").email)
    assert server.with_token(theirs).get("/api/v1/me").status_code == 200
    stranger = site.with_token(theirs)
    let_in = [
        route
        for route, roles in read_table().items()
        if roles != "public" and ask(stranger, route) not in REFUSED
    ]
    assert let_in == []


def test_token_has_the_permissions_of_its_owner(site: Server) -> None:
    curator = site.add("curator")
    program = site.with_token(site.home.token(curator.email))
    assert program.get("/api/v1/me").json()["user_id"] == curator.user_id
    assert program.get("/api/v1/comparisons").status_code == 200
    assert program.get("/api/v1/users").status_code == 403

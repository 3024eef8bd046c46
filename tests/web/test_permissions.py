"""Who may do what: every route declares it, and every role is let in exactly where its permissions
say.
"""

import re
from pathlib import Path

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.permissions import ROLE_PERMISSIONS, Permission
from rlhf_pipeline.records import Role
from rlhf_pipeline.store.users import VOTERS
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.blindness import RequiredAllVotes
from rlhf_pipeline.web.dependencies import (
    PublicRoute,
    RequiredPermission,
    guard_of,
    needs,
    public,
    refuse_undeclared,
)
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite

ROOT = Path(__file__).parents[2]
# Values that are well-formed and name nothing: whoever is let in meets 404 or 422, whoever is not
# meets 403.
IDS = ("version", "feedback_id", "alert_id", "silence_id", "decision_id")
PATHS = dict.fromkeys(IDS, "999")
PATHS["figure"] = "ties"
BLIND = (Role.ANNOTATOR.value, Role.CURATOR.value)  # roles that may vote and do not see all votes


def operations(web: Web) -> list[tuple[str, str, dict]]:
    document = httpx.get(f"{web.url}/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def ask(client: httpx.Client, method: str, path: str) -> int:
    for name in (
        "version",
        "figure",
        "feedback_id",
        "assignment_id",
        "comparison_id",
        "token_id",
        "user_id",
        "reward_model",
        "alert_id",
        "silence_id",
        "decision_id",
        "rule",
        "message_id",
        "target",
    ):
        path = path.replace(f"{{{name}}}", PATHS.get(name, "none"))
    assert "{" not in path, f"say what stands for the parameter of {path}"
    with client.stream(
        method.upper(),
        f"{client.base_url.scheme}://{client.base_url.netloc.decode()}{path}",
        json={"nothing": 1},
    ) as answer:
        return answer.status_code


@on_sqlite
def test_every_operation_lets_in_exactly_those_who_have_its_permission(web: Web):
    asked = 0
    clients: dict[str, httpx.Client] = {role.value: web.client(role) for role in Role} | {
        "nobody": web.client()
    }
    clients |= {
        f"token for {permission}": web.client("admin", scopes=[permission.value])
        for permission in Permission
    }
    clients["anonymous"] = web.anonymous()
    allowed = {role.value: ROLE_PERMISSIONS[role] for role in Role} | {
        f"token for {p}": {p} for p in Permission
    }
    allowed |= {f"{role} in every project": ROLE_PERMISSIONS[role] for role in Role}
    for method, path, operation in operations(web):
        # end what the test needs; their own tests are in test_logins
        if path.endswith(("/auth/logout", "/me/password")):
            continue
        for name, client in clients.items():
            status = ask(client, method, path)
            if "x-public" in operation:
                assert status not in (403,), (name, method, path, status)
                continue
            wanted = operation["x-permission"]
            is_let_in = name != "anonymous" and (wanted is None or wanted in allowed.get(name, ()))
            is_let_in &= not (operation["x-all-votes"] and name.partition(" ")[0] in BLIND)
            if name == "anonymous":
                assert status == 401, (name, method, path, status)
            elif is_let_in:
                assert status < 500, (name, method, path, status)
                assert status not in (401, 403), (name, method, path, status)
            else:
                assert status == 403, (name, method, path, status)
            asked += 1
    assert asked > 1000


@on_sqlite
def test_every_page_lets_in_exactly_those_who_have_its_permission(web: Web):
    app = create_app(web.settings, web.store, cache_times=UNCACHED)
    routes = [
        route
        for route in app.routes
        if isinstance(route, APIRoute) and not route.path.startswith("/api/")
    ]
    assert len(routes) > 15
    with WebServer(app) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        browsers = {role.value: pages.browser(pages.add(role)) for role in Role} | {
            "anonymous": pages.anonymous()
        }
        for route in routes:
            guard = guard_of(route)
            path = re.sub(r"\{\w+(:\w+)?\}", "999", route.path)
            if isinstance(guard, PublicRoute) or path in ("/logout", "/me/password"):
                continue
            for name, browser in browsers.items():
                for method in sorted(route.methods - {"HEAD"}):
                    data = {"data": {}} if method == "POST" else {}
                    with browser.stream(method, f"{server.url}{path}", **data) as answer:
                        status, place = answer.status_code, answer.headers.get("location", "")
                    told = (name, method, path, status, place)
                    if name == "anonymous":
                        assert status == 401 or (status == 303 and place.startswith("/login")), told
                    elif isinstance(guard, RequiredAllVotes) and name in BLIND:
                        assert status == 403, told
                    elif (
                        guard.permission is None or guard.permission in ROLE_PERMISSIONS[Role(name)]
                    ):
                        assert status < 500, told
                        assert status not in (401, 403), told
                        assert not place.startswith("/login"), told
                    else:
                        assert status == 403, told


@on_sqlite
def test_every_permission_is_asked_for_somewhere(web: Web):
    asked = {operation.get("x-permission") for _, _, operation in operations(web)}
    assert {permission.value for permission in Permission} <= asked


@on_sqlite
def test_the_document_says_what_every_operation_needs(web: Web):
    for method, path, operation in operations(web):
        assert "x-public" in operation or "x-permission" in operation, (method, path)
        assert operation["security"] or "x-public" in operation
        assert "422" in operation["responses"]
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert "application/problem+json" in answer["content"], (method, path, status)


@on_sqlite
def test_pages_and_api_declare_every_route(settings, open_store):
    # refuses to start where one does not
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 30
    assert all(isinstance(guard_of(route), RequiredPermission | PublicRoute) for route in routes)


@pytest.mark.parametrize("declared", [True, False])
def test_an_app_with_an_undeclared_route_does_not_start(declared: bool):
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/open", dependencies=[Depends(public("a test"))])(lambda: None)
    app.get("/closed", dependencies=[Depends(needs(Permission.AUDIT_READ))])(lambda: None)
    if declared:
        refuse_undeclared(app)
        return
    app.get("/forgotten")(lambda: None)
    with pytest.raises(ConfigurationError, match=r"GET /forgotten.*needs\(Permission"):
        refuse_undeclared(app)


def test_a_plain_starlette_route_is_undeclared_too():
    app = FastAPI()  # brings its own documentation routes
    with pytest.raises(ConfigurationError, match="/docs"):
        refuse_undeclared(app)


def test_the_document_of_roles_says_what_the_code_does():
    rows = re.findall(
        r"^\| (\w+) \| (.*) \|$",
        (ROOT / "docs" / "api.md").read_text().partition("## Roles")[2],
        re.MULTILINE,
    )
    told = {role: set(re.findall(r"`([\w.]+)`", said)) for role, said in rows[1:]}
    told["curator"] |= told["annotator"]
    told["admin"] = {permission.value for permission in Permission}
    assert told == {
        role.value: {permission.value for permission in allowed}
        for role, allowed in ROLE_PERMISSIONS.items()
    }


def test_the_store_knows_which_roles_vote():
    """It leaves to anybody what somebody was asked for who votes no more."""
    assert {
        role
        for role, permissions in ROLE_PERMISSIONS.items()
        if Permission.VOTES_CAST in permissions
    } == VOTERS

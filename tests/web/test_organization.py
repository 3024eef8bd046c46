"""Roles that hold in every project of an organisation: where they let in, who gives them, what they
never become.
"""

import httpx
import pytest

from rlhf_pipeline.records import Role, User
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite  # what they ask of the store is tested there, on both


@pytest.fixture
def other(web: Web, settings, open_store):
    """Another project of the same organisation, served from a home of its own."""
    store = open_store("other")
    theirs = settings.model_copy(update={"project": "other", "home": settings.home / "other"})
    with WebServer(create_app(theirs, store, has_pages=False, cache_times=UNCACHED)) as server:
        yield Web(store, theirs, server.url, web.clock)


def everywhere(web: Web, *roles: str) -> User:
    n = web.store.users.count()
    return web.store.users.add(
        email=f"boss{n}@example.org",
        name="Boss",
        organization_roles=[Role(role) for role in roles],
        actor="test",
    )


def test_who_has_a_role_in_the_organisation_is_let_in_by_every_project(web: Web, other: Web):
    boss = everywhere(web, "auditor")
    here, there = (one.client(user=boss) for one in (web, other))
    assert here.get("/audit").status_code == there.get("/audit").status_code == 200
    assert here.get("/me").json()["roles"] == ["auditor"]
    token = httpx.Client(base_url=f"{other.url}/api/v1", headers=dict(here.headers))
    # a token of the organisation's account is one in each of its projects
    assert token.get("/audit").status_code == 200
    assert there.get("/users").status_code == 403
    assert other.browser(boss).get("/audit").status_code == 200
    root = other.client("admin")
    assert other.change(root, boss.user_id, roles=["curator"]).json()["organization_roles"] == [
        "auditor"
    ]
    assert sorted(there.get("/me").json()["roles"]) == ["auditor", "curator"]
    assert here.get("/me").json()["roles"] == ["auditor"]


def test_an_admin_of_one_project_has_no_say_over_the_organisation(web: Web, other: Web):
    ann, boss = web.add("annotator"), everywhere(web, "auditor")
    root, chief = web.browser(web.add("admin")), web.browser(everywhere(web, "admin"))
    refused = [
        root.post("/users", json={"email": "more@example.org", "organization_roles": ["auditor"]}),
        web.change(root, ann.user_id, organization_roles=["auditor"]),
        web.change(root, boss.user_id, organization_roles=[]),
        web.change(root, boss.user_id, disabled=True),
        web.change(root, boss.user_id, name="Nobody"),
        root.post(f"/users/{boss.user_id}:login-link"),
    ]
    assert [(answer.status_code, answer.json()["type"]) for answer in refused] == [
        (403, "urn:rlhf:problem:not_of_organization")
    ] * 6
    assert web.store.users.get(boss.user_id) == boss
    # what they may do here is this project's own
    assert web.change(root, boss.user_id, roles=["curator"]).status_code == 200

    changed = web.change(chief, ann.user_id, organization_roles=["engineer"])
    assert (changed.status_code, changed.json()["roles"], changed.json()["organization_roles"]) == (
        200,
        ["annotator"],
        ["engineer"],
    )
    link = chief.post(f"/users/{ann.user_id}:login-link").json()["login_link"]
    browser = httpx.Client(base_url=f"{other.url}/api/v1", headers={"Origin": other.url})
    assert (
        browser.post("/auth/redeem", json={"token": link.partition("token=")[2]}).status_code == 204
    )
    assert browser.get("/me").json()["roles"] == ["engineer"]
    assert web.change(chief, boss.user_id, disabled=True).json()["disabled_at"] is not None
    acts = [
        link["action"]
        for link in chief.get("/audit", params={"action": "*organization"}).json()["items"]
    ]
    assert acts == []  # an action is named whole, or by its beginning
    acts = [
        link["action"]
        for link in chief.get("/audit", params={"object_id": ann.user_id}).json()["items"]
    ]
    assert acts == [
        "roles.grant.organization",
        "users.into_organization",
        "roles.grant",
        "users.add",
    ]
    added = chief.post(
        "/users",
        json={"email": "more@example.org", "roles": ["curator"], "organization_roles": ["auditor"]},
    )
    assert (added.status_code, added.json()["in_every_project"]) == (201, True)


def test_a_token_carries_no_say_over_the_organisation_beyond_its_scopes(web: Web):
    chief = everywhere(web, "admin")
    reading = web.client(user=chief, scopes=["users.read"])
    assert reading.get("/users").status_code == 200
    assert (
        reading.post(
            "/users", json={"email": "x@example.org", "organization_roles": ["auditor"]}
        ).status_code
        == 403
    )


def test_a_token_gives_no_role_of_the_organisation_which_would_outlive_it(web: Web):
    """Of a token for ten minutes came an admin of every project. What it does in its own project
    its scope says, and the chain tells.
    """
    chief = everywhere(web, "admin")
    ann = web.add("annotator")
    boss = everywhere(web, "auditor")
    writing = web.client(user=chief, scopes=["users.write", "users.read"], lasts=600)
    refused = [
        writing.post("/users", json={"email": "x@example.org", "organization_roles": ["auditor"]}),
        web.change(writing, ann.user_id, organization_roles=["admin"]),
        web.change(writing, boss.user_id, organization_roles=["auditor", "curator"]),
    ]
    assert [(answer.status_code, answer.json()["type"]) for answer in refused] == [
        (403, "urn:rlhf:problem:no_session")
    ] * 3
    assert "rlhf users roles" in refused[0].json()["detail"]
    assert (web.store.users.with_email("x@example.org"), web.store.users.get(ann.user_id)) == (
        None,
        ann,
    )
    assert web.change(writing, ann.user_id, roles=["curator"]).json()["roles"] == ["curator"]
    assert (
        web.change(writing, boss.user_id, organization_roles=["auditor"], name="Bea").json()["name"]
        == "Bea"
    )
    # what it takes, nobody keeps
    assert (
        web.change(writing, boss.user_id, organization_roles=[]).json()["organization_roles"] == []
    )
    assert (
        web.change(web.browser(chief), ann.user_id, organization_roles=["auditor"]).status_code
        == 200
    )

"""Every route declares who may call it, and the documents say the same."""

from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store.users import VOTERS
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.permissions import ROLE_PERMISSIONS, Permission
from rlhf_pipeline.web.routing import (
    PublicRoute,
    RequiredPermission,
    guard_of,
    needs,
    public,
    refuse_undeclared,
)
from tests.web.conftest import UNCACHED, Web

ROOT = Path(__file__).parents[2]


def operations(web: Web) -> list[tuple[str, str, dict]]:
    document = httpx.get(f"{web.url}/api/v1/openapi.json", timeout=60).json()
    assert document["openapi"].startswith("3.1")
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_permission_is_used(web: Web):
    permissions = {operation.get("x-permission") for _, _, operation in operations(web)}
    assert {permission.value for permission in Permission} <= permissions


def test_openapi_names_the_permission_of_every_operation(web: Web):
    for method, path, operation in operations(web):
        assert "x-public" in operation or "x-permission" in operation, (method, path)
        assert operation["security"] or "x-public" in operation
        if path.startswith("/v1/"):  # errors have the shape of OpenAI's API there
            continue
        assert "422" in operation["responses"]
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert "application/problem+json" in answer["content"], (method, path, status)


def test_pages_and_api_declare_every_route(settings, open_store):
    # refuses to start where one does not
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 30
    assert all(isinstance(guard_of(route), RequiredPermission | PublicRoute) for route in routes)


@pytest.mark.parametrize("declared", [True, False])
def test_app_with_an_undeclared_route_does_not_start(declared: bool):
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/open", dependencies=[Depends(public("a test"))])(lambda: None)
    app.get("/closed", dependencies=[Depends(needs(Permission.AUDIT_READ))])(lambda: None)
    if declared:
        refuse_undeclared(app)
        return
    app.get("/forgotten")(lambda: None)
    with pytest.raises(ConfigurationError, match=r"GET /forgotten.*needs\(Permission"):
        refuse_undeclared(app)


def test_plain_starlette_route_is_undeclared():
    app = FastAPI()  # brings its own documentation routes
    with pytest.raises(ConfigurationError, match="/docs"):
        refuse_undeclared(app)


def test_voter_roles_of_the_store_match_the_permissions():
    """It leaves to anybody what somebody was asked for who votes no more."""
    assert {
        role
        for role, permissions in ROLE_PERMISSIONS.items()
        if Permission.VOTES_CAST in permissions
    } == VOTERS


def test_every_number_of_an_address_fits_the_databases(settings, open_store):
    app = create_app(settings, open_store(), cache_times=UNCACHED)
    numbers = [
        (route.path, param.name, TypeAdapter(Annotated[int, *param.field_info.metadata]))
        for route in app.routes
        if isinstance(route, APIRoute)
        for param in route.dependant.path_params
        if param.field_info.annotation is int
    ]
    assert len(numbers) > 20
    for *place, number in numbers:
        with pytest.raises(ValidationError):
            pytest.fail(f"{place} takes {number.validate_python(2**63)}")

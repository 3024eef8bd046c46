"""Builds the OpenAPI document, with the permission and the problem documents of each route."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from rlhf_pipeline.api_types.base import ProblemDetail, ProblemDocument
from rlhf_pipeline.web.dependencies import RequiredPermission, guard_of
from rlhf_pipeline.web.problems import MEDIA_TYPE

VERSION = "3.1.0"
PROBLEM = "#/components/schemas/ProblemDocument"
ABOUT = (
    "Every action of the pages is available as a route. Errors are problem documents (RFC 9457). "
    "Repeating a vote or feedback with the same `Idempotency-Key` stores it once and returns the "
    "first answer. "
    "Lists continue with `cursor` = `next`."
)
TOKEN_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "`rlhf_…`, created on the page `me` or with `rlhf users token`.",
}


def problem_response(status: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": PROBLEM}}},
    }


def describe(app: FastAPI, routes: list[APIRoute]) -> dict[str, Any]:
    """The OpenAPI document of the routes, with `x-permission`."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=VERSION,
        description=ABOUT,
        routes=routes,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (ProblemDetail, ProblemDocument):
        schemas[model.__name__] = model.model_json_schema(
            ref_template="#/components/schemas/{model}"
        )
        schemas[model.__name__].pop("$defs", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    session = {
        "type": "apiKey",
        "in": "cookie",
        "name": app.state.site.auth.cookie,
        "description": "Session of a browser that logged in.",
    }
    document["components"]["securitySchemes"] = {"token": TOKEN_SCHEME, "session": session}
    for route in routes:
        for method in route.methods or ():
            _complete_operation(document["paths"][route.path_format][method.lower()], route, method)
    return document


def _complete_operation(operation: dict[str, Any], route: APIRoute, method: str) -> None:
    guard = guard_of(route)
    responses = operation.setdefault("responses", {})
    statuses = [400, 422, 500, 503]
    if isinstance(guard, RequiredPermission):
        operation["security"] = [{"token": []}, {"session": []}]
        operation["x-permission"] = guard.permission.value if guard.permission else None
        statuses += [401, 403]
    else:
        operation["security"] = []
        operation["x-public"] = guard.why if guard else None
    if "{" in route.path:
        statuses.append(404)
    if method in ("POST", "PUT", "PATCH"):
        statuses.append(413)
    if method == "POST":
        statuses.append(409)
    for status in statuses:
        if status == 422 or str(status) not in responses:
            responses[str(status)] = problem_response(status)

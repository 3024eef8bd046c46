"""How a router of the API is made, so that all answer alike. Knows FastAPI; knows no noun."""

from typing import Any

from fastapi import APIRouter

from rlhf_pipeline.web.idempotency import IdempotentRoute
from rlhf_pipeline.web.openapi import problem_response

PREFIX = "/api/v1"


def api_router(*nouns: str, route: type[IdempotentRoute] = IdempotentRoute) -> APIRouter:
    return APIRouter(prefix=PREFIX, tags=list(nouns), route_class=route)


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems that a route answers with, beside those that any may."""
    return {status: problem_response(status) for status in statuses}

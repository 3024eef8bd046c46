"""Creates routers of the API, with shared prefix and problem documents."""

from typing import Any

from fastapi import APIRouter

from rlhf_pipeline.web.openapi import problem_response

PREFIX = "/api/v1"


def api_router(*nouns: str) -> APIRouter:
    return APIRouter(prefix=PREFIX, tags=list(nouns))


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems of a route in addition to the common ones."""
    return {status: problem_response(status) for status in statuses}

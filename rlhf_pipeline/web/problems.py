"""Maps errors to RFC 9457 problem documents and statuses."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from rlhf_pipeline.core import errors
from rlhf_pipeline.core.terminal import escape_controls

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
API = "/api/"
OPENAI = "/v1/"  # routes in the shape of OpenAI's API, their errors too
SCHEMA = "#/components/schemas/ProblemDocument"
QUERY = "query."  # begins the paths of errors in the query of an address
UNREADABLE = {  # what a text should have been, by pydantic's type of error
    "int_parsing": "a whole number",
    "date_from_datetime_parsing": "a date",
    "date_from_datetime_inexact": "a date",
}
RETRY_SOON = {"Retry-After": "1"}
LOG_IN = {"WWW-Authenticate": "Bearer"}
UNAVAILABLE = "The database is not available; see the log of the server. Retry in a moment."

# The first match applies. An error without a match is a bug: 500.
STATUS_OF: tuple[tuple[type[errors.PipelineError], int], ...] = (
    (errors.UnknownComparison, 404),
    (errors.LoginEnded, 401),
    (errors.NotFound, 404),
    (errors.InvalidVote, 422),
    (errors.IdempotencyConflict, 422),
    (errors.UnstorableText, 422),
    (errors.AlreadyVoted, 409),
    (errors.AlertState, 409),
    (errors.DatasetConflict, 409),
    (errors.ReviewConflict, 409),
    (errors.ReleaseConflict, 409),
    (errors.ExperimentConflict, 409),
    (errors.OutdatedEdit, 412),
    (errors.NotEnoughData, 422),
    (errors.DatasetError, 422),
    (errors.ConfigurationError, 422),
    (errors.FrameError, 422),
    (errors.StoreError, 503),
)


class Problem(Exception):
    """A refused or failed request, with its reason and its cure."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        errors: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        title: str = "",
    ):
        """`title`: of a refusal that people should read as a statement, not as an error."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind
        self.errors = errors
        self.headers = dict(headers or {})
        self.title = title

    def document(self) -> dict[str, Any]:
        kind = f"urn:rlhf:problem:{self.kind}" if self.kind else "about:blank"
        return {
            "type": kind,
            "title": self.title or HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "errors": [{"path": path, "message": message} for path, message in self.errors],
        }

    def openai_document(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        field = self.errors[0][0].removeprefix("body.") if self.errors else None
        return {"error": {"message": self.detail, "type": kind, "param": field, "code": self.kind}}

    def response(self, path: str = API) -> Response:
        """The answer to a request to `path`."""
        if not path.startswith(OPENAI):
            return Response(json.dumps(self.document()), self.status, self.headers, MEDIA_TYPE)
        status = 400 if self.status == 422 else self.status
        return JSONResponse(self.openai_document(), status, self.headers)


def _join_path(parts: Sequence[object]) -> str:
    """The wrong field, without the kinds of a union that were tried, such as list[str]."""
    return ".".join(str(part) for part in parts if "[" not in str(part))


def problem_of(error: Exception) -> Problem:
    """The problem document for an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        wrong = [
            (_join_path(field_error["loc"]), describe_invalid(field_error))
            for field_error in error.errors()[:50]
        ]
        summary = "; ".join(f"{path.removeprefix(QUERY)}: {message}" for path, message in wrong[:3])
        return Problem(
            422,
            f"Invalid request: {summary}. Correct these fields and send it again.",
            kind="invalid",
            errors=wrong,
        )
    if isinstance(error, HTTPException):
        is_unrouted = error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase
        detail = (
            "Nothing exists at this address. Check the spelling."
            if is_unrouted
            else str(error.detail)
        )
        return Problem(error.status_code, detail, headers=error.headers)
    # the client is gone; unhandled, this would be logged as a bug
    if isinstance(error, ClientDisconnect):
        return Problem(
            408,
            "The connection ended before the request was complete. Send it again.",
            kind="incomplete",
        )
    for kind, status in STATUS_OF:
        if isinstance(error, kind):
            headers = RETRY_SOON if status == 503 else LOG_IN if status == 401 else None
            # the cause names paths, hosts and users of the server
            detail = UNAVAILABLE if status == 503 else str(error)
            return Problem(status, detail, kind=_snake_case(type(error).__name__), headers=headers)
    return Problem(
        500,
        "The server failed because of a bug; see its log. Nothing of this request was stored.",
        kind="bug",
    )


def describe_invalid(error: Mapping[str, Any]) -> str:
    """Pydantic's message, or plain words for a text that cannot be read or has a wrong length."""
    expectation = UNREADABLE.get(error["type"])
    if expectation:
        return f"{str(error['input'])[:50]!r} is not {expectation}"
    if error["type"] == "too_short" and not error["input"]:
        return "must not be empty"
    if error["type"] == "too_long" and isinstance(error["input"], str):
        return f"must have at most {error['ctx']['max_length']:,} characters"
    return str(error["msg"]).removeprefix("Value error, ")


def problem_response(status: int) -> dict[str, Any]:
    """The response of a problem in OpenAPI."""
    return {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMA}}},
    }


ProblemPage = Callable[[Request, Problem], Awaitable[Response]]


def install_problem_handlers(app: FastAPI, page: ProblemPage | None) -> None:
    """Answer every error with a problem: a document below /api/, a page elsewhere."""

    async def handle_error(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status == 503:  # the server logs the traceback of a 500
            log.error("%s", escape_controls(f"{request.method} {request.url.path}: {error}"))
        if page is None or request.url.path.startswith((API, OPENAI)):
            return problem.response(request.url.path)
        return await page(request, problem)

    handler: Callable[[Request, Exception], Awaitable[Response]] = handle_error
    for kind in (
        Problem,
        RequestValidationError,
        HTTPException,
        ClientDisconnect,
        errors.PipelineError,
        Exception,
    ):
        app.add_exception_handler(kind, handler)


def _snake_case(name: str) -> str:
    """`AlreadyVoted` -> `already_voted`"""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")

"""Routes in the shape of OpenAI's API: answers of the deployed version, whole or streamed."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse

from rlhf_pipeline.core.api_types.chat import ChatRequest
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import OPENAI, RETRY_SOON, Problem
from rlhf_pipeline.web.routing import AnySite, needs
from rlhf_pipeline.web.site import Site

if TYPE_CHECKING:  # it imports what reads policies
    from rlhf_pipeline.web.chat.server import ChatAnswer, ChatServer, ServingChoice

api = APIRouter(
    prefix=OPENAI.rstrip("/"), tags=["chat"], dependencies=[Depends(needs(Permission.SERVE))]
)


@api.get("/models")
def list_models(site: AnySite) -> dict[str, Any]:
    """The deployed version, in the shape of OpenAI's API; during an experiment the model's name."""
    name = site.chat_server.list_name()
    model = {"id": name, "object": "model", "created": 0, "owned_by": site.settings.project}
    return {"object": "list", "data": [model]}


@api.post("/chat/completions", response_model=None)
async def complete(site: AnySite, request: Request, body: ChatRequest) -> Response:
    """Answer a conversation by the deployed version, whole or with `stream` as server-sent events,
    in the shape of OpenAI's API. The answer's `id` is what feedback names.
    """
    server, choice = await run_in_threadpool(_choose, site, body)
    answer, task = server.start(body, choice)
    first = asyncio.create_task(answer.pieces.get()) if body.stream else task
    try:
        await _wait_unless_left(request, first)
    except BaseException:
        task.cancel()
        raise
    if answer.result.error is not None and (task is first or first.result() is None):
        raise _failure(answer)
    if task is first:
        return JSONResponse(_render_whole(answer))
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    return StreamingResponse(
        _render_events(answer, task, first.result(), with_usage), media_type="text/event-stream"
    )


def _choose(site: Site, body: ChatRequest) -> "tuple[ChatServer, ServingChoice]":
    return site.chat_server, site.chat_server.choose(body)


async def _wait_unless_left(request: Request, work: asyncio.Task[Any]) -> None:
    """Wait for `work`. Raises ClientDisconnect if the client leaves before."""

    async def wait_until_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    left = asyncio.create_task(wait_until_left())
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
    if not work.done():
        work.cancel()
        raise ClientDisconnect


def _failure(answer: "ChatAnswer") -> Problem:
    headers = RETRY_SOON if answer.status in (429, 503) else None
    return Problem(answer.status, str(answer.result.error), kind="failed", headers=headers)


def _head(answer: "ChatAnswer", kind: str) -> dict[str, Any]:
    return {
        "id": answer.answer_id,
        "object": kind,
        "created": int(answer.created_at.timestamp()),
        "model": answer.version,
    }


def _render_whole(answer: "ChatAnswer") -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.result.text, "refusal": None},
        "logprobs": None,
        "finish_reason": answer.result.finish_reason,
    }
    return _head(answer, "chat.completion") | {"choices": [choice], "usage": _count_usage(answer)}


def _count_usage(answer: "ChatAnswer") -> dict[str, int]:
    n_prompt, n = answer.result.n_prompt_tokens, answer.result.n_tokens
    return {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}


async def _render_events(
    answer: "ChatAnswer", task: asyncio.Task[None], first: str | None, with_usage: bool
) -> AsyncIterator[str]:
    """Chunks as they come, the last with the finish reason, then `[DONE]`; an error ends them."""
    head = _head(answer, "chat.completion.chunk")

    def render(delta: dict[str, str], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return f"data: {json.dumps(head | {'choices': [choice]})}\n\n"

    try:
        yield render({"role": "assistant", "content": ""})
        piece = first
        while piece is not None:
            yield render({"content": piece})
            piece = await answer.pieces.get()
        if answer.result.error is not None:
            yield f"data: {json.dumps(_failure(answer).openai_document())}\n\n"
            return
        yield render({}, answer.result.finish_reason)
        if with_usage:
            usage = {"choices": [], "usage": _count_usage(answer)}
            yield f"data: {json.dumps(head | usage)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        task.cancel()  # the client left; otherwise it has ended

"""Answers in the forms that providers document: reasoning, parts, tool calls, errors, refusals of
parameters.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.config import RequestParameters, Settings
from rlhf_pipeline.core.errors import CompletionError
from rlhf_pipeline.generate.completions import (
    AnthropicBackend,
    CompletionParams,
    OpenAICompatibleBackend,
    Reply,
)
from rlhf_pipeline.simulation.testing.generation import build_request
from rlhf_pipeline.store import Store
from tests.providers.generation_runs import PARAMS, ask, calls_of

USAGE = {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}
THINK = "<think>\nRhine? No.\n</think>\n\nThe Douro."
TOOL_CALL = {"id": "t", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
Answers = Callable[[dict[str, Any]], tuple[int, dict[str, Any] | list[dict[str, Any]]]]


@contextmanager
def serve(answers: Answers) -> Iterator[str]:
    """The address of a server that answers each body with a status and a document, or with the
    events of a stream.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            status, document = answers(json.loads(self.rfile.read(length)))
            content, kind = json.dumps(document).encode(), "application/json"
            if isinstance(document, list):
                kind = "text/event-stream"
                content = b"".join(
                    f"event: {each.get('type', 'x')}\ndata: {json.dumps(each)}\n\n".encode()
                    for each in document
                )
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wrap(message: dict[str, Any], reason: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion", "choices": [choice | more], "usage": USAGE}


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}


def call(
    document: Any, pieces: list[str] | None = None, kind: Any = OpenAICompatibleBackend
) -> Reply:
    async def run(url: str) -> Reply:
        backend = kind("m", url)
        try:
            reply: Reply = await backend.call(
                build_request(), None if pieces is None else pieces.append
            )
        finally:
            await backend.close()
        return reply

    with serve(lambda _: (200, document)) as url:
        return asyncio.run(run(url))


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": THINK}, "The Douro.", "Rhine? No."),
        ({"content": "Rhine? No.\n</think>\n\nThe Douro."}, "The Douro.", "Rhine? No."),
        ({"content": "<think>\n\n</think>\n\nThe Douro."}, "The Douro.", ""),
        ({"content": "[THINK]Rhine?[/THINK]The Douro."}, "The Douro.", "Rhine?"),
        ({"content": "The Douro.", "reasoning_content": "Rhine?"}, "The Douro.", "Rhine?"),
        ({"content": "The Douro.", "reasoning": "Rhine?"}, "The Douro.", "Rhine?"),
        ({"content": "The Douro.", "reasoning": None}, "The Douro.", None),
        ({"content": "Write `</think>` last."}, "Write `</think>` last.", None),
        ({"content": "First <think>, then\n</think>"}, "First <think>, then\n</think>", None),
        (
            {"content": [{"type": "text", "text": "The "}, {"type": "text", "text": "Douro."}]},
            "The Douro.",
            None,
        ),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Rhine?"}]},
                    {"type": "text", "text": "The Douro."},
                ]
            },
            "The Douro.",
            "Rhine?",
        ),
        ({"content": None, "tool_calls": [TOOL_CALL]}, 'find({"q": 1})', None),
        ({"content": "Wait.", "tool_calls": [TOOL_CALL]}, 'Wait.\nfind({"q": 1})', None),
        ({"content": None, "function_call": TOOL_CALL["function"]}, 'find({"q": 1})', None),
    ],
)
def test_text_reasoning_and_tool_calls_are_kept_apart(
    message: dict[str, Any], text: str, reasoning: str | None
) -> None:
    reply = call(wrap(message))
    assert (reply.kind, reply.text, reply.reasoning) == ("succeeded", text, reasoning)


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        ({"content": None, "reasoning_content": "Hm"}, "length", ("reasoning", "max_new_tokens")),
        ({"content": "<think>\nRhine? No, per"}, "length", ("reasoning", "max_new_tokens")),
        ({"content": ""}, "length", ("empty", "max_new_tokens")),
        ({"content": "<think>Rhine?</think>"}, "stop", ("reasoning and no answer",)),
        ({"content": None}, "stop", ("an empty completion",)),
    ],
)
def test_answers_without_text_name_reasoning_and_the_limit(
    message: dict[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    reply = call(wrap(message, reason))
    assert (reply.kind, reply.outcome, reply.n_tokens) == ("empty", "terminal", 12)
    assert all(word in str(reply.error) for word in words)
    assert ("max_new_tokens" in str(reply.error)) is (reason == "length")


def test_parts_without_text_are_a_clear_fault() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    reply = call(wrap({"content": [part]}))
    assert (reply.kind, reply.outcome) == ("not_text", "terminal")
    assert "'image_url'" in str(reply.error)


@pytest.mark.parametrize(
    ("more", "status"), [({"error": {"code": 429, "message": "full"}}, 429), ({}, 500)]
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_answers_ending_in_an_error_are_retried(
    more: dict[str, Any], status: int, is_stream: bool
) -> None:
    document: Any = wrap({"content": "The Dou"}, "error", **more)
    if is_stream:
        document = [chunk({"content": "The Dou"}), chunk({}, "error", **more)]
    reply = call(document, [] if is_stream else None)
    assert (reply.outcome, reply.partial, reply.billing) == ("retryable", "The Dou", "unknown")
    assert reply.status == status


def test_streams_pass_on_the_answer_without_reasoning() -> None:
    inline = [THINK[i : i + 3] for i in range(0, len(THINK), 3)]
    for deltas in (
        [{"content": piece} for piece in inline],
        [{"reasoning_content": "Rhine?"}, {"reasoning_content": " No."}, {"content": "The Douro."}],
        [
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Rhine? No."}]}
                ]
            },
            {"content": [{"type": "text", "text": "The Douro."}]},
        ],
    ):
        pieces: list[str] = []
        reply = call([*map(chunk, deltas), chunk({}, "stop")], pieces)
        assert (reply.text, reply.reasoning) == ("The Douro.", "Rhine? No.")
        assert "".join(pieces) == "The Douro."


def test_events_of_a_stream_without_text_are_passed_over() -> None:
    last = {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}
    without: list[Any] = [{"id": "c"}, {"choices": None}, {"choices": [{"index": 0}]}]
    reply = call([*without, chunk({"content": "The Douro."}), last], [])
    assert (reply.outcome, reply.text) == ("succeeded", "The Douro.")


def test_streamed_tool_calls_are_joined() -> None:
    def piece(**function: str) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": 0, "function": function}]})

    pieces = [piece(name="find", arguments=""), piece(arguments='{"q"'), piece(arguments=": 1}")]
    assert call([*pieces, chunk({}, "tool_calls")], []).text == 'find({"q": 1})'


BLOCKS = (
    {"type": "thinking", "thinking": "Rhine?", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "text", "text": "The Douro."},
    {"type": "tool_use", "id": "t", "name": "find", "input": {"q": 1}},
)


def test_blocks_of_anthropic_are_kept_apart() -> None:
    usage = {"input_tokens": 9, "output_tokens": 12}
    message = {"type": "message", "role": "assistant", "model": "m", "id": "m", "usage": usage}
    whole = message | {"content": list(BLOCKS), "stop_reason": "end_turn"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    ]
    deltas = (
        [{"type": "thinking_delta", "thinking": "Rhine?"}],
        [],
        [{"type": "text_delta", "text": "The "}, {"type": "text_delta", "text": "Douro."}],
        [{"type": "input_json_delta", "partial_json": '{"q": 1}'}],
    )
    for i, (block, parts) in enumerate(zip(BLOCKS, deltas, strict=True)):
        blank = {name: {"input": {}}.get(name, "") for name in block if name != "type"}
        start = block if block["type"] == "tool_use" else block | blank
        events.append({"type": "content_block_start", "index": i, "content_block": start})
        events += [{"type": "content_block_delta", "index": i, "delta": part} for part in parts]
        events.append({"type": "content_block_stop", "index": i})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    for document, pieces in ((whole, None), (events, list[str]())):
        reply = call(document, pieces, AnthropicBackend)
        assert (reply.text, reply.reasoning) == ('The Douro.\nfind({"q": 1})', "Rhine?")


def test_anthropic_without_text_names_reasoning_and_the_limit() -> None:
    message = {"type": "message", "content": [BLOCKS[0]], "stop_reason": "max_tokens", "usage": {}}
    reply = call(message, kind=AnthropicBackend)
    assert reply.kind == "empty"
    assert "reasoning" in str(reply.error)
    assert "max_new_tokens" in str(reply.error)


def test_reasoning_is_counted_and_kept_by_a_setting(store: Store) -> None:
    n_calls = 0

    def answer(_: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        nonlocal n_calls
        n_calls += 1
        return 200, wrap({"content": THINK if n_calls % 2 else "The Tejo."})

    with serve(answer) as url:
        backend = OpenAICompatibleBackend("m", url)
        texts = {}
        for use in ("drop", "show", "train"):
            params = CompletionParams(**PARAMS.model_dump() | {"reasoning": use})
            generation = ask(store.generation, backend, 2, params)
            assert generation.n_with_reasoning == 2
            texts[use] = set(generation.frame["text"])
    assert n_calls == 4, "the setting repeats no call"
    assert texts == {
        "drop": {"The Douro.", "The Tejo."},
        "show": {THINK, "The Tejo."},
        "train": {THINK, "The Tejo."},
    }


def test_part_before_an_error_stays_in_the_ledger(store: Store) -> None:
    answers = iter([wrap({"content": "The Dou"}, "error"), wrap({"content": "The Douro."})])
    with serve(lambda _: (200, next(answers))) as url:
        params = PARAMS.model_copy(update={"k": 1})
        generation = ask(store.generation, OpenAICompatibleBackend("m", url), 1, params)
    assert generation.frame["text"].tolist() == ["The Douro."]
    assert [row["partial"] for row in calls_of(store, generation)] == ["The Dou", None]


def refuse_as_gpt_5(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As OpenAI's reasoning models refuse parameters, the first of them."""
    if "max_tokens" in body:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead."
        )
        return 400, {"error": {"message": message, "param": "max_tokens"}}
    if "temperature" in body:
        message = "Unsupported value: 'temperature' does not support 0.7 with this model."
        return 400, {"error": {"message": message, "param": "temperature"}}
    if "top_p" in body:  # as FastAPI refuses
        fault = {"type": "extra_forbidden", "loc": ["body", "top_p"], "msg": "Not permitted"}
        return 422, {"detail": [fault]}
    return 200, wrap({"content": "The Douro."})


def test_refused_parameters_name_the_setting_to_write(store: Store) -> None:
    parameters = None
    with serve(refuse_as_gpt_5) as url:
        for _ in range(3):
            backend = OpenAICompatibleBackend("gpt-5-mini", url, parameters=parameters)
            with pytest.raises(CompletionError) as failure:
                ask(store.generation, backend, 1)
            # what it says is written into the settings
            setting = str(failure.value).partition("request_parameters: ")[2].rpartition("`")[0]
            parameters = Settings(request_parameters=json.loads(setting)).request_parameters[
                "gpt-5-mini"
            ]
        assert parameters == RequestParameters(
            rename={"max_tokens": "max_completion_tokens"}, omit=("temperature", "top_p")
        )
        backend = OpenAICompatibleBackend("gpt-5-mini", url, parameters=parameters)
        assert set(ask(store.generation, backend, 1).frame["text"]) == {"The Douro."}


def test_request_parameters_reach_the_provider_and_the_cache_key(store: Store) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        bodies.append(body)
        return 200, wrap({"content": "The Douro."})

    params = PARAMS.model_copy(update={"k": 1})
    with serve(answer) as url:
        for effort in ("low", "high", "high"):
            settings = Settings(
                api_model="m",
                base_url=url,
                request_parameters={"m": {"omit": ["seed"], "add": {"effort": effort}}},
            )
            backend = OpenAICompatibleBackend.from_settings(settings, lambda: None, timeout_s=9)  # type: ignore[arg-type,return-value]
            ask(store.generation, backend, 1, params)
    assert [(body["effort"], "seed" in body) for body in bodies] == [
        ("low", False),
        ("high", False),
    ]
    with pytest.raises(ValidationError, match="cannot be changed"):
        RequestParameters(omit=("messages",))

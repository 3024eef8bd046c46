"""Serves a stub of a hosted model on loopback, for tests and benchmarks.

It speaks OpenAI's chat completions and Anthropic's messages, whole and streamed. Its completions
are sentences made of the prompt and the seed; its faults are those of real providers, on demand; it
counts what a provider would bill.
"""

import asyncio
import hmac
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any, Literal, Self

from pydantic import Field, SecretStr

from rlhf_pipeline.core.records import Record, content_hash

StubFaultKind = Literal[
    "status",
    "html",
    "broken_json",
    "drop",
    "cut",
    "no_finish",
    "content_filter",
    "refusal",
    "empty",
    "error_event",
]
LOOPBACK = "127.0.0.1"
OPINIONS = (
    "certainly",
    "probably",
    "perhaps",
    "hardly",
    "of course",
    "in a way",
    "as far as I know",
    "without doubt",
)
ODD_ANSWERS: dict[str, bytes] = {
    "html": b"<!doctype html><html><title>Welcome</title></html>",
    "broken_json": b'{"choices": [{"ind',
}
# OpenAI's and Anthropic's words
REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


class Fault(Record):
    """What happens to one request instead of an answer, after `delay_s`."""

    kind: StubFaultKind
    status: int = Field(default=500, ge=400, le=599, description="with kind `status`")
    code: str | None = Field(
        default=None, description="the error's code, such as insufficient_quota"
    )
    message: str = "injected by the STUB"
    retry_after_ms: int | None = Field(
        default=10, description="how long to wait, said in a header; None says nothing"
    )
    retry_after_as: Literal["ms", "seconds", "date"] = Field(
        default="ms", description="in which of the three forms providers use"
    )
    delay_s: float = Field(default=0.0, ge=0)


@dataclass
class Counters:
    """What the STUB saw, as a provider's bill would. Tokens are those of all work done, answered or
    lost on the way.
    """

    n_calls: int = 0
    n_answered: int = 0  # whole answers that left with a completion
    n_billed: int = 0  # answers worked out, whether they arrived or not
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    n_refused: int = 0  # requests answered with a status of 400 and above
    n_early_retries: int = 0  # refused requests that came again before their waiting time was over


class StubProvider:
    """A context manager that serves on a free port of loopback, in a thread of its own.

    `faults` are used up one per request, in the order of arrival, None for an answer; after them
    each of `chances` strikes with its share, drawn with `seed`; a prompt with the words `refuses`
    is refused each time. With `api_key`, requests without it get 401. `requests` holds the bodies
    received, `counters` what they came to. With `quota`, (most requests, seconds), more requests
    in a window of that length are refused at once, until its end.

    >>> import urllib.request
    >>> with StubProvider() as stub:
    ...     body = b'{"model": "stub-model", "messages": [{"role": "user", "content": "Hi"}]}'
    ...     with urllib.request.urlopen(stub.base_url + "/chat/completions", body) as answer:
    ...         print(json.load(answer)["object"])
    chat.completion
    """

    def __init__(
        self,
        *,
        faults: Iterable[Fault | None] = (),
        chances: Sequence[tuple[float, Fault]] = (),
        latency_s: float = 0.0,
        chunk_s: float = 0.0,
        quota: tuple[int, float] | None = None,
        api_key: SecretStr | None = None,
        model: str = "stub-model",
        refuses: str | None = None,
        complete: Callable[[dict[str, Any]], str] | None = None,
        seed: int = 0,
    ) -> None:
        self.latency_s = latency_s
        self.chunk_s = chunk_s  # between two words of a stream
        self.model = model
        self.chances = tuple(chances)
        self._quota = quota
        self._window = (0.0, 0)  # its end, and the requests in it
        self._due: dict[str, float] = {}  # when a refused request may come again
        self.requests: list[dict[str, Any]] = []
        # paths that were asked, with the authorization that came with them
        self.shown: set[tuple[str, str]] = set()
        self.arrivals: list[float] = []
        self._api_key = api_key
        self._refuses = refuses
        self._complete = complete or make_sentence
        self._faults = list(faults)
        self._random = random.Random(seed)
        self._counters = Counters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name="stub-provider", daemon=True
        )
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _serve(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(
            asyncio.start_server(
                lambda *streams: _StubConnection(self, *streams).run(), LOOPBACK, 0, backlog=1024
            )
        )
        self._port = server.sockets[0].getsockname()[1]
        self._loop = loop
        ready.set()
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    @property
    def base_url(self) -> str:
        if self._loop is None:
            raise RuntimeError("The STUB serves only inside its with block.")
        return f"http://{LOOPBACK}:{self._port}/v1"

    @property
    def counters(self) -> Counters:
        return replace(self._counters)

    @property
    def n_calls(self) -> int:
        return len(self.requests)

    def repair(self, model: str = "stub-model") -> None:
        """From here on every request for `model` is answered, whatever the key."""
        self.model = model
        self._api_key = None
        self.chances = ()
        self._refuses = None
        self._faults.clear()

    def add_faults(self, faults: Iterable[Fault | None]) -> None:
        """These happen to the next requests, after those that were named before."""
        self._faults.extend(faults)

    def is_authorised(self, headers: dict[str, str]) -> bool:
        if self._api_key is None:
            return True
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(key.encode(), self._api_key.get_secret_value().encode())

    def receive(self, body: dict[str, Any]) -> Fault | None:
        """Counts the request and says what shall go wrong with it."""
        now = time.monotonic()
        self.requests.append(body)
        self.arrivals.append(now)
        self._counters.n_calls += 1
        self._counters.n_early_retries += now < self._due.get(content_hash(body), 0.0)
        if self._faults:
            return self._faults.pop(0)
        drawn = self._random.random()
        for share, fault in self.chances:
            if drawn < share:
                return fault
            drawn -= share
        if self._refuses is not None and self._refuses in _prompt(body):
            return Fault(kind="refusal")
        return None

    def take_quota(self) -> float | None:
        """Seconds until the window's end where nothing is left of it, else None and one is used."""
        if self._quota is None:
            return None
        most, seconds = self._quota
        now = time.monotonic()
        end, used = self._window if now < self._window[0] else (now + seconds, 0)
        self._window = (end, used + 1)
        return end - now if used >= most else None

    def refuse(self, wait_s: float | None = None, body: dict[str, Any] | None = None) -> None:
        self._counters.n_refused += 1
        if wait_s is not None and body is not None:
            self._due[content_hash(body)] = time.monotonic() + wait_s

    def bill(self, answer: dict[str, Any], *, arrives: bool) -> None:
        self._counters.n_billed += 1
        self._counters.n_answered += arrives
        self._counters.n_prompt_tokens += answer["usage"]["prompt_tokens"]
        self._counters.n_tokens += answer["usage"]["completion_tokens"]

    def answer(self, body: dict[str, Any], kind: StubFaultKind | None = None) -> dict[str, Any]:
        """A chat completion for `body`, spoiled as `kind` says."""
        words = self._complete(body).split()
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or len(words))
        text = " ".join(words[:limit])
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        reason = "stop" if len(words) <= limit else "length"
        if kind == "content_filter":
            reason, message["content"] = "content_filter", None
        elif kind == "refusal":
            message |= {"content": None, "refusal": "I will not say that."}
        elif kind == "empty":
            message["content"] = " \n"
        n_prompt, n_tokens = len(_prompt(body).split()), min(len(words), limit)
        return {
            "id": "chatcmpl-" + content_hash(body)[:12],
            "object": "chat.completion",
            "created": int(time.time()),
            "model": str(body.get("model")),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": n_prompt,
                "completion_tokens": n_tokens,
                "total_tokens": n_prompt + n_tokens,
            },
        }


def make_sentence(body: dict[str, Any]) -> str:
    """The same for the same body; with temperature 0 the same for every seed."""
    seed = body.get("seed") if body.get("temperature", 1) else None
    drawn = int(content_hash("stub", _prompt(body), seed)[:12], 16)
    first = OPINIONS[drawn % len(OPINIONS)]
    second = OPINIONS[drawn // len(OPINIONS) % len(OPINIONS)]
    return (
        f"On {_prompt(body)[:120]!r} I would say {first}, and {second} more than that "
        f"({drawn % 10_000})."
    )


def to_message(answer: dict[str, Any]) -> dict[str, Any]:
    """A chat completion in the shape of Anthropic's messages."""
    [choice], usage = answer["choices"], answer["usage"]
    text = choice["message"]["content"] or ""
    is_refusal = bool(choice["message"]["refusal"])
    return {
        "id": answer["id"].replace("chatcmpl", "msg"),
        "type": "message",
        "role": "assistant",
        "model": answer["model"],
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": "refusal" if is_refusal else REASONS[choice["finish_reason"]],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
        },
    }


def _prompt(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


class _StubConnection:
    """One kept-alive connection: a request at a time."""

    def __init__(
        self, stub: StubProvider, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.stub = stub
        self._reader = reader
        self.transport = writer

    async def run(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not self.transport.is_closing():
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                parts = (line.partition(":") for line in lines)
                headers = {name.lower(): value.strip() for name, _, value in parts}
                content = await self._reader.readexactly(int(headers.get("content-length", 0)))
                _, path, _ = first.split(" ", 2)
                await self._answer(path, headers, content)

    async def _answer(self, path: str, headers: dict[str, str], content: bytes) -> None:
        stub = self.stub
        stub.shown.add((path, headers.get("authorization", "")))
        path, body = path.partition("?")[0], json.loads(content)
        fault = stub.receive(body)
        wait_s = stub.take_quota()
        if wait_s is not None:
            waits = {"Retry-After": f"{math.ceil(wait_s)}"}
            self._send_error(path, 429, "Rate limit reached", None, waits, wait_s=wait_s, body=body)
            return
        await asyncio.sleep(stub.latency_s + (fault.delay_s if fault else 0))
        if not stub.is_authorised(headers):
            # Some providers repeat the key they refuse; so does the STUB, to show that it goes no
            # further.
            key = headers.get("x-api-key") or headers.get("authorization")
            self._send_error(path, 401, f"Incorrect API key provided: {key}", "invalid_api_key")
        elif body.get("model") != stub.model:
            message = f"The model {body.get('model')!r} does not exist"
            self._send_error(path, 404, message, "model_not_found")
        elif fault is not None and fault.kind in ("status", *ODD_ANSWERS):
            self._spoil(path, fault, body)
        else:
            await self._complete(path, body, fault)

    def _spoil(self, path: str, fault: Fault, body: dict[str, Any]) -> None:
        """An answer that nobody worked on."""
        if fault.kind == "status":
            wait = None if fault.retry_after_ms is None else fault.retry_after_ms / 1000
            headers = _retry_after_headers(fault)
            self._send_error(
                path, fault.status, fault.message, fault.code, headers, wait_s=wait, body=body
            )
        elif body.get("stream") and fault.kind == "broken_json":
            name = "message_start" if path.endswith("messages") else None
            event = _encode_event(ODD_ANSWERS["broken_json"].decode(), name)
            self._send_bytes(200, "text/event-stream", event)
        else:
            kind = "text/html" if fault.kind == "html" else "application/json"
            self._send_bytes(200, kind, ODD_ANSWERS[fault.kind])

    async def _complete(self, path: str, body: dict[str, Any], fault: Fault | None) -> None:
        kind = fault.kind if fault else None
        answer = self.stub.answer(body, kind)
        # A filtered or refused answer is whole: providers bill it.
        self.stub.bill(answer, arrives=kind not in ("drop", "cut", "no_finish", "error_event"))
        whole = answer if path.endswith("completions") else to_message(answer)
        if kind == "drop":
            self.transport.close()
        elif body.get("stream"):
            await self._stream(path, body, answer, fault)
        elif fault is not None and kind == "error_event":
            self._send(200, _error_body(path, fault.message, fault.code))
        elif kind == "cut":
            content = json.dumps(whole).encode()
            half = content[: len(content) // 2]
            self._send_bytes(200, "application/json", half, length=len(content))
            self.transport.close()
        else:
            self._send(200, whole)

    async def _stream(
        self, path: str, body: dict[str, Any], answer: dict[str, Any], fault: Fault | None
    ) -> None:
        """Word by word; `cut` breaks the connection half-way, `no_finish` ends there as if that
        were all, `error_event` with an error.
        """
        kind = fault.kind if fault else None
        head = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.transport.write(b"HTTP/1.1 200 OK\r\n" + head)
        is_openai = path.endswith("completions")
        events = _openai_events(body, answer) if is_openai else _anthropic_events(answer)
        if kind in ("cut", "no_finish", "error_event"):
            events = events[: len(events) // 2]
        if fault is not None and kind == "error_event":
            error = _error_body(path, fault.message, fault.code)
            events.append(_encode_event(error, None if is_openai else "error"))
        for event in events:
            self.transport.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(self.stub.chunk_s)
        if kind == "cut":
            self.transport.close()
        else:
            self.transport.write(b"0\r\n\r\n")

    def _send_error(
        self,
        path: str,
        status: int,
        message: str,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        *,
        wait_s: float | None = None,
        body: dict[str, Any] | None = None,
    ) -> None:
        self.stub.refuse(wait_s, body)
        if path.endswith("messages"):
            code = code or {
                401: "authentication_error",
                404: "not_found_error",
                429: "rate_limit_error",
            }.get(status)
        self._send(status, _error_body(path, message, code), headers)

    def _send(
        self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        self._send_bytes(status, "application/json", json.dumps(body).encode(), headers)

    def _send_bytes(
        self,
        status: int,
        kind: str,
        content: bytes,
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        header_fields = {
            "Content-Type": kind,
            "Content-Length": str(len(content) if length is None else length),
            **(headers or {}),
        }
        head = f"HTTP/1.1 {status} STUB\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in header_fields.items()
        )
        self.transport.write(head.encode() + b"\r\n" + content)


def _error_body(path: str, message: str, code: str | None) -> dict[str, Any]:
    """In the words of either provider."""
    if path.endswith("messages"):
        return {"type": "error", "error": {"type": code or "api_error", "message": message}}
    return {"error": {"message": message, "type": "stub", "param": None, "code": code}}


def _retry_after_headers(fault: Fault) -> dict[str, str]:
    """The header that says how long to wait."""
    if fault.retry_after_ms is None:
        return {}
    if fault.retry_after_as == "ms":
        return {"retry-after-ms": str(fault.retry_after_ms)}
    if fault.retry_after_as == "seconds":
        return {"Retry-After": f"{fault.retry_after_ms / 1000:g}"}
    now = time.time()
    return {
        "Date": formatdate(now, usegmt=True),
        "Retry-After": formatdate(now + fault.retry_after_ms / 1000, usegmt=True),
    }


def _encode_event(data: dict[str, Any] | str, name: str | None = None) -> bytes:
    payload = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {payload}\n\n".encode()


def _openai_events(body: dict[str, Any], answer: dict[str, Any]) -> list[bytes]:
    base = {"id": answer["id"], "object": "chat.completion.chunk", "model": answer["model"]}
    [choice] = answer["choices"]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(message["content"] or "")]
    if message["refusal"]:
        deltas.append({"refusal": message["refusal"]})
    events = [
        _encode_event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in deltas
    ]
    events.append(
        _encode_event(
            {
                **base,
                "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}],
            }
        )
    )
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(_encode_event({**base, "choices": [], "usage": answer["usage"]}))
    return [*events, _encode_event("[DONE]")]


def _anthropic_events(answer: dict[str, Any]) -> list[bytes]:
    message = to_message(answer)
    begun = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**message["usage"], "output_tokens": 1},
    }
    text = message["content"][0]["text"] if message["content"] else ""
    events = [_encode_event({"type": "message_start", "message": begun}, "message_start")]
    events += [
        _encode_event(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": piece},
            },
            "content_block_delta",
        )
        for piece in _pieces(text)
    ]
    ended = {
        "type": "message_delta",
        "delta": {"stop_reason": message["stop_reason"]},
        "usage": message["usage"],
    }
    return [
        *events,
        _encode_event(ended, "message_delta"),
        _encode_event({"type": "message_stop"}, "message_stop"),
    ]


def _pieces(text: str) -> list[str]:
    """Words with the blank before each: joined they are the text."""
    return (
        [word if i == 0 else f" {word}" for i, word in enumerate(text.split(" "))] if text else []
    )

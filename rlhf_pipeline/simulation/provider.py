"""A STUB of an OpenAI-compatible chat server on loopback, for tests and offline trials. Knows HTTP; knows no model.

Its completions are sentences made of the prompt and the seed; its faults are those of real providers, on demand.
"""

import hmac
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from pydantic import Field, SecretStr

from rlhf_pipeline.records import Record, content_hash

Kind = Literal["status", "html", "broken_json", "foreign_json", "drop", "content_filter", "refusal", "empty", "no_choices"]
LOOPBACK = "127.0.0.1"
OPINIONS = ("certainly", "probably", "perhaps", "hardly", "of course", "in a way", "as far as I know", "without doubt")


class Fault(Record):
    """What happens to one request instead of an answer, after `delay_s`."""

    kind: Kind
    status: int = Field(default=500, ge=400, le=599, description="with kind `status`")
    code: str | None = Field(default=None, description="the error's code, such as insufficient_quota")
    message: str = "injected by the STUB"
    retry_after_ms: int | None = Field(default=10, description="the Retry-After header; None sends none")
    delay_s: float = Field(default=0.0, ge=0)


class StubProvider:
    """A context manager that serves on a free port of loopback.

    `faults` are used up one per request, in the order of arrival, None for an answer; after them every request is
    answered. With `api_key`, requests without it get 401. `requests` holds the bodies received, `n_calls` counts them.

    >>> import urllib.request
    >>> with StubProvider() as stub:
    ...     with urllib.request.urlopen(stub.base_url + "/models") as answer:
    ...         print(json.load(answer)["data"][0]["id"])
    stub-model
    """

    def __init__(
        self,
        *,
        faults: Iterable[Fault | None] = (),
        latency_s: float = 0.0,
        api_key: SecretStr | None = None,
        model: str = "stub-model",
        complete: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        self.latency_s = latency_s
        self.model = model
        self.requests: list[dict[str, Any]] = []
        self._api_key = api_key
        self._complete = complete or sentence
        self._faults = list(faults)
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="stub-provider", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def base_url(self) -> str:
        if self._server is None:
            raise RuntimeError("The STUB serves only inside its with block.")
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/v1"

    @property
    def n_calls(self) -> int:
        return len(self.requests)

    def is_authorised(self, header: str) -> bool:
        return self._api_key is None or hmac.compare_digest(header.encode(), f"Bearer {self._api_key.get_secret_value()}".encode())

    def receive(self, body: dict[str, Any]) -> Fault | None:
        """Counts the request and says what shall go wrong with it."""
        with self._lock:
            self.requests.append(body)
            return self._faults.pop(0) if self._faults else None

    def answer(self, body: dict[str, Any], kind: Kind | None = None) -> dict[str, Any]:
        """A chat completion for `body`, spoiled as `kind` says."""
        words = self._complete(body).split()
        limit = int(body.get("max_tokens") or len(words))
        message: dict[str, Any] = {"role": "assistant", "content": " ".join(words[:limit]), "refusal": None}
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
            "choices": [] if kind == "no_choices" else [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
            "usage": {"prompt_tokens": n_prompt, "completion_tokens": n_tokens, "total_tokens": n_prompt + n_tokens},
        }


def sentence(body: dict[str, Any]) -> str:
    """The same for the same body; with temperature 0 the same for every seed."""
    seed = body.get("seed") if body.get("temperature", 1) else None
    drawn = int(content_hash("stub", _prompt(body), seed)[:12], 16)
    first, second = OPINIONS[drawn % len(OPINIONS)], OPINIONS[drawn // len(OPINIONS) % len(OPINIONS)]
    return f"On {_prompt(body)[:120]!r} I would say {first}, and {second} more than that ({drawn % 10_000})."


def _prompt(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that keeps its connection open must not keep the STUB

    def __init__(self, stub: StubProvider) -> None:
        self.stub = stub
        super().__init__((LOOPBACK, 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that did not wait is the test's business
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._send_error(404, f"no such path {self.path}")
            return
        self._send(200, {"object": "list", "data": [{"id": self.server.stub.model, "object": "model"}]})

    def do_POST(self) -> None:
        stub = self.server.stub
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        fault = stub.receive(body)
        time.sleep(stub.latency_s + (fault.delay_s if fault else 0))
        if self.path != "/v1/chat/completions":
            self._send_error(404, f"no such path {self.path}")
        elif not stub.is_authorised(self.headers.get("Authorization", "")):
            # Some providers repeat the key they refuse; so does the STUB, to show that it goes no further.
            self._send_error(401, f"Incorrect API key provided: {self.headers.get('Authorization')}", "invalid_api_key")
        elif body.get("model") != stub.model:
            self._send_error(404, f"The model {body.get('model')!r} does not exist", "model_not_found")
        elif fault is None:
            self._send(200, stub.answer(body))
        else:
            self._fail(fault, body)

    def _fail(self, fault: Fault, body: dict[str, Any]) -> None:
        if fault.kind == "status":
            headers = {} if fault.retry_after_ms is None else {"retry-after-ms": str(fault.retry_after_ms)}
            self._send_error(fault.status, fault.message, fault.code, headers)
        elif fault.kind == "html":
            self._send_bytes(200, "text/html", b"<!doctype html><html><title>Welcome</title></html>")
        elif fault.kind == "broken_json":
            self._send_bytes(200, "application/json", b'{"id": "chatcmpl-1", "choices": [{"ind')
        elif fault.kind == "foreign_json":
            self._send(200, {"detail": "not what you asked for"})
        elif fault.kind == "drop":
            self.close_connection = True
        else:
            self._send(200, self.server.stub.answer(body, fault.kind))

    def _send_error(self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None) -> None:
        self._send(status, {"error": {"message": message, "type": "stub", "param": None, "code": code}}, headers)

    def _send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._send_bytes(status, "application/json", json.dumps(body).encode(), headers)

    def _send_bytes(self, status: int, kind: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a test's output is the test's."""

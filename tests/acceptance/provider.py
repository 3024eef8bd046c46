"""A stub of a hosted model on loopback: OpenAI's chat completions, with the bill and the faults of
a provider.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

N_PROMPT_TOKENS = 10
N_TOKENS = 20


class Provider:
    """Serves inside its with block. Statuses of `faults` are used up one a request, 200 answers."""

    def __init__(self, faults: Iterable[int] = (), latency_s: float = 0.0) -> None:
        self.faults = list(faults)
        self.latency_s = latency_s
        self.asked: Counter[str] = Counter()  # requests by prompt
        self.paid: Counter[str] = Counter()  # answers by prompt: what a provider bills
        self.keys: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provider.keys.add(self.headers["Authorization"])
                status, answer = provider.answer(body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def n_paid(self) -> int:
        return self.paid.total()

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        prompt = body["messages"][-1]["content"]
        with self._lock:
            self.asked[prompt] += 1
            status = self.faults.pop(0) if self.faults else 200
        if status != 200:
            return status, {"error": {"message": "injected", "type": "stub", "code": None}}
        time.sleep(self.latency_s)
        with self._lock:
            self.paid[prompt] += 1
        return 200, {
            "id": "stub",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": f"Answer to: {prompt}"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": N_PROMPT_TOKENS,
                "completion_tokens": N_TOKENS,
                "total_tokens": N_PROMPT_TOKENS + N_TOKENS,
            },
        }

"""Runs the app with uvicorn in one process whose threads share commits."""

import asyncio
import threading
import time
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app

# for requests that are being answered; streams of events never end by themselves
SECONDS_TO_END = 3
SECONDS_TO_START = 20
HEAD_TIMEOUT_S = 10.0  # for a request's headers, and for the first request of a connection to begin
BODY_TIMEOUT_S = 60.0  # for a request's body: 2 MB at 33 kB/s
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class WebServer:
    """Runs the app in its own thread: `with WebServer(app) as server: server.url`. Port 0 picks a
    free one.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        body_timeout_s: float = BODY_TIMEOUT_S,
    ):
        self._server = uvicorn.Server(
            uvicorn.Config(app, host, port, **_uvicorn_options(head_timeout_s, body_timeout_s))
        )
        self._thread = threading.Thread(target=self._server.run, name="web", daemon=True)
        self._host = host

    def __enter__(self) -> "WebServer":
        self._thread.start()
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ConfigurationError(
                    f"The web app did not start on {self._host}. Another program may have the "
                    "port: choose another."
                )
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(SECONDS_TO_END + 5)

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"


def serve(settings: Settings, store: Store, *, host: str, port: int) -> None:
    """Serves the app until the process is stopped."""
    uvicorn.run(create_app(settings, store), host=host, port=port, **_uvicorn_options())


class BufferedTransport:
    """A transport that sends all data written within one step of the event loop at once.

    uvicorn writes the head and the body of an answer separately, each a system call and a packet:
    together 13% of the cost of a vote.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():  # the client is gone
            self._transport.write(b"".join(written))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BufferedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol on a buffered transport; it disconnects clients that send requests too
    slowly.

    uvicorn limits only the time between two requests: connections that send a byte now and then
    would stay open forever.
    """

    def __init__(
        self,
        *given: Any,
        head_timeout_s: float = HEAD_TIMEOUT_S,
        body_timeout_s: float = BODY_TIMEOUT_S,
        **named: Any,
    ):
        super().__init__(*given, **named)
        self._head_timeout_s = head_timeout_s
        self._body_timeout_s = body_timeout_s
        self._hang_up_timer: asyncio.TimerHandle | None = None
        self._hang_up_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(BufferedTransport(transport, self.loop))  # type: ignore[arg-type]
        self._hang_up_after(self._head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hang_up_after(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._hang_up_after(self._head_timeout_s)

    def on_headers_complete(self) -> None:
        self._hang_up_after(self._body_timeout_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._hang_up_after(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._hang_up_after(
            self._hang_up_s
        )  # reading of the next pipelined request resumes only now

    def _hang_up_after(self, seconds: float | None) -> None:
        """Replace the timer; None stops it."""
        if self._hang_up_timer is not None:
            self._hang_up_timer.cancel()
        self._hang_up_s = seconds
        self._hang_up_timer = (
            None if seconds is None else self.loop.call_later(seconds, self._hang_up)
        )

    def _hang_up(self) -> None:
        if self._answers_earlier_request():
            self._hang_up_after(self._hang_up_s)
            return
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(TOO_SLOW)
        self.transport.close()

    def _answers_earlier_request(self) -> bool:
        """Whether the slow request waits behind one whose answer is not complete."""
        return bool(self.pipeline) or (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )


def _uvicorn_options(
    head_timeout_s: float = HEAD_TIMEOUT_S, body_timeout_s: float = BODY_TIMEOUT_S
) -> dict[str, Any]:
    """No access log: it would hold login links, and costs as much as a vote."""
    return {
        "http": partial(
            BufferedHttpProtocol, head_timeout_s=head_timeout_s, body_timeout_s=body_timeout_s
        ),
        "access_log": False,
        "log_config": None,  # its loggers write where all others do
        "log_level": "warning",
        "server_header": False,
        "timeout_graceful_shutdown": SECONDS_TO_END,
        "proxy_headers": True,
        "forwarded_allow_ips": "127.0.0.1",
        "limit_max_requests": None,
    }

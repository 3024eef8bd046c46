"""Runs the app with uvicorn in one process."""

import threading
import time
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app

# for requests that are being answered; streams of events never end by themselves
SECONDS_TO_END = 3
SECONDS_TO_START = 20


class WebServer:
    """Runs the app in its own thread: `with WebServer(app) as server: server.url`. Port 0 picks a
    free one.
    """

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", port: int = 0):
        self._server = uvicorn.Server(uvicorn.Config(app, host, port, **_UVICORN_OPTIONS))
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
    uvicorn.run(create_app(settings, store), host=host, port=port, **_UVICORN_OPTIONS)


_UVICORN_OPTIONS: dict[str, Any] = {
    "access_log": False,  # it would hold login links
    "log_config": None,  # its loggers write where all others do
    "log_level": "warning",
    "server_header": False,
    "limit_concurrency": 1000,  # connections, above which it answers 503
    "timeout_keep_alive": 5,
    "timeout_graceful_shutdown": SECONDS_TO_END,
    "proxy_headers": True,
    "forwarded_allow_ips": "127.0.0.1",
}

"""Server-sent events with a limit of open streams per login."""

import threading
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import contextmanager

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rlhf_pipeline.web.problems import Problem

# a stream looks into the store every second; over HTTP/1.1 a browser opens six connections to a
# host
MOST_PER_TOKEN = 10
RETRY_AFTER_S = 10
MEDIA_TYPE = "text/event-stream"


class Streams:
    """Counts the open streams of each token or session."""

    def __init__(self, most_per_token: int = MOST_PER_TOKEN):
        self._most = most_per_token
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @contextmanager
    def open_stream(self, token_id: str) -> Iterator[None]:
        """Count one more open stream until the block ends. Raises Problem 429 beyond the limit."""
        with self._lock:
            if self._open[token_id] >= self._most:
                raise Problem(
                    429,
                    f"This login already has {self._most} open event streams. Close one of them, "
                    "such as a page in another tab.",
                    kind="too_many_streams",
                    headers={"Retry-After": str(RETRY_AFTER_S)},
                )
            self._open[token_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[token_id] -= 1
                if not self._open[token_id]:
                    del self._open[token_id]


class EventStream(Response):
    """A stream that counts as open from before its first event until its connection ends; `begin`
    is called in between.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        streams: Streams,
        token_id: str,
        begin: Callable[[], AsyncIterable[str] | Iterable[str]],
    ):
        super().__init__()
        self._streams = streams
        self._token_id = token_id
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises the errors of `begin` and Problem 429, before anything is sent."""
        with self._streams.open_stream(self._token_id):
            events = await run_in_threadpool(self._begin)
            await StreamingResponse(events, media_type=MEDIA_TYPE)(scope, receive, send)

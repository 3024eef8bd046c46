"""Counts the requests that this process answers and measures those that cast votes."""

from collections.abc import Callable
from http import HTTPStatus
from time import perf_counter, time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_pipeline.telemetry.prometheus import RequestCounts
from rlhf_pipeline.web.routing import PREFIX

if TYPE_CHECKING:
    from rlhf_pipeline.telemetry.otlp import Tracer

VOTES = {f"{PREFIX}/votes", f"{PREFIX}/votes:batch"}


class RequestMeter:
    """Middleware: counts by class of status, such as 2xx, and seconds of requests that cast votes.

    Costs microseconds: see bench_votes. The event loop's thread alone counts.
    """

    def __init__(
        self,
        app: ASGIApp,
        counts: RequestCounts,
        tracer: "Tracer | None" = None,
        monotonic: Callable[[], float] = perf_counter,
    ):
        self._app = app
        self._counts = counts
        self._tracer = tracer
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._monotonic()
        is_vote = scope["path"] in VOTES and scope["method"] == "POST"

        is_counted = False

        def count(status: int) -> None:
            nonlocal is_counted
            is_counted = True
            self._counts.by_status[f"{status // 100}xx"] += 1
            if is_vote:
                seconds = self._monotonic() - began
                self._counts.vote_seconds.observe(seconds)
                if self._tracer is not None:
                    now = time()
                    self._tracer.record_request(scope["path"], status, now - seconds, now)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        except Exception:
            if not is_counted:  # Starlette's error handler outside this class sends the 500
                count(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise

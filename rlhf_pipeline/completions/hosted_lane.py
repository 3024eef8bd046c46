"""Turns claims into calls to a provider, many at once, within its limits."""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any

from rlhf_pipeline.completions.attempts import build_attempt, is_last_attempt
from rlhf_pipeline.completions.base import HostedBackend, Reply
from rlhf_pipeline.completions.drive import CompletionWork, WorkLane
from rlhf_pipeline.completions.faults import NO_ANSWER, fault
from rlhf_pipeline.completions.limits import Limiter, Pause, expected_tokens
from rlhf_pipeline.completions.local_lane import OnItem, ignore_text
from rlhf_pipeline.protocols import Attempt, Claim, Lane
from rlhf_pipeline.records import utc_now

AT_HAND = 8  # claims that a lane holds at least, even at a lower concurrency


class HostedLane(WorkLane):
    """Calls one provider and model in an event loop of another thread. Methods that `drive` calls
    run in its thread; deques and counters let both work without a lock.
    """

    tick_s = 0.025  # so that reports share a transaction

    def __init__(
        self,
        work: CompletionWork,
        key: Lane,
        backend: HostedBackend,
        loop: asyncio.AbstractEventLoop,
        *,
        pause: Pause,
        on_text: OnItem | None = None,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(work, key)
        self._backend = backend
        self._loop = loop
        self._limiter = Limiter(work.params, pause)
        self._pause = pause
        self._on_text = on_text if on_text is not None or not work.params.stream else ignore_text
        self._rng = rng or random.Random()
        self._waiting: deque[Claim] = deque()  # claims whose call has not begun
        self._attempts: deque[Attempt] = deque()
        self._n_held = 0  # claims neither reported nor withdrawn; changed by `drive` alone
        self._n_taken = 0  # paid attempts taken and not recorded; changed by `drive` alone
        self._changed = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def n_wanted(self) -> int:
        """Claims to fetch now: enough for all concurrent calls, so that no call waits for a
        transaction.
        """
        if self.closed is not None or self.paused_s > 0:
            return 0
        return max(0, max(self._limiter.most, AT_HAND) - len(self._waiting))

    @property
    def paused_s(self) -> float:
        return self._pause.left_s

    @property
    def is_busy(self) -> bool:
        return self._n_held > 0

    def start(self, wake: threading.Event) -> None:
        super().start(wake)
        self._running = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def add(self, claims: Sequence[Claim], *, is_all: bool) -> None:
        self._n_held += len(claims)
        self._waiting.extend(claims)
        self._loop.call_soon_threadsafe(self._changed.set)

    def take_attempts(self, most: int) -> list[Attempt]:
        taken = _pop_all(self._attempts, most)
        if self._attempts:
            self.wake.set()
        self._n_held -= len(taken)
        self._n_taken += sum(attempt.billing != "none" for attempt in taken)
        return taken

    def settled(self) -> None:
        n, self._n_taken = self._n_taken, 0
        if n:
            self._loop.call_soon_threadsafe(self._release, n)

    def withdraw(self, items: set[int] | None = None) -> list[int]:
        claims = _pop_all(self._waiting)
        gone = [claim.item_no for claim in claims if items is None or claim.item_no in items]
        self._waiting.extend(claim for claim in claims if claim.item_no not in set(gone))
        self._n_held -= len(gone)
        # Meanwhile `_run` may have found nothing that waits.
        self._loop.call_soon_threadsafe(self._changed.set)
        return gone

    def stop(self) -> None:
        self._running.cancel()
        closing = asyncio.run_coroutine_threadsafe(self._end_calls(), self._loop)
        closing.result()

    async def _end_calls(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._backend.close()

    async def _run(self) -> None:
        """Begin a call whenever the limits allow."""
        try:
            while True:
                self._changed.clear()
                wait_s: float | None = None
                if self._waiting and self.closed is None:
                    with suppress(IndexError):  # withdrawn meanwhile
                        wait_s = self._begin_call()
                        if wait_s == 0:
                            continue
                # Not asyncio.wait_for, which swallows a cancellation in Python 3.11 that comes
                # with the event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        except Exception as bug:  # noqa: BLE001  `drive` raises it
            self._break(bug)

    def _begin_call(self) -> float | None:
        """0 if a call has begun, else when the limits may allow one (`Limiter.wait_s`)."""
        n_tokens = expected_tokens(self.work.requests[self._waiting[0].item_no])
        wait_s = self._limiter.wait_s(n_tokens)
        if wait_s == 0:
            claim = self._waiting.popleft()
            self._limiter.begin(n_tokens)
            call = asyncio.create_task(self._call(claim, n_tokens))
            self._calls.add(call)
            call.add_done_callback(self._end_call)
            if len(self._waiting) < self._limiter.most / 2:
                self.wake.set()
        return wait_s

    def _release(self, n: int) -> None:
        self._limiter.release(n)
        self._changed.set()

    def _end_call(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._break(bug)

    async def _call(self, claim: Claim, n_tokens: int) -> None:
        item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
        started_at, began = utc_now(), perf_counter()
        reply = fault(
            "cancelled", "The run was ended during this call; whether it is billed is unknown."
        )
        on_text = None if self._on_text is None else partial(self._on_text, claim.item_no)
        try:
            reply = await self._backend.call(request, on_text)
        finally:  # The call was made, so it is recorded even if the backend raised.
            latency_ms = (perf_counter() - began) * 1000
            is_told = reply.billing == "metered"
            n_used = reply.n_prompt_tokens + reply.n_tokens if is_told else None
            self._limiter.end(n_tokens, n_used)
            reply = self._pause_or_close(claim, reply)
            if reply.billing == "none":
                self._limiter.release(1)  # asked again after a kill, it is still paid once
            if on_text is not None and reply.partial:
                on_text(None)
            self._attempts.append(
                build_attempt(
                    item,
                    claim,
                    request,
                    reply,
                    self.work.params,
                    started_at,
                    latency_ms,
                    self._rng,
                )
            )
            self.wake.set()
            self._changed.set()

    def _pause_or_close(self, claim: Claim, reply: Reply) -> Reply:
        """Pause or park a provider that asks for it; close one that refuses every call."""
        params = self.work.params
        is_refused = reply.outcome == "retryable" and (
            reply.wait_s is not None or reply.kind in ("rate_limited", "overloaded")
        )
        if is_refused and (reply.wait_s or 0.0) > params.max_pause_s:
            return self._park(reply)
        if is_refused or reply.outcome == "succeeded":
            wait_s = params.backoff_s if reply.wait_s is None else reply.wait_s
            self._pause.record(wait_s if is_refused else None)
        if reply.closes:
            self._close(reply)
        elif (
            reply.kind in NO_ANSWER
            and not self._backend.has_answered
            and is_last_attempt(claim, reply, params)
        ):
            self._close(
                fault(
                    "unavailable",
                    f"{reply.error}; no answer in {claim.n_attempts + 1} attempts. Start the "
                    "server or change the setting base_url (RLHF_BASE_URL), which usually ends in "
                    "/v1.",
                )
            )
        return reply

    def _park(self, reply: Reply) -> Reply:
        """Close the lane for the time that the provider asks for, unless it is closed for good."""
        wait_s, most_s = reply.wait_s or 0.0, self.work.params.max_pause_s
        said = (
            f"{self.key[0]} asks for a wait of {wait_s:,.0f} s; a run waits {most_s:,.0f} s at "
            "most (max_pause_s)."
        )
        until = utc_now() + timedelta(seconds=wait_s)
        if self.closed is None or self.parked_until is not None:
            self.parked_until = max(until, self.parked_until or until)
        reply = fault("long_wait", said, status=reply.status, wait_s=wait_s)
        self._close(reply)
        return reply

    def _close(self, reply: Reply) -> None:
        """Make no more calls to the provider; the first reason is kept."""
        self.closed = self.closed or reply
        self.wake.set()

    def _break(self, bug: BaseException) -> None:
        self.broken = self.broken or bug
        self.wake.set()


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="calls")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _pop_all(queue: deque[Any], most: int | None = None) -> list[Any]:
    """What the queue holds now; safe while another thread appends."""
    taken: list[Any] = []
    with suppress(IndexError):
        while most is None or len(taken) < most:
            taken.append(queue.popleft())
    return taken

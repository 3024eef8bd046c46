"""Turns claims into calls to a provider, many at once, within its limits."""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from time import perf_counter
from typing import Any

from rlhf_pipeline.completions.attempts import (
    build_attempt,
    build_unread_attempt,
    is_last_attempt,
)
from rlhf_pipeline.completions.base import HostedBackend, Reply
from rlhf_pipeline.completions.drive import CompletionWork
from rlhf_pipeline.completions.faults import LONGEST_WAIT_S, NO_ANSWER, fault
from rlhf_pipeline.completions.limits import Limiter, Ticket, expected_tokens
from rlhf_pipeline.completions.local_lane import OnItem, ignore_text
from rlhf_pipeline.protocols import Attempt, Claim, Lane, WorkItem
from rlhf_pipeline.records import utc_now

AT_HAND = 8  # claims that a lane holds at least, even at a lower concurrency


class NetworkLane:
    """A `drive.WorkLane` that works in an event loop of another thread. Methods that `drive` calls
    run in its thread; deques and counters let both work without a lock.
    """

    waits_when_closed = True
    tick_s = 0.025  # so that reports share a transaction

    def __init__(
        self, work: CompletionWork, key: Lane, backend: HostedBackend, rng: random.Random
    ) -> None:
        self.work = work
        self.key = key
        self.closed: Reply | None = None
        self.parked_until: datetime | None = None
        self.broken: BaseException | None = None
        self.backend = backend
        self._rng = rng
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Claim] = deque()  # claims whose call has not begun
        self._attempts: deque[Attempt] = deque()
        self._n_held = 0  # claims neither reported nor withdrawn; changed by `drive` alone
        self._wake = threading.Event()
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()  # set once the lane is closed or stopped
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def n_wanted(self) -> int:
        raise NotImplementedError

    @property
    def paused_s(self) -> float:
        return 0.0

    @property
    def is_busy(self) -> bool:
        return self._n_held > 0

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, wake: threading.Event) -> None:
        assert self._loop is not None
        self._wake = wake
        self._running = asyncio.run_coroutine_threadsafe(self._run_and_close(), self._loop)

    def add(self, claims: Sequence[Claim], *, is_all: bool) -> None:
        self._n_held += len(claims)
        self._waiting.extend(claims)
        self._notify(self._changed)

    def take_attempts(self, most: int) -> list[Attempt]:
        taken = _pop_all(self._attempts, most)
        if self._attempts:
            self._wake.set()
        self._n_held -= len(taken)
        return taken

    def withdraw(self, items: set[int] | None = None) -> list[int]:
        claims = _pop_all(self._waiting)
        gone = [claim.item_no for claim in claims if items is None or claim.item_no in items]
        self._waiting.extend(claim for claim in claims if claim.item_no not in set(gone))
        self._n_held -= len(gone)
        self._notify(self._changed)
        return gone

    def stop(self) -> None:
        self._is_stopping = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cancel)
        with suppress(Exception, asyncio.CancelledError):  # a bug is in `broken`
            self._running.result()

    def close(self, reply: Reply) -> None:
        """Make no more calls to the provider; the first reason is kept."""
        self.closed = self.closed or reply
        self._closing.set()
        self._changed.set()
        self._wake.set()

    def park(self, reply: Reply, wait_s: float) -> None:
        """Close the lane for that time, unless it is closed permanently."""
        until = utc_now() + timedelta(seconds=wait_s)
        if self.closed is None or self.parked_until is not None:
            self.parked_until = max(until, self.parked_until or until)
        self.close(reply)

    def _take_waiting(self, most: int) -> list[Claim]:
        return _pop_all(self._waiting, most)

    def _notify(self, event: asyncio.Event) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(event.set)

    def _cancel(self) -> None:
        self._closing.set()
        if self._task is not None:
            self._task.cancel()

    async def _run_and_close(self) -> None:
        self._task = asyncio.current_task()
        try:
            if not self._is_stopping:
                await self._run()
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        except BaseException as bug:  # noqa: BLE001  `drive` raises it
            self._break(bug)
        finally:
            await self.backend.close()

    async def _run(self) -> None:
        raise NotImplementedError

    def _break(self, bug: BaseException) -> None:
        self.broken = self.broken or bug
        self._wake.set()

    def _report(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)
        self._wake.set()


class HostedLane(NetworkLane):
    """Calls one provider and model. A waiting time that the provider asks for applies to all lanes
    of `siblings` at that provider.
    """

    def __init__(
        self,
        work: CompletionWork,
        key: Lane,
        backend: HostedBackend,
        *,
        rng: random.Random,
        siblings: Sequence["HostedLane"] = (),
        on_text: OnItem | None = None,
    ) -> None:
        super().__init__(work, key, backend, rng)
        self.limiter = Limiter(work.params)
        self._siblings = siblings
        self._on_text = on_text if on_text is not None or not work.params.stream else ignore_text
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def n_wanted(self) -> int:
        """Claims to fetch now: enough for all concurrent calls, so that no call waits for a
        transaction.
        """
        limit = self.limiter
        if self.closed is not None or limit.paused_s > 0:
            return 0
        return max(0, max(int(limit.limit), min(limit.most, AT_HAND)) - len(self._waiting))

    @property
    def paused_s(self) -> float:
        return self.limiter.paused_s

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
                await wait_for_event(self._changed, wait_s)
        finally:
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)

    def _begin_call(self) -> float | None:
        """0 if a call has begun, else when the limits may allow one (`Limiter.wait_s`)."""
        claim = self._waiting[0]
        n_tokens = expected_tokens(self.work.requests[claim.item_no])
        wait_s = self.limiter.wait_s(n_tokens)
        if wait_s == 0:
            claim = self._waiting.popleft()
            call = asyncio.create_task(self._call(claim, self.limiter.begin(n_tokens)))
            self._calls.add(call)
            call.add_done_callback(self._end_call)
            if len(self._waiting) < self.limiter.limit / 2:
                self._wake.set()
        return wait_s

    def _end_call(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._break(bug)

    async def _call(self, claim: Claim, ticket: Ticket) -> None:
        # Another call may have been refused since this one began.
        while not self._closing.is_set() and (wait_s := self.limiter.paused_s) > 0:
            await wait_for_event(self._closing, wait_s)
        if self._closing.is_set():
            self.limiter.end(ticket, n_used=0, is_refused=False, is_success=False)
            self._waiting.append(claim)
            self._wake.set()
            return
        item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
        started_at, began = utc_now(), perf_counter()
        reply = fault(
            "cancelled", "The run was ended during this call; whether it is billed is unknown."
        )
        on_text = None if self._on_text is None else partial(self._on_text, claim.item_no)
        try:
            with self._record_bug(item):
                reply = await self.backend.call(request, on_text)
        finally:
            latency_ms = (perf_counter() - began) * 1000
            # The call was made, so it is recorded whatever happens from here on.
            attempt = build_unread_attempt(item, reply, started_at, latency_ms)
            try:
                with self._record_bug(item):
                    self._update_limiter(ticket, reply)
                    reply = self._apply_pauses(claim, reply)
                    if self._on_text is not None and reply.partial:
                        self._on_text(claim.item_no, None)
                with self._record_bug(item):
                    attempt = build_attempt(
                        item,
                        claim,
                        request,
                        reply,
                        self.work.params,
                        started_at,
                        latency_ms,
                        self._rng,
                    )
            finally:
                self._report(attempt)
                self._changed.set()

    @contextmanager
    def _record_bug(self, item: WorkItem) -> Iterator[None]:
        """Keep an error of our own code for `drive`, which raises it once the call is recorded."""
        try:
            yield
        except Exception as bug:  # noqa: BLE001  raised there
            bug.add_note(
                f"While item {item.item_no} was asked of {item.provider} ({item.model}); the call "
                f"is recorded, earlier results are kept."
            )
            self._break(bug)

    def _update_limiter(self, ticket: Ticket, reply: Reply) -> None:
        n_used = reply.n_prompt_tokens + reply.n_tokens if reply.billing == "metered" else None
        # a 5xx that names a waiting time is a refusal too
        is_refused = reply.kind in ("rate_limited", "overloaded") or (
            reply.outcome == "retryable" and reply.wait_s is not None
        )
        self.limiter.end(
            ticket, n_used=n_used, is_refused=is_refused, is_success=reply.outcome == "succeeded"
        )

    def _apply_pauses(self, claim: Claim, reply: Reply) -> Reply:
        """Pause or park a provider that asks for it; close one that refuses every call."""
        params = self.work.params
        wait_s = None if reply.closes or reply.wait_s is None else min(reply.wait_s, LONGEST_WAIT_S)
        # A rate belongs to one model; a waiting time to the whole provider.
        asking = [self]
        if reply.outcome != "succeeded":
            asking = [each for each in self._siblings if each.key[0] == self.key[0]] or asking
        if wait_s is not None and wait_s > params.max_pause_s and reply.outcome == "retryable":
            reply = long_wait(self.key, wait_s, params.max_pause_s, status=reply.status)
            for each in asking:
                each.park(reply, wait_s)
        elif wait_s is not None and self._holds_for_all(reply):
            for each in asking:
                each.limiter.pause(min(wait_s, params.max_pause_s))
        if reply.closes:
            self.close(reply)
        elif (
            reply.kind in NO_ANSWER
            and not self.backend.has_answered
            and is_last_attempt(claim, reply, params)
        ):
            self.close(
                fault(
                    "unavailable",
                    f"{reply.error}; no answer in {claim.n_attempts + 1} attempts. Start the "
                    "server or change the setting base_url (RLHF_BASE_URL), which usually ends in "
                    "/v1.",
                )
            )
        return reply

    def _holds_for_all(self, reply: Reply) -> bool:
        """Whether other calls wait too. A scattered refusal delays only its own call."""
        return reply.outcome == "succeeded" or reply.is_quota_used or self.limiter.is_full


def long_wait(key: Lane, wait_s: float, max_pause_s: float, status: int | None = None) -> Reply:
    """The fault of a provider that asks for a longer wait than a run allows."""
    return fault(
        "long_wait",
        f"{key[0]} asks for a wait of {wait_s:,.0f} s; a run waits {max_pause_s:,.0f} s at "
        "most (max_pause_s).",
        status=status,
        wait_s=wait_s,
    )


async def wait_for_event(event: asyncio.Event, wait_s: float | None) -> None:
    """Wait until the event or the time."""
    # Not asyncio.wait_for, which swallows a cancellation in Python 3.11 that comes with the event.
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await event.wait()


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    ready, started = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def idle() -> None:
        over = asyncio.Event()
        started.append((asyncio.get_running_loop(), over))
        ready.set()
        await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(idle()), name="calls")
    thread.start()
    ready.wait()
    [(loop, over)] = started
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def _pop_all(queue: deque[Any], most: int | None = None) -> list[Any]:
    """What the queue holds now; safe while another thread appends."""
    taken: list[Any] = []
    with suppress(IndexError):
        while most is None or len(taken) < most:
            taken.append(queue.popleft())
    return taken

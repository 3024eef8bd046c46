"""Completes items by calls to a provider, many at once, within its limits."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any, TypeVar

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.processes import is_dead, make_owner
from rlhf_pipeline.core.protocols import Attempt, Claim, LedgerTransaction
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions.attempts import build_attempt, is_last_attempt
from rlhf_pipeline.generate.completions.base import CompletionRequest, HostedBackend, Reply
from rlhf_pipeline.generate.completions.faults import NO_ANSWER, fault
from rlhf_pipeline.generate.completions.limits import Pause, Rate, expected_tokens
from rlhf_pipeline.generate.completions.request_plan import lane_of
from rlhf_pipeline.generate.completions.work import LOOK_S, CompletionWork, persist_with_retry

AT_ONCE = 500  # attempts settled in one transaction: votes wait for the same lock
GATHER_S = 0.005  # in which calls that end share a transaction
LONGEST_SLEEP_S = 5.0  # without a transaction, each of which renews the claims

T = TypeVar("T")


def complete_hosted(lane: "HostedLane") -> None:
    """Complete all work of a lane; it may be closed.

    Runs in another thread: an interrupt of this one ends the calls, and is raised once they are
    recorded. Raises StoreError if the ledger refuses for several seconds, and bugs of backends.
    """
    loop: asyncio.AbstractEventLoop | None = None

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await lane.run()

    interrupt: BaseException | None = None
    with ThreadPoolExecutor(1, "calls") as pool:
        job = pool.submit(asyncio.run, run())
        while True:
            try:
                error = job.exception()
                break
            except BaseException as cause:  # noqa: BLE001  raised below
                interrupt = interrupt or cause
                lane.work.is_stopping = True
                with suppress(RuntimeError):  # it has ended meanwhile
                    if loop is not None:
                        loop.call_soon_threadsafe(lane.stop)
    if interrupt is not None:
        raise interrupt
    if error is not None:
        raise error


class HostedLane:
    """One worker per concurrent call takes the next claim, calls, and leaves the attempt. Another
    task records attempts, several in a transaction, and claims items ahead of the workers.

    A worker goes on once its attempt is recorded, so a killed run pays at most as many calls twice
    as may be under way at once. Only transactions of the ledger run in other threads.

    Attributes:
        closed: why this lane makes no more calls; None while it is open.
        paused_until: set with `closed` if the lane may resume later.
        waiting: claims whose call has not begun.
        attempts: calls that ended and are not recorded yet.
        wake: set whenever there is something to record, or to stop for.
    """

    def __init__(self, work: CompletionWork, backend: HostedBackend) -> None:
        self.work = work
        self.key = lane_of(backend)
        self.owner = make_owner()
        self.closed: Reply | None = None
        self.paused_until: datetime | None = None
        self.attempts: list[Attempt] = []
        self.waiting = deque[Claim]()
        self.wake = asyncio.Event()
        self._backend = backend
        self._pause = Pause()
        self._calls = Rate(work.params.requests_per_minute)
        self._tokens = Rate(work.params.tokens_per_minute)
        self._error: BaseException | None = None  # raised once everything is recorded
        self._n_called = 0  # calls under way
        self._is_ending = False
        self._next = asyncio.Lock()  # held by the worker that takes the next claim
        self._refilled = asyncio.Event()
        self._recorded = asyncio.Condition()

    async def run(self) -> None:
        """Complete all items, and record everything that was made before an error is raised:
        asyncio would end at once with an interrupt, and record nothing.
        """
        for step in (self._complete, self._backend.close, self._end):
            try:
                await step()
            except BaseException as cause:  # noqa: BLE001  raised below
                self.stop(cause)
        if self._error is not None:
            raise self._error

    def stop(self, error: BaseException | None = None) -> None:
        """End soon; calls that were made are recorded."""
        self._error = self._error or error
        self.work.is_stopping = True
        self.wake.set()

    async def _complete(self) -> None:
        n_workers = self.work.params.concurrency
        workers = [asyncio.create_task(self._work()) for _ in range(n_workers)]
        try:
            await self._record_and_claim(2 * n_workers)
        finally:
            self._is_ending = True
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _record_and_claim(self, most: int) -> None:
        """Record attempts, and hold up to `most` claims, until nothing is left."""
        while not self.work.is_stopping:
            can_call = self.closed is None and self._pause.left_s == 0
            n_wanted = max(0, most - len(self.waiting) - self._n_called) if can_call else 0
            turn = await self._turn(n_wanted)
            async with self._recorded:
                self._recorded.notify_all()
            self.waiting.extend(turn.claimed.get(self.key, ()))
            await self._fail_useless()
            self._refilled.set()
            if not (self._n_called or self.attempts) and (
                self.closed is not None or (not self.waiting and turn.n_open == turn.n_leased == 0)
            ):
                return
            await self._wait(
                LONGEST_SLEEP_S,
                self._pause.left_s or None,
                LOOK_S if turn.n_leased else None,
                None if turn.due_s is None or not n_wanted else max(turn.due_s, GATHER_S),
            )
            if self._n_called and self.waiting:
                await asyncio.sleep(GATHER_S)

    async def _fail_useless(self) -> None:
        """Fail uncalled items of prompts that can no longer give a pair."""
        work = self.work
        useless_items = [c.item_no for c in self.waiting if work.is_useless(c.item_no)]
        prompts, work.useless = work.useless, []
        if not (useless_items or prompts):
            return
        if useless_items:
            self.waiting = deque(c for c in self.waiting if not work.is_useless(c.item_no))
            await self._release(useless_items)
        why = "Not called: too many of this prompt's completions failed for it to give a pair."
        await self._fail_open("no_pair", why, [*useless_items, *work.items_of(prompts)])

    async def _work(self) -> None:
        try:
            while not self._is_ending:  # a backend may ignore that it is cancelled
                await self._wait_until_recorded(await self._call(*await self._take()))
        except Exception as bug:  # noqa: BLE001  raised at the end of the run
            self.stop(bug)

    async def _wait_until_recorded(self, attempt: Attempt) -> None:
        async with self._recorded:
            await self._recorded.wait_for(lambda: self._is_ending or attempt not in self.attempts)

    async def _take(self) -> tuple[Claim, CompletionRequest]:
        """The next claim and its request, as soon as the provider may be called."""
        async with self._next:
            while True:
                wait_s = max(self._pause.left_s, self._calls.left_s, self._tokens.left_s)
                if self.waiting and self.closed is None and wait_s == 0:
                    self._n_called += 1
                    claim = self.waiting.popleft()
                    request = self.work.plan.request(claim.item_no)
                    self._calls.take(1)
                    self._tokens.take(expected_tokens(request))
                    return claim, request
                self._refilled.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s or None):
                        await self._refilled.wait()

    async def _call(self, claim: Claim, request: CompletionRequest) -> Attempt:
        started_at, began = utc_now(), perf_counter()
        reply = fault(
            "cancelled", "The run was ended during this call; whether it is billed is unknown."
        )
        try:
            reply = await self._backend.call(request)
        finally:  # The call was made, so it is recorded even if the backend raised.
            latency_ms = (perf_counter() - began) * 1000
            self._n_called -= 1
            if reply.billing == "metered":
                n_tokens = reply.n_prompt_tokens + reply.n_tokens
                self._tokens.take(n_tokens - expected_tokens(request))
            reply = self._pause_or_close(claim, reply)
            attempt = build_attempt(
                self.key, self.work.plan, claim, reply, self.work.params, started_at, latency_ms
            )
            self.attempts.append(attempt)
            self.wake.set()
        return attempt

    def _pause_or_close(self, claim: Claim, reply: Reply) -> Reply:
        """Pause or park a provider that asks for it; close one that refuses every call."""
        params = self.work.params
        is_refused = reply.outcome == "retryable" and (
            reply.wait_s is not None or reply.kind in ("rate_limited", "overloaded")
        )
        if is_refused and (reply.wait_s or 0.0) > params.max_pause_s:
            return self._suspend(str(reply.error), reply.wait_s or 0.0)
        if is_refused or reply.outcome == "succeeded":
            wait_s = params.backoff_s if reply.wait_s is None else reply.wait_s
            self._pause.record(wait_s if is_refused else None)
        if reply.closes:
            self.closed = self.closed or reply
        elif (
            reply.kind in NO_ANSWER
            and not self._backend.has_answered
            and is_last_attempt(claim, reply, params)
        ):
            self.closed = self.closed or fault(
                "unavailable",
                f"{reply.error}; no answer in {claim.n_attempts + 1} attempts. Start the "
                "server or change the setting base_url (RLHF_BASE_URL), which usually ends in "
                "/v1.",
            )
        return reply

    async def _turn(self, n_wanted: int | None) -> LedgerTransaction:
        """Record attempts and claim up to `n_wanted` items in one transaction; None claims nothing
        any more. Items that no budget covers fail.
        """
        work, attempts = self.work, self.attempts[:AT_ONCE]
        turn: LedgerTransaction = await self._persist(
            work.ledger.settle_and_claim,
            work.run_id,
            self.owner,
            attempts,
            {} if n_wanted is None else {self.key: n_wanted},
            work.params.budget,
            is_dead=is_dead,
        )
        del self.attempts[: len(attempts)]
        work.settle_all(attempts, turn)
        if attempts or turn.from_cache:
            work.report()
        if short := turn.over_budget.get(self.key):
            why = f"Not called: {short.why}. Raise the budget and run again."
            await self._fail_open("budget", why, above=short.left)
        return turn

    async def _fail_open(
        self, kind: str, error: str, items: Sequence[int] | None = None, above: int | None = None
    ) -> None:
        """Fail open items of the lane; see `WorkLedger.fail_open`."""
        work = self.work
        failed = await self._persist(
            lambda: list(
                work.ledger.fail_open(work.run_id, self.key, kind, error, items, above=above)
            )
        )
        for item_no in failed:
            work.settle(item_no, failed=True)
        if failed:
            work.report()
            self.wake.set()

    def _suspend(self, why: str, wait_s: float) -> Reply:
        """Close the lane for this time, unless it is closed for good; return the reason."""
        wait_s = max(wait_s, self.work.params.max_pause_s)
        until = utc_now() + timedelta(seconds=wait_s)
        if self.closed is None or self.paused_until is not None:
            self.paused_until = max(until, self.paused_until or until)
        message = f"{self.key[0]} is asked again after {wait_s:,.0f} s, in another run: {why}"
        reply = fault("long_wait", message, wait_s=wait_s)
        self.closed = self.closed or reply
        return reply

    async def _release(self, items: Sequence[int] | None = None) -> None:
        """Reopen items that were claimed and not called; by default all that are claimed."""
        await self._persist(self.work.ledger.release, self.work.run_id, self.owner, items)

    async def _persist(self, do: Callable[..., T], *args: Any, **more: Any) -> T:
        return await asyncio.to_thread(persist_with_retry, self.work.ledger, do, *args, **more)

    async def _wait(self, *waits_s: float | None) -> None:
        """Wait until the lane wakes up, at most the shortest of these seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s for wait_s in waits_s if wait_s is not None)):
                await self.wake.wait()
        self.wake.clear()

    async def _end(self) -> None:
        """Record the last calls, release claims without a call, and fail what a closed lane leaves.

        A call that the store refuses to record keeps its claim until the lease ends; the process
        that takes it over records the call as lost. If it were released instead, it would be called
        again and the first call would never be counted.
        """
        uncalled = None  # everything still claimed, once the calls are recorded
        try:
            while self.attempts:
                await self._turn(None)
        except StoreError as cause:
            self.stop(cause)
            uncalled = [claim.item_no for claim in self.waiting]
        with suppress(StoreError):
            await self._release(uncalled)
        if self.closed is not None and self.paused_until is None and not self.work.is_stopping:
            await self._fail_open("unavailable", f"Not called: {self.closed.error}")

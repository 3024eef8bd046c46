"""Completes items by calls to a provider, many at once, within its limits."""

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from time import perf_counter

from rlhf_pipeline.completions.attempts import build_attempt, is_last_attempt
from rlhf_pipeline.completions.base import CompletionRequest, HostedBackend, Reply
from rlhf_pipeline.completions.faults import NO_ANSWER, fault
from rlhf_pipeline.completions.limits import Limiter, Pause, expected_tokens
from rlhf_pipeline.completions.local_lane import OnItem, ignore_text
from rlhf_pipeline.completions.work import LOOK_S, CompletionWork, ProviderLane
from rlhf_pipeline.protocols import Attempt, Claim, Lane
from rlhf_pipeline.records import utc_now

GATHER_S = 0.005  # in which calls that end share a transaction
LONGEST_SLEEP_S = 5.0  # without a transaction, each of which renews the claims


class HostedLane(ProviderLane):
    """One worker per concurrent call takes the next claim, calls, and leaves the attempt. Another
    task records attempts, several in a transaction, and claims items ahead of the workers.

    A worker goes on once its attempt is recorded, so a killed run pays at most as many calls twice
    as may be under way at once.
    """

    def __init__(
        self,
        work: CompletionWork,
        key: Lane,
        backend: HostedBackend,
        pause: Pause,
        on_text: OnItem | None = None,
    ) -> None:
        super().__init__(work, key, backend)
        self._limiter = Limiter(work.params, pause)
        self._pause = pause
        self._on_text = on_text if on_text is not None or not work.params.stream else ignore_text
        self._n_called = 0  # calls under way
        self._is_ending = False
        self._n_useless = 0  # useless prompts whose items this lane has failed
        self._next = asyncio.Lock()  # held by the worker that takes the next claim
        self._refilled = asyncio.Event()
        self._recorded = asyncio.Condition()

    async def complete(self) -> None:
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
            turn = await self.turn(n_wanted)
            async with self._recorded:
                self._recorded.notify_all()
            self.waiting.extend(turn.claimed.get(self.key, ()))
            await self._fail_useless()
            self._refilled.set()
            if not (self._n_called or self.attempts) and (
                self.closed is not None or (not self.waiting and turn.n_open == turn.n_leased == 0)
            ):
                return
            await self.wait(
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
        gone = [c.item_no for c in self.waiting if work.is_useless(c.item_no)]
        prompts = work.useless[self._n_useless :]
        if not (gone or prompts):
            return
        self._n_useless += len(prompts)
        if gone:
            self.waiting = deque(c for c in self.waiting if not work.is_useless(c.item_no))
            await self.release(gone)
        why = "Not called: too many of this prompt's completions failed for it to give a pair."
        await self.fail_open("no_pair", why, [*gone, *work.items_of(prompts)])

    async def _work(self) -> None:
        try:
            while not self._is_ending:  # a backend may ignore that it is cancelled
                await self._wait_until_recorded(await self._call(*await self._take()))
        except Exception as bug:  # noqa: BLE001  raised at the end of the run
            self.work.stop(bug)

    async def _wait_until_recorded(self, attempt: Attempt) -> None:
        async with self._recorded:
            await self._recorded.wait_for(lambda: self._is_ending or attempt not in self.attempts)

    async def _take(self) -> tuple[Claim, CompletionRequest]:
        """The next claim and its request, as soon as the limits allow the call."""
        async with self._next:
            while True:
                wait_s: float | None = None
                if self.waiting and self.closed is None:
                    request = self.work.plan.request(self.waiting[0].item_no)
                    wait_s = self._limiter.wait_s(expected_tokens(request))
                    if wait_s == 0:
                        self._limiter.begin(expected_tokens(request))
                        self._n_called += 1
                        return self.waiting.popleft(), request
                self._refilled.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._refilled.wait()

    async def _call(self, claim: Claim, request: CompletionRequest) -> Attempt:
        started_at, began = utc_now(), perf_counter()
        reply = fault(
            "cancelled", "The run was ended during this call; whether it is billed is unknown."
        )
        on_text = None if self._on_text is None else partial(self._on_text, claim.item_no)
        try:
            reply = await self._backend.call(request, on_text)
        finally:  # The call was made, so it is recorded even if the backend raised.
            latency_ms = (perf_counter() - began) * 1000
            self._n_called -= 1
            self._limiter.end(expected_tokens(request), reply)
            reply = self._pause_or_close(claim, reply)
            if on_text is not None and reply.partial:
                on_text(None)
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
            return self.park(str(reply.error), reply.wait_s or 0.0)
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

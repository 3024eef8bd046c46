"""Work of a ledger done by a provider's batches: submitted, waited for, noted. Knows ledgers and batches; knows no HTTP.

Nobody holds a claim while a batch is waited for: whoever goes on, this process or the next, claims what is open, finds the batches
that were submitted for this run and asks for nothing that stands in one of them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TypeVar

from rlhf_pipeline.completions.attempts import attempt_of
from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.openai_batches import MOST_REQUESTS, OpenAIBatches
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.owners import is_dead
from rlhf_pipeline.completions.workers import LOOK_S, Work
from rlhf_pipeline.protocols import Attempt, Claim, Lane
from rlhf_pipeline.records import utc_now

T = TypeVar("T")


class BatchWork:
    """Everything of `work` in one lane. `closed` says why the provider was given up, where it was."""

    def __init__(self, work: Work, lane: Lane, backend: OpenAICompatibleBackend, rng: random.Random | None = None) -> None:
        self.work = work
        self.closed: Reply | None = None
        self._lane = lane
        self._backend = backend
        self._rng = rng or random.Random()
        self._read: set[str] = set()  # batches whose replies are noted

    async def run(self) -> None:
        """Until nothing is left, the provider is given up, or more than `max_pause_s` would have to be waited: then it is parked."""
        began = monotonic()
        params = self.work.params
        try:
            batches = self._backend.batches()
            while self.work.left and self.closed is None:
                claims, n_others = self._claimed()
                if not claims:
                    if not n_others:
                        return
                    await asyncio.sleep(LOOK_S)
                    continue
                try:
                    is_waiting = await self._looked_after(batches, claims)
                finally:
                    self.work.ledger.release(self.work.run_id, self.work.owner)
                    self.work.told()
                if self.closed is None and is_waiting:
                    if monotonic() - began + params.batch_poll_s > params.max_pause_s:
                        self.closed = fault("long_wait", f"{self._lane[0]} works on a batch, which may take a day.")
                        self.work.park(self._lane, utc_now() + timedelta(seconds=max(params.max_pause_s, params.batch_poll_s)))
                        return
                    await asyncio.sleep(params.batch_poll_s)
            if self.closed is not None:
                self.work.stop(self._lane, "unavailable", f"Not called: {self.closed.error}")
        finally:
            await self._backend.close()

    def _claimed(self) -> tuple[dict[str, Claim], int]:
        """All that may be asked for, by its name in batches, and how many others hold."""
        n = min(len(self.work.left), MOST_REQUESTS)
        turn = self.work.ledger.turn(self.work.run_id, self.work.owner, [], {self._lane: n}, self.work.params.budget, is_dead=is_dead)
        for item_no in turn.from_cache:
            self.work.settle(item_no)
        claims = turn.claimed[self._lane]
        if not claims and (reason := turn.over_budget.get(self._lane)):
            self.work.stop(self._lane, "budget", f"Not called: {reason}. Raise the budget and run again.")
        # An attempt that failed is asked for under another name than the one before it.
        return {f"{claim.item_no}-{claim.n_attempts}": claim for claim in claims}, (turn.n_leased or 0) + (turn.n_open or 0)

    async def _looked_after(self, batches: OpenAIBatches, claims: Mapping[str, Claim]) -> bool:
        """Note what has come and submit what nobody was asked for; whether any batch is under way."""
        known = await self._patiently(lambda: batches.of_run(self.work.run_id))
        left, is_waiting = dict(claims), False
        for batch in known or []:
            if batch.is_over and batch.batch_id not in self._read:
                replies = await self._patiently(lambda batch=batch: batches.replies(batch))  # type: ignore[misc]
                if replies is None:
                    return False
                self._note({left.pop(name): reply for name, reply in replies.items() if name in left})
                self._read.add(batch.batch_id)
                if batch.error is not None:
                    self.closed = fault("bad_request", f"{self._lane[0]} refused a batch as a whole: {batch.error}", closes=True)
            elif not batch.is_over:
                is_waiting = True
                for name in await self._patiently(lambda batch=batch: batches.names(batch)) or ():  # type: ignore[misc]
                    left.pop(name, None)
        if self.closed is not None or not left:
            return is_waiting
        named: dict[str, CompletionRequest] = {name: self.work.requests[claim.item_no] for name, claim in left.items()}
        await self._patiently(lambda: batches.submit(named, self.work.run_id))
        return True

    def _note(self, replies: Mapping[Claim, Reply]) -> None:
        attempts: list[Attempt] = []
        for claim, reply in replies.items():
            item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
            attempt = attempt_of(item, claim, request, reply, self.work.params, utc_now(), 0.0, self._rng)
            attempts.append(replace(attempt, not_before=None))
            if reply.closes:
                self.closed = self.closed or reply
        self.work.ledger.turn(self.work.run_id, self.work.owner, attempts, {}, self.work.params.budget, is_dead=is_dead)
        for attempt in attempts:
            if attempt.becomes != "open":
                self.work.settle(attempt.item_no, failed=attempt.becomes == "failed")

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What it gives, tried again where that may help; None and `closed` where it does not."""
        for n_tries in range(1, self.work.params.max_attempts + 1):
            try:
                return await ask()
            except self._backend.errors() as cause:
                reply = await self._backend.told(cause)
            if reply.outcome == "terminal":
                break
            await asyncio.sleep(reply.wait_s if reply.wait_s is not None else self.work.params.backoff(n_tries, self._rng))
        self.closed = reply
        return None

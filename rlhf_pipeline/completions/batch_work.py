"""Work of a ledger done by a provider's batches: submitted, waited for, noted. Knows ledgers and batches; knows no HTTP.

Nobody holds a claim while a batch is waited for: whoever goes on, this process or the next, claims what is open, finds the batches
that were submitted for this run and asks for nothing that stands in one of them. A claim is no call here: whoever is killed while
holding some has made, and may be billed for, nothing that is not found again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TypeVar

from rlhf_pipeline.completions.attempts import attempt_of
from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.openai_batches import MOST_REQUESTS, Batch, OpenAIBatches
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.owners import is_dead
from rlhf_pipeline.completions.workers import LONGEST_SLEEP_S, NOTHING, Work, renewing
from rlhf_pipeline.protocols import LOOKS, Attempt, Budget, Claim, Lane
from rlhf_pipeline.records import utc_now

T = TypeVar("T")
Named = dict[str, Claim]  # by its name in batches: an attempt that failed is asked for under another than the one before it
AT_ONCE = 500  # claimed or noted in one transaction: votes wait for the same lock


class BatchWork:
    """Everything of `work` in one lane. `closed` says why the provider was given up, where it was."""

    def __init__(self, work: Work, lane: Lane, backend: OpenAICompatibleBackend, rng: random.Random | None = None) -> None:
        if not work.owner.endswith(LOOKS):
            work.owner += LOOKS
        self.work = work
        self.closed: Reply | None = None
        self._lane = lane
        self._backend = backend
        self._rng = rng or random.Random()
        self._read: set[str] = set()  # batches whose replies are noted
        self._names: dict[str, set[str]] = {}  # what is asked for in those under way

    async def run(self) -> None:
        """Until nothing is left, the provider is given up, or more than `max_pause_s` would have to be waited: then it is parked."""
        began = monotonic()
        params = self.work.params
        try:
            batches = self._backend.batches()
            while self.work.left and self.closed is None:
                try:
                    with renewing(self.work):
                        is_waiting, is_done = await self._looked_after(batches)
                finally:
                    self.work.ledger.release(self.work.run_id, self.work.owner)
                    self.work.told()
                if is_done:
                    return
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

    async def _looked_after(self, batches: OpenAIBatches) -> tuple[bool, bool]:
        """Note what has come and submit what stands in no batch; whether any batch is under way, and whether nothing is left to do."""
        reply = fault("unavailable", "")
        for n_tries in range(1, self.work.params.max_attempts + 1):
            # Listed before each try: a reply that was lost on the way says nothing of whether a batch was made.
            under_way = await self._noted(batches)
            if under_way is None:
                return False, False
            left, n_others = self._affordable(under_way)
            if self.closed is not None or not left:
                if not under_way and n_others:
                    await asyncio.sleep(min(self.work.params.batch_poll_s, LONGEST_SLEEP_S))
                return bool(under_way), not under_way and not n_others
            named: dict[str, CompletionRequest] = {name: self.work.requests[claim.item_no] for name, claim in left.items()}
            try:
                await batches.submit(named, self.work.run_id)
                return True, False
            except self._backend.errors() as cause:
                reply = await self._backend.told(cause)
            if reply.outcome == "terminal":
                break
            self.work.ledger.release(self.work.run_id, self.work.owner)
            await self._waited(reply, n_tries)
        self.closed = reply
        return False, False

    async def _noted(self, batches: OpenAIBatches) -> set[str] | None:
        """Note what came of batches that are over; the names in those that are not, and None where nothing can be learnt."""
        known = await self._patiently(lambda: batches.of_run(self.work.run_id))
        if known is None:
            return None
        over = [batch for batch in known if batch.is_over and batch.batch_id not in self._read]
        if over:
            # Whatever the budget says: what is read here is paid for.
            claims, _ = self._claimed(NOTHING)
            for batch in over:
                replies = await self._replies(batches, batch, claims)
                if replies is None:
                    return None
                self._note({claims.pop(name): reply for name, reply in replies.items() if name in claims})
                self._read.add(batch.batch_id)
            self.work.ledger.release(self.work.run_id, self.work.owner)
        under_way: set[str] = set()
        for batch in known:
            if not batch.is_over:
                names = await self._names_of(batches, batch)
                if names is None:
                    return None
                under_way |= names
        return {name for name in under_way if int(name.partition("-")[0]) in self.work.left}

    async def _replies(self, batches: OpenAIBatches, batch: Batch, claims: Mapping[str, Claim]) -> Mapping[str, Reply] | None:
        """What came of a batch; one that was refused as a whole is the failure of each that stood in it, and of nobody else."""
        if batch.error is None:
            return await self._patiently(lambda: batches.replies(batch))
        names = await self._names_of(batches, batch)
        if names is None:
            return None
        refused = fault("bad_request", f"{self._lane[0]} refused a batch as a whole: {batch.error}")
        if any(name in claims for name in names):
            self.closed = self.closed or replace(refused, closes=True)
        return dict.fromkeys(names, refused)

    async def _names_of(self, batches: OpenAIBatches, batch: Batch) -> set[str] | None:
        if batch.batch_id not in self._names:
            names = await self._patiently(lambda: batches.names(batch))
            if names is None:
                return None
            self._names[batch.batch_id] = names
        return self._names[batch.batch_id]

    def _affordable(self, under_way: set[str]) -> tuple[Named, int]:
        """What stands in no batch and the budget bears beside those, and how many items others hold or wait for."""
        claims, n_others = self._claimed(self.work.params.budget, under_way)
        return {name: claim for name, claim in claims.items() if name not in under_way}, n_others

    def _claimed(self, budget: Budget, under_way: set[str] | None = None) -> tuple[Named, int]:
        """All that may be asked for, a few at a time, and how many others hold."""
        claims: Named = {}
        work, most = self.work, min(len(self.work.left), MOST_REQUESTS)
        while True:
            n = min(AT_ONCE, most - len(claims))
            turn = work.ledger.turn(work.run_id, work.owner, [], {self._lane: n}, budget, is_dead=is_dead)
            for item_no in turn.from_cache:
                work.settle(item_no)
            claims |= {f"{claim.item_no}-{claim.n_attempts}": claim for claim in turn.claimed[self._lane]}
            if not turn.claimed[self._lane] or len(claims) >= most:
                break
        if turn.over_budget:
            asked = {int(name.partition("-")[0]) for name in under_way or ()}  # which are paid for
            work.stop_over(turn.over_budget, sorted(work.of_lane(self._lane) - asked))
        return claims, (turn.n_leased or 0) + (turn.n_open or 0)

    def _note(self, replies: Mapping[Claim, Reply]) -> None:
        attempts: list[Attempt] = []
        for claim, reply in replies.items():
            item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
            attempt = attempt_of(item, claim, request, reply, self.work.params, utc_now(), 0.0, self._rng)
            attempts.append(replace(attempt, not_before=None))
            if reply.closes:
                self.closed = self.closed or reply
        for first in range(0, len(attempts), AT_ONCE):
            self._settle(attempts[first : first + AT_ONCE])

    def _settle(self, attempts: Sequence[Attempt]) -> None:
        self.work.ledger.turn(self.work.run_id, self.work.owner, attempts, {}, NOTHING, is_dead=is_dead)
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
            await self._waited(reply, n_tries)
        self.closed = reply
        return None

    async def _waited(self, reply: Reply, n_tries: int) -> None:
        await asyncio.sleep(reply.wait_s if reply.wait_s is not None else self.work.params.backoff(n_tries, self._rng))

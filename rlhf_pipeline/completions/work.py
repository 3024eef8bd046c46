"""The work of a run in the ledger, and what every lane of calls to a provider does with it."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed

from rlhf_pipeline.completions.base import HostedBackend, Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.completions.request_plan import Plan
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.processes import is_dead, make_owner
from rlhf_pipeline.protocols import Attempt, Claim, Lane, LedgerTransaction, WorkLedger
from rlhf_pipeline.records import utc_now

LOOK_S = 0.5  # between two checks of items that another process has claimed
AT_ONCE = 500  # attempts settled in one transaction: votes wait for the same lock

T = TypeVar("T")


@dataclass
class CompletionWork:
    """Items of one run, shared by the lanes that complete them. `on_settled` is called whenever
    some are settled.
    """

    run_id: str
    ledger: WorkLedger
    plan: Plan
    params: CallParams
    n_left: int
    on_settled: Callable[[], None] = lambda: None
    n_failed: int = 0
    lanes: "list[ProviderLane]" = field(default_factory=list)
    useless: list[int] = field(default_factory=list)  # prompts, see `require_per_prompt`
    is_stopping: bool = False
    error: BaseException | None = None  # of a lane; ends the run once everything is recorded
    _n_of_prompt: int = 1
    _least: int = 1
    _lost: Counter[int] = field(default_factory=Counter)  # failed items by prompt

    def require_per_prompt(self, least: int, n_of_prompt: int, lost: Counter[int]) -> None:
        """A prompt is useless once fewer than `least` of its `n_of_prompt` items can still
        succeed. `lost` counts those that had failed before.
        """
        self._least, self._n_of_prompt, self._lost = least, n_of_prompt, lost
        self.useless = [prompt for prompt in lost if self._is_useless(prompt)]

    def stop(self, error: BaseException | None = None) -> None:
        """End all lanes soon; calls that were made are recorded."""
        self.error = self.error or error
        self.is_stopping = True
        for lane in self.lanes:
            lane.wake.set()

    def report(self) -> None:
        if not self.is_stopping:  # the callback may have interrupted the run
            self.on_settled()

    def settle(self, item_no: int, *, failed: bool = False) -> None:
        self.n_left -= 1
        if failed:
            self.n_failed += 1
            prompt = item_no // self._n_of_prompt
            was_useless = self._is_useless(prompt)
            self._lost[prompt] += 1
            if self._is_useless(prompt) and not was_useless:
                self.useless.append(prompt)

    def settle_all(self, attempts: Sequence[Attempt], turn: LedgerTransaction) -> None:
        """Count what a transaction has settled."""
        for attempt in attempts:
            if attempt.becomes != "open" and attempt.item_no not in turn.late:
                self.settle(attempt.item_no, failed=attempt.becomes == "failed")
        for item_no in turn.from_cache:
            self.settle(item_no)

    def is_useless(self, item_no: int) -> bool:
        """Whether too few items of its prompt can still succeed."""
        return self._is_useless(item_no // self._n_of_prompt)

    def items_of(self, prompts: Sequence[int]) -> list[int]:
        n = self._n_of_prompt
        return [item_no for p in prompts for item_no in range(p * n, (p + 1) * n)]

    def _is_useless(self, prompt: int) -> bool:
        return self._n_of_prompt - self._lost[prompt] < self._least


class ProviderLane(ABC):
    """Completes the items of one provider and model: the base of every lane.

    Lanes run side by side in one event loop; only transactions of the ledger run in other threads.

    Attributes:
        closed: why this lane makes no more calls; None while it is open.
        parked_until: set with `closed` if the lane may resume later.
        waiting: claims whose call has not begun.
        attempts: calls that ended and are not recorded yet.
        wake: set whenever there is something to record, or to stop for.
    """

    def __init__(self, work: CompletionWork, key: Lane, backend: HostedBackend) -> None:
        self.work = work
        self.key = key
        self.owner = make_owner()
        self.closed: Reply | None = None
        self.parked_until: datetime | None = None
        self.attempts: list[Attempt] = []
        self.waiting = deque[Claim]()
        self.wake = asyncio.Event()
        self._backend = backend
        work.lanes.append(self)

    @abstractmethod
    async def complete(self) -> None:
        """Complete all items of the lane; return early if it is closed or to be stopped. Each call
        that was made is in `attempts` at the end.
        """

    async def run(self) -> None:
        """Complete all items of the lane, and record everything that was made. An error ends all
        lanes; asyncio would end at once with an interrupt, and record nothing.
        """
        for step in (self.complete, self._backend.close, self._end):
            try:
                await step()
            except BaseException as cause:  # noqa: BLE001  raised once all lanes have ended
                self.work.stop(cause)

    async def turn(self, n_wanted: int | None) -> LedgerTransaction:
        """Record attempts and claim up to `n_wanted` items in one transaction; None claims nothing
        any more. Items that no budget covers fail.
        """
        work, taken = self.work, self.attempts[:AT_ONCE]
        turn: LedgerTransaction = await self.persist(
            work.ledger.settle_and_claim,
            work.run_id,
            self.owner,
            taken,
            {} if n_wanted is None else {self.key: n_wanted},
            work.params.budget,
            is_dead=is_dead,
        )
        del self.attempts[: len(taken)]
        work.settle_all(taken, turn)
        if taken or turn.from_cache:
            work.report()
        if short := turn.over_budget.get(self.key):
            why = f"Not called: {short.why}. Raise the budget and run again."
            await self.fail_open("budget", why, above=short.left)
        return turn

    async def fail_open(
        self, kind: str, error: str, items: Sequence[int] | None = None, above: int | None = None
    ) -> None:
        """Fail open items of the lane; see `WorkLedger.fail_open`."""
        work = self.work
        failed = await self.persist(
            lambda: list(
                work.ledger.fail_open(work.run_id, self.key, kind, error, items, above=above)
            )
        )
        for item_no in failed:
            work.settle(item_no, failed=True)
        if failed:
            work.report()
            self.wake.set()

    def park(self, why: str, wait_s: float) -> Reply:
        """Close the lane for this time, unless it is closed for good; return the reason."""
        wait_s = max(wait_s, self.work.params.max_pause_s)
        until = utc_now() + timedelta(seconds=wait_s)
        if self.closed is None or self.parked_until is not None:
            self.parked_until = max(until, self.parked_until or until)
        said = f"{self.key[0]} is asked again after {wait_s:,.0f} s, in another run: {why}"
        reply = fault("long_wait", said, wait_s=wait_s)
        self.closed = self.closed or reply
        return reply

    async def release(self, items: Sequence[int] | None = None) -> None:
        """Reopen items that were claimed and not called; by default all that are claimed."""
        await self.persist(self.work.ledger.release, self.work.run_id, self.owner, items)

    async def persist(self, do: Callable[..., T], *args: Any, **more: Any) -> T:
        return await asyncio.to_thread(persist_with_retry, self.work.ledger, do, *args, **more)

    async def wait(self, *waits_s: float | None) -> None:
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
                await self.turn(None)
        except StoreError as cause:
            self.work.stop(cause)
            uncalled = [claim.item_no for claim in self.waiting]
        with suppress(StoreError):
            await self.release(uncalled)
        if self.closed is not None and self.parked_until is None and not self.work.is_stopping:
            await self.fail_open("unavailable", f"Not called: {self.closed.error}")


def persist_with_retry(ledger: WorkLedger, do: Callable[..., T], *args: Any, **more: Any) -> T:
    """Write to the ledger; retry while the store refuses, because a refused write keeps nothing."""
    waits_s = ledger.write_again_s
    again = Retrying(
        retry=retry_if_exception_type(StoreError),
        wait=wait_chain(*map(wait_fixed, waits_s)),
        stop=stop_after_attempt(len(waits_s) + 1),
        reraise=True,
    )
    return again(do, *args, **more)

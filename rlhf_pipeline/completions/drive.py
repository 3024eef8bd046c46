"""Drives the work ledger: claims items, hands them to lanes and settles what the lanes report.

One loop serves providers, batches and this machine. A lane only turns claims into attempts; leases,
budgets, closing and pausing a lane, useless prompts and interrupts are handled here.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from time import sleep
from typing import Any, TypeVar

from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.limits import CallParams
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.processes import is_dead, make_owner
from rlhf_pipeline.protocols import (
    Attempt,
    Budget,
    BudgetShortfall,
    Claim,
    Lane,
    LedgerTransaction,
    WorkItem,
    WorkLedger,
)

LONGEST_SLEEP_S = 5.0  # without a transaction
LOOK_S = 0.5  # between two checks of items that another process has claimed
AT_ONCE = 500  # attempts settled in one transaction: votes wait for the same lock
NO_BUDGET = Budget()

T = TypeVar("T")


@dataclass
class CompletionWork:
    """Items of one run and their requests. `on_settled` is called whenever some are settled."""

    run_id: str
    ledger: WorkLedger
    items: Sequence[WorkItem]
    requests: Sequence[CompletionRequest]
    params: CallParams
    left: set[int]
    budget: Budget = NO_BUDGET
    on_settled: Callable[[], None] = lambda: None
    n_failed: int = 0
    n_of_prompt: int = 1  # items of one prompt, side by side
    least: int = 1  # items of a prompt that must succeed for the prompt to be useful
    lost: Counter[int] = field(default_factory=Counter)  # permanently failed items by prompt
    parked: set[int] = field(default_factory=set)
    parked_until: datetime | None = None
    owner: str = field(default_factory=make_owner)

    def settle(self, item_no: int, *, failed: bool = False) -> None:
        if item_no in self.left:
            self.left.discard(item_no)
            if failed:
                self.n_failed += 1
                self.lost[item_no // self.n_of_prompt] += 1

    def find_useless(self, failed: Iterable[int]) -> list[int]:
        """Items left of the prompts of these failures, if too few of a prompt can still succeed."""
        prompts = {item_no // self.n_of_prompt for item_no in failed}
        hopeless = [
            prompt for prompt in prompts if self.n_of_prompt - self.lost[prompt] < self.least
        ]
        return [
            n
            for prompt in hopeless
            for n in range(prompt * self.n_of_prompt, (prompt + 1) * self.n_of_prompt)
            if n in self.left
        ]

    def items_of_lane(self, lane: Lane) -> set[int]:
        """Items left in a lane."""
        return {n for n in self.left if (self.items[n].provider, self.items[n].model) == lane}

    def leave_lane(self, lane: Lane, until: datetime | None = None) -> None:
        """Leave the remaining items of a lane to a later run; with `until` the run is parked."""
        mine = self.items_of_lane(lane)
        self.left -= mine
        self.parked |= mine
        if until is not None:
            self.parked_until = max(until, self.parked_until or until)


class WorkLane(ABC):
    """Turns the claims of one provider and model into attempts: the base of every lane.

    `drive` calls all methods from one thread. A lane that works in another thread sets the event
    that `start` receives whenever it has something to report.

    Attributes:
        closed: why this lane accepts no more claims; None while it is open.
        parked_until: set with `closed` if the lane may resume later. broken: a bug that ends the
        run once everything is recorded. waits_when_closed: whether a closed lane waits for items
        that other processes hold. tick_s: pause between two transactions, in which reports gather.
    """

    closed: Reply | None = None
    parked_until: datetime | None = None
    broken: BaseException | None = None
    waits_when_closed = True
    tick_s = 0.0

    def __init__(self, work: CompletionWork, key: Lane) -> None:
        self.work = work
        self.key = key
        self.wake = threading.Event()

    @property
    @abstractmethod
    def n_wanted(self) -> int:
        """How many more claims it can take now."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether it has claims that are neither reported nor withdrawn."""

    @property
    def paused_s(self) -> float:
        """Seconds until it wants claims again; 0 if it is not paused."""
        return 0.0

    def start(self, wake: threading.Event) -> None:
        self.wake = wake

    @abstractmethod
    def add(self, claims: Sequence[Claim], *, is_all: bool) -> None:
        """Take claims; `is_all` if no more can be claimed now."""

    @abstractmethod
    def take_attempts(self, most: int) -> list[Attempt]:
        """Attempts not taken before."""

    def settled(self) -> None:  # noqa: B027 (most lanes hold nothing until then)
        """The attempts taken before are recorded."""

    def withdraw(self, items: set[int] | None = None) -> list[int]:
        """Give up claims, of these items or all, for which no call has begun."""
        return []

    def stop(self) -> None:  # noqa: B027 (a lane without calls has nothing to end)
        """End running calls; each becomes an attempt."""


class StopSignal:
    """Ends a `drive` in another thread at once; its calls are recorded."""

    def __init__(self) -> None:
        self.is_set = False
        self.wake = threading.Event()

    def set(self) -> None:
        self.is_set = True
        self.wake.set()


def drive(
    work: CompletionWork, lanes: Sequence[WorkLane], *, stopping: StopSignal | None = None
) -> None:
    """Complete all of `work`, or until `stopping` is set. Raises StoreError if the ledger refuses
    for several seconds, and the errors of lanes; everything made by then is recorded.
    """
    _Drive(work, lanes, stopping or StopSignal()).run()


def drive_uninterrupted(do: Callable[[StopSignal], T]) -> T:
    """Run `do` in another thread. An interrupt of this one sets the signal that `do` receives, and
    is raised once `do` has recorded everything.
    """
    stopping, job = StopSignal(), Future[T]()

    def run() -> None:
        try:
            job.set_result(do(stopping))
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            job.set_exception(error)

    thread = threading.Thread(target=run, name="ledger")
    interrupt: BaseException | None = None
    thread.start()
    while True:
        try:
            error = job.exception()
            break
        except BaseException as cause:  # noqa: BLE001  raised below
            stopping.set()
            interrupt = interrupt or cause
    if interrupt is not None:
        raise interrupt
    if error is not None:
        raise error
    return job.result()


class _Drive:
    def __init__(
        self, work: CompletionWork, lanes: Sequence[WorkLane], stopping: StopSignal
    ) -> None:
        self._work = work
        self._lanes = {lane.key: lane for lane in lanes}
        self._stopping = stopping
        self._wake = stopping.wake
        self._attempts: list[Attempt] = []  # taken from the lanes, not recorded yet
        self._cleared: set[Lane] = set()  # closed lanes without open items
        self._left: set[Lane] = set()  # closed lanes whose items a later run completes

    def run(self) -> None:
        with renew_claims(self._work):
            try:
                for lane in self._lanes.values():
                    lane.start(self._wake)
                self._run_transactions()
            finally:
                self._shut_down()

    def _run_transactions(self) -> None:
        work = self._work
        # Failures of an interrupted run count too.
        self._skip_useless([prompt * work.n_of_prompt for prompt in work.lost])
        while work.left:
            self._wake.clear()
            if self._stopping.is_set:
                return
            n_left = len(work.left)
            wanted = {
                key: lane.n_wanted for key, lane in self._lanes.items() if key not in self._left
            }
            # Read before the transaction: a lane that is idle now has reported everything.
            was_busy = self._is_busy()
            attempts, turn = self._settle_and_claim(wanted)
            failed = [attempt.item_no for attempt in attempts if attempt.becomes != "succeeded"]
            unneeded = self._hand_out(turn, wanted, set(work.find_useless(failed)))
            if turn.n_open or any(attempt.becomes == "open" for attempt in attempts):
                self._cleared.clear()  # an item was returned, here or by another process
            failed += self._settle_closed_lanes()
            failed += self._fail_over_budget(turn.over_budget)
            self._skip_useless(failed, unneeded)
            if len(work.left) < n_left:
                work.on_settled()
            for lane in self._lanes.values():
                if lane.broken is not None:
                    raise lane.broken
            is_busy = self._is_busy()
            if not work.left or (turn.n_open == turn.n_leased == 0 and not was_busy | is_busy):
                return  # done, or another process settled the rest
            if is_busy or not was_busy:
                self._wait(turn, wanted, is_busy=is_busy)

    def _is_busy(self) -> bool:
        return any(lane.is_busy for lane in self._lanes.values())

    def _settle_and_claim(
        self, wanted: Mapping[Lane, int]
    ) -> tuple[Sequence[Attempt], LedgerTransaction]:
        work = self._work
        self._attempts += [a for lane in self._lanes.values() for a in lane.take_attempts(AT_ONCE)]
        turn: LedgerTransaction = self._persist(
            work.ledger.settle_and_claim,
            work.run_id,
            work.owner,
            self._attempts,
            wanted,
            work.budget,
            is_dead=is_dead,
        )
        attempts, self._attempts = self._attempts, []
        for lane in self._lanes.values():
            lane.settled()
        for attempt in attempts:
            if attempt.becomes != "open" and attempt.item_no not in turn.late:
                work.settle(attempt.item_no, failed=attempt.becomes == "failed")
        for item_no in turn.from_cache:
            work.settle(item_no)
        return attempts, turn

    def _hand_out(
        self, turn: LedgerTransaction, wanted: Mapping[Lane, int], useless: set[int]
    ) -> list[int]:
        """Hand claims to their lanes; return those that are useless."""
        unneeded: list[int] = []
        for key, claims in turn.claimed.items():
            unneeded += [claim.item_no for claim in claims if claim.item_no in useless]
            needed = [claim for claim in claims if claim.item_no not in useless]
            self._lanes[key].add(needed, is_all=len(claims) < wanted[key])
        return unneeded

    def _settle_closed_lanes(self) -> list[int]:
        """Fail or park the open items of closed lanes; return the failed ones."""
        work, failed = self._work, list[int]()
        for key, lane in self._lanes.items():
            if lane.closed is None or key in self._left:
                continue
            uncalled = lane.withdraw()
            if uncalled:
                self._persist(work.ledger.release, work.run_id, work.owner, uncalled)
            if lane.parked_until is None and (uncalled or key not in self._cleared):
                self._cleared.add(key)
                failed += self._fail_open(key, "unavailable", f"Not called: {lane.closed.error}")
            # A busy lane may return some claims.
            if not lane.is_busy and not (lane.parked_until is None and lane.waits_when_closed):
                self._left.add(key)
                work.leave_lane(key, lane.parked_until)
        return failed

    def _skip_useless(self, failed: Sequence[int], unneeded: Sequence[int] = ()) -> None:
        """Fail uncalled items of prompts that can no longer give a pair because of these
        failures.
        """
        work = self._work
        useless = work.find_useless(failed)
        if not useless:
            return
        gone = set(useless)
        waiting = [*unneeded, *(n for lane in self._lanes.values() for n in lane.withdraw(gone))]
        if waiting:
            self._persist(work.ledger.release, work.run_id, work.owner, waiting)
        why = (
            f"Not called: too many of this prompt's completions failed for {work.least} of them "
            "to succeed."
        )
        for key in self._lanes:
            self._fail_open(key, "no_pair", why, useless)

    def _fail_over_budget(self, over: Mapping[Lane, BudgetShortfall]) -> list[int]:
        """Fail items that no budget covers any more."""
        failed: list[int] = []
        for lane, short in over.items():
            why = f"Not called: {short.why}. Raise the budget and run again."
            failed += self._fail_open(lane, "budget", why, above=short.left)
        return failed

    def _fail_open(
        self,
        lane: Lane,
        kind: str,
        error: str,
        items: Sequence[int] | None = None,
        above: int | None = None,
    ) -> list[int]:
        work, failed = self._work, list[int]()

        def fail() -> None:
            for item_no in work.ledger.fail_open(
                work.run_id, lane, kind, error, items, above=above
            ):
                work.settle(item_no, failed=True)
                failed.append(item_no)

        self._persist(fail)
        return failed

    def _wait(self, turn: LedgerTransaction, wanted: Mapping[Lane, int], *, is_busy: bool) -> None:
        """Sleep until there is something to settle or to claim; a tick at least."""
        lanes = self._lanes.values()
        # A lane may want more by now: a pause is over, or its claims are being called.
        is_hungry = turn.n_open is None and any(
            lane.n_wanted > wanted.get(lane.key, 0) for lane in lanes
        )
        is_closing = not is_busy and any(
            lane.closed is not None and lane.key not in self._cleared | self._left for lane in lanes
        )
        if not (is_hungry or is_closing):
            waits = [LONGEST_SLEEP_S, *(lane.paused_s for lane in lanes if lane.paused_s > 0)]
            if turn.due_s is not None:
                waits.append(turn.due_s)
            if turn.n_leased:
                waits.append(LOOK_S)
            self._wake.wait(min(waits))
        sleep(max(lane.tick_s for lane in lanes))

    def _shut_down(self) -> None:
        """Record the results that arrived meanwhile and release claims without a call.

        A call that the store refuses to record keeps its claim until the lease ends; the process
        that takes it over records the call as lost. If it were released instead, it would be called
        again and the first call would never be counted.
        """
        work = self._work
        for lane in self._lanes.values():
            lane.stop()
        waiting = [n for lane in self._lanes.values() for n in lane.withdraw()]
        uncalled = None  # everything still claimed, once the calls are recorded
        try:
            while True:
                attempts, _ = self._settle_and_claim({})
                if not attempts:
                    break
        except StoreError:
            uncalled = waiting
        with suppress(StoreError):
            work.ledger.release(work.run_id, work.owner, uncalled)

    def _persist(self, do: Callable[..., T], *args: Any, **more: Any) -> T:
        return persist_with_retry(self._work.ledger, do, *args, **more)


def persist_with_retry(ledger: WorkLedger, do: Callable[..., T], *args: Any, **more: Any) -> T:
    """Write to the ledger; retry while the store refuses, because a refused write keeps nothing."""
    for wait_s in ledger.write_again_s:
        try:
            return do(*args, **more)
        except StoreError:
            sleep(wait_s)
    return do(*args, **more)


@contextmanager
def renew_claims(work: CompletionWork) -> Iterator[None]:
    """Renew claims while a lane works in this thread for long."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(work.ledger.renew_s):
            with suppress(StoreError):  # the next renewal is soon enough
                work.ledger.settle_and_claim(
                    work.run_id, work.owner, [], {}, NO_BUDGET, is_dead=is_dead
                )

    thread = threading.Thread(target=renew, name="leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

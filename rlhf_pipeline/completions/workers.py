"""Work of a ledger done: calls to providers side by side, batches on this machine. Knows ledgers
and backends by protocol; knows no store.
"""

import asyncio
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from time import perf_counter, sleep
from typing import Any, TypeVar

from rlhf_pipeline.completions.attempts import (
    build_attempt,
    build_local_attempt,
    build_unread_attempt,
    is_last_attempt,
)
from rlhf_pipeline.completions.base import (
    CompletionRequest,
    DirectBackend,
    HostedBackend,
    Reply,
)
from rlhf_pipeline.completions.callbacks import OnItem, complete_with_callback, ignore_text
from rlhf_pipeline.completions.faults import LONGEST_WAIT_S, NO_ANSWER, fault
from rlhf_pipeline.completions.limits import CallParams, Limiter, Ticket, expected_tokens
from rlhf_pipeline.completions.owners import is_dead, make_owner
from rlhf_pipeline.errors import CompletionError, StoreError
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
from rlhf_pipeline.records import utc_now

TICK_S = 0.025  # between two turns of the ledger: what ends meanwhile shares a transaction
LONGEST_SLEEP_S = 5.0  # without a turn: leases are renewed in turns
AT_HAND = 8  # items of a lane, however few of them may be under way at once
LOOK_S = 0.5  # at items that another process has under way
NOTHING = Budget()

T = TypeVar("T")


@dataclass
class CompletionWork:
    """Items of one run, all of whose requests are at hand. `on_settled` is called as each is
    settled, with or without an error.
    """

    run_id: str
    ledger: WorkLedger
    items: Sequence[WorkItem]
    requests: Sequence[CompletionRequest]
    params: CallParams
    left: set[int]
    on_settled: Callable[[], None] = lambda: None
    n_failed: int = 0
    n_of_prompt: int = 1  # items of one prompt, side by side
    least: int = 1  # of them, or the prompt is of no use
    lost: Counter[int] = field(default_factory=Counter)  # by prompt: what failed for good
    # failed uncalled; what that means for their prompts is not seen to yet
    stopped: list[int] = field(default_factory=list)
    parked: set[int] = field(default_factory=set)
    parked_until: datetime | None = None
    owner: str = field(default_factory=make_owner)

    def settle(self, item_no: int, *, failed: bool = False) -> None:
        if item_no in self.left:
            self.left.discard(item_no)
            if failed:
                self.n_failed += 1
                self.lost[item_no // self.n_of_prompt] += 1

    def settle_all(self, attempts: Iterable[Attempt], turn: LedgerTransaction) -> None:
        """What a turn settled: of the attempts that were told to it those that ended their item,
        and what the cache answered.
        """
        for attempt in attempts:
            if attempt.becomes != "open" and attempt.item_no not in turn.late:
                self.settle(attempt.item_no, failed=attempt.becomes == "failed")
        for item_no in turn.from_cache:
            self.settle(item_no)

    def find_useless(self, failed: Iterable[int]) -> list[int]:
        """What is left of the prompts of these failures, where it cannot come to enough any
        more.
        """
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
        """What is left in a lane."""
        return {n for n in self.left if (self.items[n].provider, self.items[n].model) == lane}

    def pause_lane(self, lane: Lane, until: datetime) -> None:
        """Leave what is open in a lane for another time."""
        mine = self.items_of_lane(lane)
        self.left -= mine
        self.parked |= mine
        self.parked_until = max(until, self.parked_until or until)

    def fail_open(
        self,
        lane: Lane,
        kind: str,
        error: str,
        items: Sequence[int] | None = None,
        above: int | None = None,
    ) -> None:
        """Fail what is left of a lane, or of these items of it, or what reserves more than `above`,
        uncalled.
        """
        for item_no in self.ledger.fail_open(self.run_id, lane, kind, error, items, above=above):
            self.settle(item_no, failed=True)
            self.stopped.append(item_no)

    def fail_over_budget(
        self, over: Mapping[Lane, BudgetShortfall], items: Sequence[int] | None = None
    ) -> None:
        """Fail what no budget bears any more."""
        for lane, budget in over.items():
            self.fail_open(
                lane,
                "budget",
                f"Not called: {budget.why}. Raise the budget and run again.",
                items,
                budget.left,
            )


@dataclass
class _Lane:
    key: Lane
    backend: HostedBackend
    limiter: Limiter
    queue: deque[Claim] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    closed: Reply | None = None
    # is closed: whoever waits for its peace to end need not
    shut: asyncio.Event = field(default_factory=asyncio.Event)
    parked_until: datetime | None = None
    is_stopped: bool = False  # closed, and nothing of it is open that this run knows of
    is_parked: bool = False

    @property
    def room(self) -> int:
        """How many more to have at hand: as many as may be under way, so that nobody waits for a
        transaction.
        """
        if self.closed is not None or self.limiter.paused_s > 0:
            return 0
        return max(
            0, max(int(self.limiter.limit), min(self.limiter.most, AT_HAND)) - len(self.queue)
        )

    def close(self, reply: Reply) -> None:
        """Nobody asks it any more; the first reason stands."""
        self.closed = self.closed or reply
        self.shut.set()

    def pause(self, reply: Reply, until: datetime) -> None:
        """Closed until then, unless it is for good."""
        if self.closed is None or self.parked_until is not None:
            self.parked_until = max(until, self.parked_until or until)
        self.close(reply)


class HostedWork:
    """Everything of `work` that is behind a network, one lane for each provider and model: a lane
    that waits keeps no other waiting.
    """

    def __init__(
        self,
        work: CompletionWork,
        backends: Mapping[Lane, HostedBackend],
        *,
        rng: random.Random | None = None,
        on_text: OnItem | None = None,
    ) -> None:
        self.work = work
        self._lanes = {
            lane: _Lane(lane, backend, Limiter(work.params)) for lane, backend in backends.items()
        }
        self._budget = work.params.budget
        self._rng = rng or random.Random()
        self._on_text = on_text if on_text is not None or not work.params.stream else ignore_text
        self._attempts: list[Attempt] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._broken: BaseException | None = None
        self._refused = False  # by the store: what was last handed to it was not kept

    @property
    def closed_lanes(self) -> dict[Lane, Reply]:
        """Lanes that were closed, and why."""
        return {key: lane.closed for key, lane in self._lanes.items() if lane.closed is not None}

    async def run(self) -> None:
        """Until nothing is left. Raises StoreError where the ledger refuses for seconds on end;
        what was under way is then lost.
        """
        ledger_thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        dispatchers = [
            asyncio.create_task(self._begin_calls(lane)) for lane in self._lanes.values()
        ]
        for task in dispatchers:
            task.add_done_callback(self._on_task_done)
        try:
            await self._run_ledger_loop(ledger_thread)
        finally:
            await shielded(self._shut_down(ledger_thread, dispatchers))

    async def _shut_down(
        self, ledger_thread: ThreadPoolExecutor, dispatchers: Sequence["asyncio.Task[None]"]
    ) -> None:
        for task in (*dispatchers, *self._calls):
            task.cancel()
        await asyncio.gather(*dispatchers, *self._calls, return_exceptions=True)
        try:
            await self._record_remaining(ledger_thread)
        finally:
            for lane in self._lanes.values():
                await lane.backend.close()
            ledger_thread.shutdown()

    # --- the ledger
    # ----------------------------------------------------------------------------------------------

    async def _record_remaining(self, ledger_thread: ThreadPoolExecutor) -> None:
        """What came while the run was ended; and give back what nobody called for. Where the store
        will not hear of a call, its claim is left to run out: whoever takes it then books the call
        as lost. Were it given back, the call would be made again, and the first one be free."""
        attempts, self._attempts = self._attempts, []
        uncalled = None  # all that is still claimed, once the calls are told of
        try:
            await self._persist_with_retry(ledger_thread, self._run_transaction, attempts, {})
        except StoreError:
            uncalled = [claim.item_no for lane in self._lanes.values() for claim in lane.queue]
        with suppress(StoreError):
            await self._run_on_ledger_thread(
                ledger_thread, self.work.ledger.release, self.work.run_id, self.work.owner, uncalled
            )

    async def _run_ledger_loop(self, ledger_thread: ThreadPoolExecutor) -> None:
        # by a run that was cut off
        await self._skip_useless(
            ledger_thread, [prompt * self.work.n_of_prompt for prompt in self.work.lost]
        )
        while self.work.left:
            wanted = {key: lane.room for key, lane in self._lanes.items() if not lane.is_parked}
            attempts, turn = await self._settle_and_claim(ledger_thread, wanted)
            self.work.settle_all(attempts, turn)
            fallen = [attempt.item_no for attempt in attempts if attempt.becomes != "succeeded"]
            useless, held = set(self.work.find_useless(fallen)), list[int]()
            for key, claims in turn.claimed.items():
                self._lanes[key].queue.extend(
                    claim for claim in claims if claim.item_no not in useless
                )
                self._lanes[key].changed.set()
                held += [claim.item_no for claim in claims if claim.item_no in useless]
            if turn.n_open or any(attempt.becomes == "open" for attempt in attempts):
                for lane in self._lanes.values():
                    lane.is_stopped = False  # what was under way, here or elsewhere, came back
            await self._settle_closed_lanes(ledger_thread)
            await self._persist_with_retry(
                ledger_thread, self.work.fail_over_budget, turn.over_budget
            )
            stopped, self.work.stopped = self.work.stopped, []
            await self._skip_useless(ledger_thread, fallen + stopped, held)
            self.work.on_settled()
            if self._broken is not None:
                raise self._broken
            if not self.work.left:
                return
            if turn.n_open == turn.n_leased == 0 and not (
                self._calls or self._attempts or any(lane.queue for lane in self._lanes.values())
            ):
                return  # another process settled the rest
            await self._sleep(turn, wanted)

    async def _sleep(self, turn: LedgerTransaction, wanted: Mapping[Lane, int]) -> None:
        """Until there is something to note or to claim; a tick at least."""
        # More may be there than was wanted then: a pause is over, or what was claimed is under way
        # already.
        is_hungry = turn.n_open is None and any(
            lane.room > wanted.get(key, 0) for key, lane in self._lanes.items()
        )
        waits = [
            LONGEST_SLEEP_S,
            *(lane.limiter.paused_s for lane in self._lanes.values() if lane.limiter.paused_s > 0),
        ]
        if turn.due_s is not None:
            waits.append(turn.due_s)
        if turn.n_leased:
            waits.append(LOOK_S)
        is_closing = not self._calls and any(
            lane.closed is not None and not lane.is_stopped for lane in self._lanes.values()
        )
        if not (self._attempts or is_closing or is_hungry):
            await _wait_for_event(self._wake, min(waits))
        await asyncio.sleep(TICK_S)
        self._wake.clear()

    async def _settle_closed_lanes(self, ledger_thread: ThreadPoolExecutor) -> None:
        """Fail what is open of lanes that were closed, or park it, whenever something may be."""
        for lane in self._lanes.values():
            if lane.closed is None or lane.is_stopped:
                continue
            waiting = [claim.item_no for claim in lane.queue]
            lane.queue.clear()
            # Said before anything is awaited: a call that wakes meanwhile gives its claim back, and
            # says that there is more to stop. What is to be parked may come back open as long as
            # anything is under way.
            lane.is_stopped = lane.parked_until is None or not (self._calls or self._attempts)
            if waiting:
                await self._persist_with_retry(
                    ledger_thread,
                    self.work.ledger.release,
                    self.work.run_id,
                    self.work.owner,
                    waiting,
                )
            if lane.parked_until is None:
                await self._persist_with_retry(
                    ledger_thread,
                    self.work.fail_open,
                    lane.key,
                    "unavailable",
                    f"Not called: {lane.closed.error}",
                )
            elif lane.is_stopped:
                lane.is_parked = True
                self.work.pause_lane(lane.key, lane.parked_until)

    async def _skip_useless(
        self, ledger_thread: ThreadPoolExecutor, failed: Sequence[int], held: Sequence[int] = ()
    ) -> None:
        """What of the prompts of these failures nobody has called for, `held` or not: it could not
        come to a pair.
        """
        useless = self.work.find_useless(failed)
        if not useless:
            return
        gone = set(useless)
        waiting = [
            *held,
            *(
                claim.item_no
                for lane in self._lanes.values()
                for claim in lane.queue
                if claim.item_no in gone
            ),
        ]
        for lane in self._lanes.values():
            lane.queue = deque(claim for claim in lane.queue if claim.item_no not in gone)
        if waiting:
            await self._persist_with_retry(
                ledger_thread, self.work.ledger.release, self.work.run_id, self.work.owner, waiting
            )
        why = (
            f"Not called: too many of this prompt's completions failed for {self.work.least} of "
            "them to succeed."
        )
        for key in self._lanes:
            await self._persist_with_retry(
                ledger_thread, self.work.fail_open, key, "no_pair", why, useless
            )
        self.work.stopped.clear()  # their prompts are known to be useless

    async def _settle_and_claim(
        self, ledger_thread: ThreadPoolExecutor, wanted: Mapping[Lane, int]
    ) -> tuple[Sequence[Attempt], LedgerTransaction]:
        """A turn, and what it settled. What it could not stays to be told."""
        attempts, self._attempts = self._attempts, []
        try:
            return attempts, await self._persist_with_retry(
                ledger_thread, self._run_transaction, attempts, wanted
            )
        except Exception:
            self._attempts[:0] = attempts
            raise
        except asyncio.CancelledError:
            if self._refused:
                self._attempts[:0] = attempts
            raise

    async def _persist_with_retry(
        self, ledger_thread: ThreadPoolExecutor, do: Callable[..., T], *args: Any
    ) -> T:
        """What the ledger does, tried again where the store refuses it for a moment: then nothing
        of it was kept.
        """
        for wait_s in (*self.work.ledger.write_again_s, None):
            try:
                return await self._run_on_ledger_thread(ledger_thread, do, *args)
            except StoreError:
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s or 0)
        raise AssertionError("unreachable")

    def _run_transaction(
        self, attempts: Sequence[Attempt], wanted: Mapping[Lane, int]
    ) -> LedgerTransaction:
        return self.work.ledger.settle_and_claim(
            self.work.run_id, self.work.owner, attempts, wanted, self._budget, is_dead=is_dead
        )

    async def _run_on_ledger_thread(
        self, ledger_thread: ThreadPoolExecutor, do: Callable[..., T], *args: Any
    ) -> T:
        # Shielded: what was handed over is written, also where this run is ended meanwhile; the
        # ledger_thread does one thing after the other.
        job = asyncio.get_running_loop().run_in_executor(ledger_thread, partial(do, *args))
        self._refused = False
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            with suppress(StoreError):
                await job
            self._refused = job.done() and not job.cancelled() and job.exception() is not None
            raise
        except StoreError:
            self._refused = True
            raise

    # --- calls
    # ----------------------------------------------------------------------------------------------

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """What ends a task ends the run: the ledger's loop raises it, where the task would keep it
        to itself. That may be a signal's, as Dagster ends runs, which comes in whatever is being
        done."""
        self._calls.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._broken = self._broken or bug
            self._wake.set()

    async def _begin_calls(self, lane: _Lane) -> None:
        """Begin a call whenever the lane's limits allow."""
        while True:
            lane.changed.clear()
            wait_s: float | None = None
            if lane.queue and lane.closed is None:
                n_tokens = expected_tokens(self.work.requests[lane.queue[0].item_no])
                wait_s = lane.limiter.wait_s(n_tokens)
                if wait_s == 0:
                    ticket = lane.limiter.begin(n_tokens)
                    call = asyncio.create_task(self._call(lane, lane.queue.popleft(), ticket))
                    self._calls.add(call)
                    call.add_done_callback(self._on_task_done)
                    if len(lane.queue) < lane.limiter.limit / 2:
                        self._wake.set()
                    continue
            await _wait_for_event(lane.changed, wait_s)

    async def _call(self, lane: _Lane, claim: Claim, ticket: Ticket) -> None:
        request = self.work.requests[claim.item_no]
        # another's refusal was read since this call was let go
        while lane.closed is None and (wait_s := lane.limiter.paused_s) > 0:
            await _wait_for_event(lane.shut, wait_s)
        if lane.closed is not None:
            lane.limiter.end(ticket, n_used=0, is_refused=False, is_success=False)
            lane.queue.append(claim)  # which is given back with those that wait there
            lane.is_stopped = False
            self._wake.set()
            return
        item = self.work.items[claim.item_no]
        started_at, began = utc_now(), perf_counter()
        reply = fault(
            "cancelled", "The run was ended during this call; whether it is billed is not known."
        )
        try:
            with self._record_bug(item):
                reply = await lane.backend.call(
                    request,
                    None if self._on_text is None else partial(self._on_text, claim.item_no),
                )
        finally:
            latency_ms = (perf_counter() - began) * 1000
            # Whatever goes wrong from here on: the call was made, so it is booked.
            attempt = build_unread_attempt(item, reply, started_at, latency_ms)
            try:
                with self._record_bug(item):
                    self._update_limiter(lane, ticket, reply)
                    reply = self._apply_pauses(lane, claim, reply)
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
                self._attempts.append(attempt)
                lane.changed.set()
                self._wake.set()

    @contextmanager
    def _record_bug(self, item: WorkItem) -> Iterator[None]:
        """What goes wrong in a call ends the run: the ledger's loop raises it once the call is
        booked, where a task would lose it.
        """
        try:
            yield
        except Exception as bug:  # noqa: BLE001  raised there
            bug.add_note(
                f"While item {item.item_no} was asked of {item.provider} ({item.model}); the call "
                "is noted, what came before is kept."
            )
            self._broken = self._broken or bug

    def _update_limiter(self, lane: _Lane, ticket: Ticket, reply: Reply) -> None:
        n_used = reply.n_prompt_tokens + reply.n_tokens if reply.billing == "metered" else None
        is_full = reply.kind in ("rate_limited", "overloaded")
        lane.limiter.end(
            ticket, n_used=n_used, is_refused=is_full, is_success=reply.outcome == "succeeded"
        )

    def _apply_pauses(self, lane: _Lane, claim: Claim, reply: Reply) -> Reply:
        """Leave a provider alone that asks for it, and close one that will refuse everything."""
        params = self.work.params
        wait_s = None if reply.closes or reply.wait_s is None else min(reply.wait_s, LONGEST_WAIT_S)
        # What is left of a rate is told of one model; to be left alone is asked for by all of the
        # provider.
        asking = (
            [lane]
            if reply.outcome == "succeeded"
            else [each for each in self._lanes.values() if each.key[0] == lane.key[0]]
        )
        if wait_s is not None and wait_s > params.max_pause_s and reply.outcome == "retryable":
            reply = fault(
                "long_wait",
                f"{lane.key[0]} asks to be left alone for {wait_s:,.0f} s; a run waits "
                f"{params.max_pause_s:,.0f} s at most (max_pause_s).",
                status=reply.status,
                wait_s=wait_s,
            )
            for each in asking:
                each.pause(reply, utc_now() + timedelta(seconds=wait_s))
        elif wait_s is not None:
            for each in asking:
                each.limiter.pause(min(wait_s, params.max_pause_s))
        if reply.closes:
            lane.close(reply)
        elif (
            reply.kind in NO_ANSWER
            and not lane.backend.has_answered
            and is_last_attempt(claim, reply, self.work.params)
        ):
            lane.close(
                fault(
                    "unavailable",
                    f"{reply.error}; no answer in {claim.n_attempts + 1} attempts. Start the "
                    "server or mend the setting base_url (RLHF_BASE_URL), which usually ends in "
                    "/v1.",
                )
            )
        return reply


async def _wait_for_event(event: asyncio.Event, wait_s: float | None) -> None:
    """Until something happens or the time is over."""
    # Not wait_for: Python 3.11's swallows a cancellation that comes while the event does, and the
    # task goes on for ever.
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await event.wait()


@contextmanager
def renew_claims(work: CompletionWork) -> Iterator[None]:
    """Claims do not end while something long is done with them, in this thread or its event
    loop.
    """
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(work.ledger.renew_s):
            with suppress(StoreError):  # the next time is soon enough
                work.ledger.settle_and_claim(
                    work.run_id, work.owner, [], {}, NOTHING, is_dead=is_dead
                )

    thread = threading.Thread(target=renew, name="leases", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def persist_with_retry(work: CompletionWork, do: Callable[..., T], *args: Any, **more: Any) -> T:
    """What a ledger does, in this thread, tried again where the store refuses it for a moment: then
    nothing of it was kept.
    """
    for wait_s in work.ledger.write_again_s:
        try:
            return do(*args, **more)
        except StoreError:
            sleep(wait_s)
    return do(*args, **more)


def complete_in_batches(
    work: CompletionWork,
    backend: DirectBackend,
    lane: Lane,
    batch_size: int,
    on_text: OnItem | None = None,
) -> None:
    """Everything of `work` that a backend on this machine makes. Raises what the backend raises,
    after noting what was made by then.
    """
    attempts: list[Attempt] = []
    with renew_claims(work):
        while True:
            turn = persist_with_retry(
                work,
                work.ledger.settle_and_claim,
                work.run_id,
                work.owner,
                attempts,
                {lane: batch_size},
                NOTHING,
                is_dead=is_dead,
            )
            work.settle_all(attempts, turn)
            if attempts or turn.from_cache:
                work.on_settled()
            claims, attempts = turn.claimed[lane], []
            if not claims:
                if not turn.n_open and not turn.n_leased:
                    return
                threading.Event().wait(LOOK_S)  # somebody else has the rest under way
                continue
            try:
                _complete_batch(work, backend, lane, claims, attempts, on_text)
            except BaseException:
                with suppress(StoreError):
                    persist_with_retry(
                        work,
                        work.ledger.settle_and_claim,
                        work.run_id,
                        work.owner,
                        attempts,
                        {},
                        NOTHING,
                        is_dead=is_dead,
                    )
                    # only once that is kept: else it would be made again
                    work.ledger.release(work.run_id, work.owner)
                raise


def _complete_batch(
    work: CompletionWork,
    backend: DirectBackend,
    lane: Lane,
    claims: Sequence[Claim],
    attempts: list[Attempt],
    on_text: OnItem | None,
) -> None:
    """Puts an attempt for each claim into `attempts` as it comes."""
    requests = [work.requests[claim.item_no] for claim in claims]
    started_at = utc_now()
    results = (
        backend.complete(requests)
        if on_text is None
        else complete_with_callback(backend, requests, [claim.item_no for claim in claims], on_text)
    )
    for claim, result in zip(claims, results, strict=False):
        attempts.append(build_local_attempt(work.items[claim.item_no], result, started_at))
    if len(attempts) < len(claims) or next(results, None) is not None:
        raise CompletionError(
            f"Backend {backend.name} did not give one result for each of {len(claims)} requests. "
            "Mend its complete()."
        )


def run_hosted(
    work: CompletionWork,
    backends: Mapping[Lane, HostedBackend],
    *,
    rng: random.Random | None = None,
    on_text: OnItem | None = None,
) -> dict[Lane, Reply]:
    """All of it, in an event loop of its own; the lanes that were closed."""

    async def run() -> dict[Lane, Reply]:
        hosted = HostedWork(work, backends, rng=rng, on_text=on_text)
        await hosted.run()
        return hosted.closed_lanes

    return run_in_event_loop(run)


def run_in_event_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine; where this thread runs a loop already, as in a notebook, in
    another thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # not uvloop, which keeps what a signal handler raises to itself: Dagster ends runs so
        return asyncio.run(_run_until_interrupt(make))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: run_in_event_loop(make)).result()


async def shielded(work: Coroutine[Any, Any, None]) -> None:
    """However often who waits for it is told to stop meanwhile: what ended them before is on its
    way, and what is booked here is not cut off.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    task.result()


async def _run_until_interrupt(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What it comes to; or what was raised to end it while the loop did something else, which
    asyncio would log and go on.
    """
    main, ended = asyncio.current_task(), list[BaseException]()
    assert main is not None

    def handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        bug = context.get("exception")
        # Once: what is booked at the end is not to be cut off by another.
        if (
            bug is None
            or isinstance(bug, Exception | asyncio.CancelledError)
            or ended
            or main.done()
        ):
            loop.default_exception_handler(context)
            return
        ended.append(bug)
        main.cancel()

    asyncio.get_running_loop().set_exception_handler(handle_loop_exception)
    try:
        made = await make()
    except (asyncio.CancelledError, Exception):
        if ended:
            raise ended[0] from None
        raise
    if ended:
        raise ended[0]
    return made

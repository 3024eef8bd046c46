"""Work of a ledger done by a provider's batches: submitted, waited for, noted. Knows ledgers and
batches; knows no HTTP.

Nobody holds a claim while a batch is waited for: whoever goes on, this process or the next, claims
what is open, finds the batches that were submitted for this run and asks for nothing that stands in
one of them. A claim is no call here: whoever is killed while holding some has made, and may be
billed for, nothing that is not found again.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count, islice
from time import monotonic
from typing import TypeVar

from rlhf_pipeline.completions.attempts import build_attempt
from rlhf_pipeline.completions.base import CompletionRequest, Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.openai_batches import MOST_REQUESTS, OpenAIBatch, OpenAIBatches
from rlhf_pipeline.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.completions.owners import is_dead
from rlhf_pipeline.completions.workers import (
    LONGEST_SLEEP_S,
    NOTHING,
    CompletionWork,
    persist_with_retry,
    renew_claims,
)
from rlhf_pipeline.protocols import NO_CALLS_SUFFIX, Attempt, Budget, Claim, Lane
from rlhf_pipeline.records import utc_now

T = TypeVar("T")
# by its name in batches: an attempt that failed is asked for under another than the one before it
ClaimsByName = dict[str, Claim]
AT_ONCE = 500  # claimed or noted in one transaction: votes wait for the same lock
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaneBatches:
    """What there is of a lane: batches, the names in those that are not over, and names in those
    that are over which others have to note. `most` is how many requests another batch may hold."""

    batch_ids: set[str]
    under_way: set[str]
    unread: set[str]
    most: int


class BatchWork:
    """Everything of `work` in one lane. `closed` says why the provider was given up, where it
    was.
    """

    def __init__(
        self,
        work: CompletionWork,
        lane: Lane,
        backend: OpenAICompatibleBackend,
        rng: random.Random | None = None,
    ) -> None:
        if not work.owner.endswith(NO_CALLS_SUFFIX):
            work.owner += NO_CALLS_SUFFIX
        self.work = work
        self.closed: Reply | None = None
        self._lane = lane
        self._mine = work.items_of_lane(lane)
        self._backend = backend
        self._rng = rng or random.Random()
        self._read: set[str] = set()  # batches whose replies are noted
        self._names: dict[str, set[str]] = {}  # what is asked for in those under way
        # batches of this process, which it follows by their ids where the list does not show them
        self._made: list[str] = []
        self._untraceable_reason: str | None = None  # why no other process would find those again
        self._park_s: float | None = None  # until when the lane is left alone, where it is

    async def run(self) -> None:
        """Until nothing is left, the provider is given up, or more than `max_pause_s` would have to
        be waited: then it is parked.
        """
        began = monotonic()
        params = self.work.params
        try:
            batches = self._backend.batches()
            while self._remaining_items() and self.closed is None:
                try:
                    with renew_claims(self.work):
                        is_waiting, is_done = await self._read_and_submit(batches)
                finally:
                    self.work.ledger.release(self.work.run_id, self.work.owner)
                    self.work.on_settled()
                if is_done:
                    return
                if self.closed is None and is_waiting:
                    if monotonic() - began + params.batch_poll_s > params.max_pause_s:
                        self._pause_until_next_poll(
                            f"{self._lane[0]} works on a batch, which may take a day."
                        )
                    else:
                        await asyncio.sleep(params.batch_poll_s)
            if self.closed is not None:
                self._give_up(self.closed)
        finally:
            await self._backend.close()

    def _remaining_items(self) -> set[int]:
        return self.work.left & self._mine

    def _pause_lane(self, wait_s: float, why: str) -> None:
        self.closed, self._park_s = fault("long_wait", why), wait_s

    def _pause_until_next_poll(self, why: str) -> None:
        self._pause_lane(max(self.work.params.max_pause_s, self.work.params.batch_poll_s), why)

    def _give_up(self, why: Reply) -> None:
        """Leave what is open for another time, or fail it; and say so of what stands in batches
        that nobody would find again.
        """
        if self._untraceable_reason is not None:
            if self._park_s is not None:  # whoever went on would ask for all of it once more
                self.closed = why = fault("unavailable", self._untraceable_reason)
            names = set[str]().union(
                *(self._names[batch_id] for batch_id in self._made if batch_id not in self._read)
            )
            claims, _ = self._claim(NOTHING)
            lost = fault(
                "cancelled", f"Whether it is billed is not known: {self._untraceable_reason}"
            )
            self._record_replies({claim: lost for name, claim in claims.items() if name in names})
            self.work.ledger.release(self.work.run_id, self.work.owner)
            self.work.fail_open(self._lane, "unavailable", f"Given up: {why.error}")
        elif self._park_s is not None:
            self.work.pause_lane(self._lane, utc_now() + timedelta(seconds=self._park_s))
        else:
            self.work.fail_open(self._lane, "unavailable", f"Not called: {why.error}")

    async def _read_and_submit(self, batches: OpenAIBatches) -> tuple[bool, bool]:
        """Note what has come and submit what stands in no batch; whether any batch is under way,
        and whether nothing is left to do.
        """
        n_tries = 0
        while True:
            # Listed before each try: a reply that was lost on the way says nothing of whether a
            # batch was made.
            seen = await self._record_finished(batches)
            if seen is None:
                return False, False
            left, n_others = self._claim_affordable(seen)
            if self.closed is not None:
                return False, False
            if not left:
                if not seen.under_way and (n_others or seen.unread):
                    self.work.ledger.release(self.work.run_id, self.work.owner)
                    await asyncio.sleep(min(self.work.params.batch_poll_s, LONGEST_SLEEP_S))
                return bool(seen.under_way), not (seen.under_way or seen.unread or n_others)
            if not seen.most or (self._untraceable_reason is not None and seen.under_way):
                return True, False
            if self._untraceable_reason is not None:
                self.closed = fault("unavailable", self._untraceable_reason)
                return False, False
            # Again, now that these are claimed: who had them before may have submitted some since
            # the list was read.
            listed = await self._list_batches(batches)
            if listed is None:
                return False, False
            if any(batch.batch_id not in seen.batch_ids for batch in listed):
                self.work.ledger.release(self.work.run_id, self.work.owner)
                continue
            named = {
                name: self.work.requests[claim.item_no]
                for name, claim in islice(left.items(), seen.most)
            }
            try:
                self._register_batch(await batches.submit(named, self.work.run_id), named)
                return True, False
            except self._backend.error_types() as cause:
                reply = await self._backend.classify_error(cause)
            n_tries += 1
            if reply.outcome == "terminal" or n_tries >= self.work.params.max_attempts:
                self.closed = reply
                return False, False
            self.work.ledger.release(self.work.run_id, self.work.owner)
            if not await self._wait_before_retry(reply, n_tries):
                return False, False

    def _register_batch(self, batch: OpenAIBatch, named: Mapping[str, CompletionRequest]) -> None:
        self._made.append(batch.batch_id)
        self._names[batch.batch_id] = set(named)
        if not batch.is_marked:
            self._mark_untraceable(batch)

    def _mark_untraceable(self, batch: OpenAIBatch) -> None:
        if self._untraceable_reason is None:
            self._untraceable_reason = (
                f"{self._lane[0]} does not keep the metadata of a batch, the only thing by which "
                f"another process finds it again. What {batch.batch_id} makes beyond this run is "
                "lost, and paid again when it is asked for again. Set batch to false."
            )
            logger.warning(
                "%s", self._untraceable_reason
            )  # at once: who is killed now cannot say it later

    async def _list_batches(self, batches: OpenAIBatches) -> list[OpenAIBatch] | None:
        """This run's, the newest first; None where that cannot be learnt."""
        known = await self._call_with_retry(
            partial(batches.list_for_run, self.work.run_id, self._made)
        )
        if known is None:
            return None
        shown = {batch.batch_id for batch in known}
        for batch_id in self._made:
            if batch_id in shown or batch_id in self._read:
                continue
            batch = await self._call_with_retry(
                partial(batches.retrieve, batch_id, self.work.run_id)
            )
            if batch is None:
                if self._park_s is None:
                    cause = self.closed.error if self.closed is not None else ""
                    self._untraceable_reason = (
                        f"{self._lane[0]} shows the batch {batch_id} that it made neither in its "
                        f"list nor by its id ({cause}). What it makes is lost, and paid again when "
                        "it is asked for again. Set batch to false."
                    )
                    self.closed = fault("unavailable", self._untraceable_reason)
                return None
            known.insert(0, batch)
        for batch in known:
            if batch.batch_id in self._made and not batch.is_marked:
                self._mark_untraceable(batch)
        return sorted(known, key=lambda batch: -(batch.created_at or 0))

    async def _record_finished(self, batches: OpenAIBatches) -> LaneBatches | None:
        """Note what came of batches that are over, and say what there is beside that; None where
        nothing can be learnt.
        """
        known = await self._list_batches(batches)
        if known is None:
            return None
        unread: set[str] = set()
        over = [batch for batch in known if batch.is_over and batch.batch_id not in self._read]
        if over:
            # Whatever the budget says: what is read here is paid for.
            claims, _ = self._claim(NOTHING)
            others = self._remaining_items() - {claim.item_no for claim in claims.values()}
            if others:
                others &= self._load_unsettled()
            for batch in over:
                names = await self._fetch_names(batches, batch)
                if names is None:
                    return None
                # Of one that was noted before, the provider may have deleted the files. Whom one
                # concerns whose own is gone, what came of it says.
                if not names or not names.isdisjoint(claims):
                    replies = await self._fetch_replies(batches, batch, claims)
                    if replies is None:
                        return None
                    self._record_replies(
                        {
                            claims.pop(name): reply
                            for name, reply in replies.items()
                            if name in claims
                        }
                    )
                    names = names or {
                        name for name in replies if name.partition("-")[0].isdecimal()
                    }
                # Which may come back open, if who holds them is killed: then what stands in this
                # one is all there is of them.
                if theirs := {name for name in names if _item_no(name) in others}:
                    unread |= theirs
                    continue
                self._read.add(batch.batch_id)
            self.work.ledger.release(self.work.run_id, self.work.owner)
        under_way: set[str] = set()
        for batch in known:
            if not batch.is_over:
                names = await self._fetch_names(batches, batch)
                if names is None:
                    return None
                if not names:
                    self._pause_until_next_poll(
                        f"The file that says what {batch.batch_id} asks for is gone: what it makes "
                        "is read once it is over."
                    )
                    return None
                under_way |= names
        left = self._remaining_items()
        under_way = {name for name in under_way if _item_no(name) in left}
        most = await self._next_batch_size(batches, known, is_alone=not under_way)
        return (
            None
            if most is None
            else LaneBatches({batch.batch_id for batch in known}, under_way, unread, most)
        )

    def _load_unsettled(self) -> set[int]:
        """What is left by the ledger: other processes settle some too."""
        unsettled: set[int] = set()
        for one in self.work.ledger.item_states(self.work.run_id):
            if one.state in ("open", "leased"):
                unsettled.add(one.item_no)
            else:
                self.work.settle(one.item_no, failed=one.state == "failed")
        return unsettled

    async def _next_batch_size(
        self, batches: OpenAIBatches, known: Sequence[OpenAIBatch], *, is_alone: bool
    ) -> int | None:
        """How many requests the next batch may hold. Once the provider's queue had no room for one,
        they go one after the other: half as many as the last, where that found no room either, else
        twice as many. Read off the list, so that whoever goes on does not begin anew."""
        if not any(batch.is_crowded for batch in known):
            return MOST_REQUESTS
        if not is_alone:
            return 0
        for batch in known:
            names = await self._fetch_names(batches, batch)
            if names is None:
                return None
            if names and self._is_mine(next(iter(names))):
                return (
                    max(1, len(names) // 2)
                    if batch.is_crowded
                    else min(MOST_REQUESTS, 2 * len(names))
                )
        return MOST_REQUESTS

    def _is_mine(self, name: str) -> bool:
        item = self.work.items[_item_no(name)]
        return (item.provider, item.model) == self._lane

    async def _fetch_replies(
        self, batches: OpenAIBatches, batch: OpenAIBatch, claims: Mapping[str, Claim]
    ) -> Mapping[str, Reply] | None:
        """What came of a batch; one that was refused as a whole is the failure of each that stood
        in it, and of nobody else.
        """
        names = await self._fetch_names(batches, batch)
        if names is None:
            return None
        asked, looks = names, count(1)

        async def read() -> dict[str, Reply]:
            return await batches.fetch_replies(
                batch, asked, is_last=next(looks) >= self.work.params.max_attempts
            )

        replies = await self._read_with_retry(batch, read)
        if replies is None or batch.error is None:
            return replies
        names = names - replies.keys()
        if batch.is_crowded and len(names) > 1:
            return replies  # fewer may find room
        refused = fault("bad_request", f"{self._lane[0]} refused a batch as a whole: {batch.error}")
        if any(name in claims for name in names):
            self.closed = self.closed or replace(refused, closes=True)
        return dict.fromkeys(names, refused) | replies

    async def _fetch_names(self, batches: OpenAIBatches, batch: OpenAIBatch) -> set[str] | None:
        if batch.batch_id not in self._names:
            names = await self._read_with_retry(batch, partial(batches.fetch_names, batch))
            if names is None:
                return None
            self._names[batch.batch_id] = names
        return self._names[batch.batch_id]

    def _claim_affordable(self, seen: LaneBatches) -> tuple[ClaimsByName, int]:
        """What stands in no batch and the budget bears beside those, and how many items others hold
        or wait for.
        """
        asked = seen.under_way | seen.unread
        claims, n_others = self._claim(self.work.params.budget, asked)
        return {name: claim for name, claim in claims.items() if name not in asked}, n_others

    def _claim(self, budget: Budget, asked: set[str] | None = None) -> tuple[ClaimsByName, int]:
        """All that may be claimed, a few at a time, and how many others hold. What is `asked` for
        already is given up for no budget.
        """
        claims: ClaimsByName = {}
        work, most = self.work, min(len(self._remaining_items()), MOST_REQUESTS)
        while True:
            n = min(AT_ONCE, most - len(claims))
            turn = work.ledger.settle_and_claim(
                work.run_id, work.owner, [], {self._lane: n}, budget, is_dead=is_dead
            )
            work.settle_all([], turn)
            claims |= {
                f"{claim.item_no}-{claim.n_attempts}": claim for claim in turn.claimed[self._lane]
            }
            if not turn.claimed[self._lane] or len(claims) >= most:
                break
        if turn.over_budget:
            work.fail_over_budget(
                turn.over_budget,
                sorted(self._remaining_items() - {_item_no(name) for name in asked or ()}),
            )
        return claims, (turn.n_leased or 0) + (turn.n_open or 0)

    def _record_replies(self, replies: Mapping[Claim, Reply]) -> None:
        attempts: list[Attempt] = []
        for claim, reply in replies.items():
            item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
            attempt = build_attempt(
                item, claim, request, reply, self.work.params, utc_now(), 0.0, self._rng
            )
            attempts.append(replace(attempt, not_before=None))
            if reply.closes:
                self.closed = self.closed or reply
        for first in range(0, len(attempts), AT_ONCE):
            self._settle(attempts[first : first + AT_ONCE])

    def _settle(self, attempts: Sequence[Attempt]) -> None:
        ledger = self.work.ledger
        self.work.settle_all(
            attempts,
            persist_with_retry(
                self.work,
                ledger.settle_and_claim,
                self.work.run_id,
                self.work.owner,
                attempts,
                {},
                NOTHING,
                is_dead=is_dead,
            ),
        )

    async def _call_with_retry(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What it gives, tried again where that may help; None and `closed` where it does not."""
        for n_tries in range(1, self.work.params.max_attempts + 1):
            try:
                return await ask()
            except self._backend.error_types() as cause:
                reply = await self._backend.classify_error(cause)
            if reply.outcome == "terminal":
                break
            if not await self._wait_before_retry(reply, n_tries):
                return None
        self.closed = reply
        return None

    async def _read_with_retry(
        self, batch: OpenAIBatch, read: Callable[[], Awaitable[T]]
    ) -> T | None:
        """Of a batch that was submitted, and may be paid for: what cannot be read of it yet is left
        for later, not asked for anew.
        """
        found = await self._call_with_retry(read)
        why = self.closed
        if (
            found is None
            and why is not None
            and why.kind != "long_wait"
            and why.outcome == "retryable"
            and not batch.is_old
        ):
            self._pause_until_next_poll(
                f"{batch.batch_id} cannot be read yet: {why.error}. It is read later, and nothing "
                "in it asked for anew."
            )
        return found

    async def _wait_before_retry(self, reply: Reply, n_tries: int) -> bool:
        """Before the next try, unless the provider asks for more than a run waits: then the lane is
        parked.
        """
        params = self.work.params
        if reply.wait_s is not None and reply.wait_s > params.max_pause_s:
            why = (
                f"{self._lane[0]} asks to be left alone for {reply.wait_s:,.0f} s; a run waits "
                f"{params.max_pause_s:,.0f} s at most (max_pause_s)."
            )
            self._pause_lane(reply.wait_s, why)
            return False
        await asyncio.sleep(
            reply.wait_s if reply.wait_s is not None else params.backoff(n_tries, self._rng)
        )
        return True


def _item_no(name: str) -> int:
    return int(name.partition("-")[0])

"""Turns claims into batches of a provider: submitted, waited for and read.

The ledger has a row for each batch before it is submitted, and the provider receives our id of it
as metadata. So a batch whose submission was interrupted is found by one look-up, or its items are
lost: possibly billed, and requested again only with `retry_lost`.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, TypeVar

from rlhf_pipeline.completions.attempts import build_attempt
from rlhf_pipeline.completions.base import BatchBackend, Reply
from rlhf_pipeline.completions.drive import AT_ONCE, CompletionWork, persist_with_retry
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.hosted_lane import NetworkLane, long_wait, wait_for_event
from rlhf_pipeline.completions.openai_batches import (
    MOST_REQUESTS,
    OpenAIBatch,
    OpenAIBatches,
    is_old,
)
from rlhf_pipeline.processes import is_dead
from rlhf_pipeline.protocols import BATCH_PREFIX, NO_CALLS_SUFFIX, Claim, Lane, LedgerBatch
from rlhf_pipeline.records import utc_now

T = TypeVar("T")
# After these nothing was submitted; after any other fault the batch may exist.
NOT_SUBMITTED = ("rate_limited", "overloaded", "unreachable")


@dataclass(slots=True)
class _Followed:
    """A batch that may exist at the provider, and its claims by their names there."""

    submission_id: str
    submitted_at: float
    claims: Mapping[str, Claim]
    batch_id: str | None  # the provider's id; None until it is known


class BatchLane(NetworkLane):
    """The batches of one provider and model. A closed lane leaves what its batches hold for a later
    run.
    """

    waits_when_closed = False

    def __init__(
        self, work: CompletionWork, key: Lane, backend: BatchBackend, rng: random.Random
    ) -> None:
        super().__init__(work, key, backend, rng)
        if not work.owner.endswith(NO_CALLS_SUFFIX):
            work.owner += NO_CALLS_SUFFIX
        self._backend = backend
        self._followed: dict[str, _Followed] = {}  # by submission id
        self._most = 0  # requests that the next batch may hold; 0 until the batches are known
        self._is_ready = False  # waiting claims are submitted now
        self._is_submitting = False
        self._n_tries = 0  # submissions that failed in a row

    @property
    def n_wanted(self) -> int:
        if self.closed is not None or self._is_ready or self._is_submitting:
            return 0
        return max(0, min(AT_ONCE, self._most - len(self._waiting)))

    @property
    def is_busy(self) -> bool:
        """Claims that are in a batch belong to the batch."""
        return bool(self._waiting or self._attempts or self._is_submitting)

    def add(self, claims: Sequence[Claim], *, is_all: bool) -> None:
        super().add(claims, is_all=is_all)
        if self._most and self._waiting and (is_all or len(self._waiting) >= self._most):
            self._is_ready = True

    async def _run(self) -> None:
        """Poll the batches, submit waiting claims, and park when waiting takes too long."""
        params = self.work.params
        began = monotonic()
        due = 0.0
        batches = self._backend.batches()
        while self.closed is None:
            self._changed.clear()
            if monotonic() >= due:
                await self._look(batches)
                due = monotonic() + params.batch_poll_s
            if self._is_ready and self._most and self.closed is None:
                await self._submit(batches)
            self._wake.set()
            is_too_long = monotonic() - began + params.batch_poll_s > params.max_pause_s
            if self.closed is None and self._followed and is_too_long:
                self._park_until_next_poll(f"{self.key[0]} works on a batch, which may take a day.")
            await wait_for_event(self._changed, max(0.0, due - monotonic()))

    async def _look(self, batches: OpenAIBatches) -> None:
        """Follow batches that no other process follows, and report finished ones."""
        ledger, work = self.work.ledger, self.work
        for known in self._persist(
            ledger.take_batches, work.run_id, work.owner, self.key, is_dead=is_dead
        ):
            self._follow(known)
        for each in list(self._followed.values()):
            if self.closed is None:
                await self._read(batches, each)
        self._most = self._next_size()

    def _follow(self, batch: LedgerBatch) -> _Followed:
        claims = {str(claim.item_no): claim for claim in batch.claims}
        each = _Followed(
            batch.submission_id, batch.submitted_at.timestamp(), claims, batch.batch_id
        )
        self._followed[batch.submission_id] = each
        return each

    def _next_size(self) -> int:
        """Size of the next batch. After the provider's queue had no room, batches go one at a
        time: half the size if that found no room either, else twice the size.
        """
        sizes = self.work.ledger.batch_sizes(self.work.run_id, self.key)
        if not any(is_crowded for _, is_crowded in sizes):
            return MOST_REQUESTS
        if self._followed:
            return 0
        n, is_crowded = sizes[0]
        return max(1, n // 2) if is_crowded else min(MOST_REQUESTS, 2 * n)

    # --- reading
    # ----------------------------------------------------------------------------------------------

    async def _read(self, batches: OpenAIBatches, each: _Followed) -> None:
        """Report a finished batch."""
        if each.batch_id is None and not await self._find(batches, each):
            if self.closed is None:
                self._report_lost(each, "does not list it: its submission was interrupted")
            return
        batch = await self._ask(partial(batches.retrieve, str(each.batch_id), each.submitted_at))
        if batch is None:
            if self.closed is None and is_old(each.submitted_at):
                self._report_lost(each, "does not know it any more")
            elif self.closed is None:
                self.close(
                    fault(
                        "unavailable",
                        f"{self.key[0]} does not know the batch {each.batch_id}. Set RLHF_API_KEY "
                        f"and RLHF_BASE_URL to the values at its submission.",
                    )
                )
            return
        if not batch.is_over:
            return
        looks = count(1)

        async def fetch() -> dict[str, Reply]:
            is_last = next(looks) >= self.work.params.max_attempts
            return await batches.fetch_replies(batch, each.claims.keys(), is_last=is_last)

        replies = await self._ask(fetch, batch)
        if replies is not None:
            self._report_batch(each, batch, replies)

    async def _find(self, batches: OpenAIBatches, each: _Followed) -> bool:
        """Whether the provider lists a batch whose submission was interrupted."""
        batch = await self._ask(partial(batches.find, each.submission_id, each.submitted_at))
        if batch is None:
            return False
        self._name(each, batch)
        return True

    def _name(self, each: _Followed, batch: OpenAIBatch) -> None:
        self._persist(self.work.ledger.name_batch, each.submission_id, batch.batch_id)
        each.batch_id = batch.batch_id

    def _report_batch(
        self, each: _Followed, batch: OpenAIBatch, replies: Mapping[str, Reply]
    ) -> None:
        """Report the results of a batch. If it was refused as a whole, each of its requests
        fails.
        """
        rest = each.claims.keys() - replies.keys()
        refused = None
        if batch.is_crowded:
            self._persist(self.work.ledger.mark_crowded, each.submission_id)
        if batch.error is not None and rest and not (batch.is_crowded and len(rest) > 1):
            refused = fault(
                "bad_request", f"{self.key[0]} refused a batch as a whole: {batch.error}"
            )
            replies = {**dict.fromkeys(rest, refused), **replies}
        self._report_replies(each, replies)
        if refused is not None:
            self.close(replace(refused, closes=True))
        elif rest:  # a smaller batch may find room
            self._persist(self.work.ledger.return_batch, each.submission_id)

    def _report_lost(self, each: _Followed, why: str) -> None:
        lost = fault(
            "lost",
            f"{self.key[0]} {why} (batch {each.submission_id}). It may be billed. Request its "
            f"items again with --retry-lost.",
        )
        self._report_replies(each, dict.fromkeys(each.claims, lost))

    def _report_replies(self, each: _Followed, replies: Mapping[str, Reply]) -> None:
        del self._followed[each.submission_id]
        closing = [reply for reply in replies.values() if reply.closes]
        for name, reply in replies.items():
            if (claim := each.claims.get(name)) is None:
                continue
            item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
            attempt = build_attempt(
                item, claim, request, reply, self.work.params, utc_now(), 0.0, self._rng
            )
            self._report(replace(attempt, not_before=None, submission_id=each.submission_id))
        if closing:
            self.close(closing[0])

    # --- submitting
    # ----------------------------------------------------------------------------------------------

    async def _submit(self, batches: OpenAIBatches) -> None:
        self._is_submitting, self._is_ready = True, False
        try:
            claims = self._take_waiting(self._most)
            if claims:
                await self._submit_batch(batches, claims)
            self._most = self._next_size()
        finally:
            self._is_submitting = False

    async def _submit_batch(self, batches: OpenAIBatches, claims: Sequence[Claim]) -> None:
        work, ledger = self.work, self.work.ledger
        submission_id = f"{BATCH_PREFIX}{uuid.uuid4()}"
        items = [claim.item_no for claim in claims]
        held = set(
            self._persist(
                ledger.prepare_batch, work.run_id, work.owner, self.key, submission_id, items
            )
        )
        claims = [claim for claim in claims if claim.item_no in held]
        named = {str(claim.item_no): work.requests[claim.item_no] for claim in claims}
        file_id = await self._ask(partial(batches.upload, named))
        if file_id is None:
            self._persist(ledger.return_batch, submission_id)
            return
        submitted_at = self._persist(ledger.begin_batch, submission_id)
        each = self._follow(LedgerBatch(submission_id, None, submitted_at, claims))
        try:
            batch = await batches.create(file_id, submission_id, each.submitted_at)
        except self._backend.error_types() as cause:
            await self._recover(batches, each, await self._backend.classify_error(cause))
            return
        self._n_tries = 0
        self._name(each, batch)

    async def _recover(self, batches: OpenAIBatches, each: _Followed, reply: Reply) -> None:
        """Recover after a failed submission: the provider may have created the batch."""
        self._n_tries += 1
        if reply.outcome != "terminal" and reply.kind not in NOT_SUBMITTED:
            if not await self._wait_before_retry(reply, self._n_tries):
                return
            if await self._find(batches, each) or self.closed is not None:
                return
            if reply.billing != "none":
                self._report_lost(
                    each, f"does not list it, and its submission failed: {reply.error}"
                )
                return
        del self._followed[each.submission_id]
        self._persist(self.work.ledger.return_batch, each.submission_id)
        if reply.outcome == "terminal" or self._n_tries >= self.work.params.max_attempts:
            self.close(reply)
        elif reply.kind in NOT_SUBMITTED:
            await self._wait_before_retry(reply, self._n_tries)

    # --- asking
    # ----------------------------------------------------------------------------------------------

    async def _ask(
        self, call: Callable[[], Awaitable[T]], batch: OpenAIBatch | None = None
    ) -> T | None:
        """The result, after retries. None if the lane was closed or parked instead: a later run
        reads the rest of a `batch` that may be billed.
        """
        for n_tries in range(1, self.work.params.max_attempts + 1):
            try:
                return await call()
            except self._backend.error_types() as cause:
                reply = await self._backend.classify_error(cause)
            if reply.outcome == "terminal":
                break
            if not await self._wait_before_retry(reply, n_tries):
                return None
        if batch is not None and reply.outcome == "retryable" and not batch.is_old:
            self._park_until_next_poll(
                f"{batch.batch_id} cannot be read yet: {reply.error}. It is read later, and none "
                f"of its requests is repeated."
            )
        else:
            self.close(reply)
        return None

    async def _wait_before_retry(self, reply: Reply, n_tries: int) -> bool:
        """Wait before the next try; park the lane if the provider asks for too long a wait."""
        params = self.work.params
        if reply.wait_s is not None and reply.wait_s > params.max_pause_s:
            self.park(long_wait(self.key, reply.wait_s, params.max_pause_s), reply.wait_s)
            return False
        backoff_s = params.backoff(n_tries, self._rng)
        await asyncio.sleep(backoff_s if reply.wait_s is None else reply.wait_s)
        return True

    def _park_until_next_poll(self, why: str) -> None:
        params = self.work.params
        self.park(fault("long_wait", why), max(params.max_pause_s, params.batch_poll_s))

    def _persist(self, do: Callable[..., T], *args: Any, **more: Any) -> T:
        return persist_with_retry(self.work.ledger, do, *args, **more)

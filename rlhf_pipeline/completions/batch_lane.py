"""Completes items by OpenAI's Batch API: many requests in a file, answered within a day.

The ledger has a row for each batch before it is submitted, and the provider receives our id of it
as metadata. So a batch whose submission was interrupted is found in the provider's list, or its
items are lost: possibly billed, and requested again only with `retry_lost`.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic, time
from typing import TYPE_CHECKING

from rlhf_pipeline.completions.attempts import build_attempt
from rlhf_pipeline.completions.base import Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.openai_compatible import BATCH_ENDPOINT, OpenAICompatibleBackend
from rlhf_pipeline.completions.work import AT_ONCE, ProviderLane
from rlhf_pipeline.protocols import BATCH_PREFIX, NO_CALLS_SUFFIX, Claim, LedgerBatch
from rlhf_pipeline.records import utc_now

if TYPE_CHECKING:
    from openai.types import Batch

SUBMISSION = "rlhf_submission"  # key of our own id in a batch's metadata
OVER = ("completed", "failed", "expired", "cancelled")
REFUSED = ("rate_limited", "overloaded", "unreachable")  # no batch was made
DAY_S = 86_400.0  # how long the lines of a batch that is over may be late
GONE_AFTER = timedelta(days=2)  # of its submission: a batch that is not found is lost
UNLISTED_AFTER = timedelta(minutes=10)  # longer than a call that submits one may take


class BatchLane(ProviderLane):
    """Submits what is claimed as a batch, and polls all batches of the lane. A closed lane leaves
    what its batches hold to a later run.
    """

    _backend: OpenAICompatibleBackend

    async def complete(self) -> None:
        params, began, n_failed = self.work.params, monotonic(), 0
        self.owner += NO_CALLS_SUFFIX
        while not self.work.is_stopping and self.closed is None:
            turn = await self.turn(AT_ONCE)
            claims, wait_s = turn.claimed[self.key], params.batch_poll_s
            if not (claims or self.attempts) and turn.n_open == turn.n_leased == 0:
                return
            try:
                await self._poll()
                if claims and self.closed is None:
                    await self._submit(claims)
                n_failed = 0
            except self._backend.error_types() as cause:
                await self.release()
                claims, n_failed = [], n_failed + 1
                reply = self._backend.classify_error(cause)
                wait_s = max(reply.wait_s or 0.0, params.backoff(n_failed))
                if reply.outcome == "terminal":
                    self.closed = self.closed or reply
                elif n_failed >= params.max_attempts or wait_s > params.max_pause_s:
                    self.park(str(reply.error), wait_s)
            if self.attempts or len(claims) == AT_ONCE or self.closed is not None:
                continue
            if monotonic() + wait_s - began > params.max_pause_s:
                self.park("A batch may take a day.", wait_s)
            else:
                await self.wait(wait_s)

    async def _submit(self, claims: Sequence[Claim]) -> None:
        work, ledger, client = self.work, self.work.ledger, self._backend.open_client()
        content = self._backend.encode_batch(
            {str(claim.item_no): work.plan.request(claim.item_no) for claim in claims}
        )
        file = await client.files.create(
            file=("requests.jsonl", content, "application/jsonl"), purpose="batch"
        )
        name = f"{BATCH_PREFIX}{uuid.uuid4()}"
        held = await self.persist(ledger.begin_batch, work.run_id, self.owner, self.key, name)
        if len(held) < len(claims):  # a lease ended, and another process may call
            await self.persist(ledger.return_batch, work.run_id, name)
            return
        try:
            batch = await client.batches.create(
                input_file_id=file.id,
                endpoint=BATCH_ENDPOINT,
                completion_window="24h",
                metadata={SUBMISSION: name},
            )
        except self._backend.error_types() as cause:
            reply = self._backend.classify_error(cause)
            if reply.outcome == "terminal" or reply.kind in REFUSED or reply.status == 503:
                await self.persist(ledger.return_batch, work.run_id, name)
            raise
        await self.persist(ledger.name_batch, name, batch.id)

    async def _poll(self) -> None:
        """Report batches that are over, or lost. One that is missing for long is lost: before,
        another process may be submitting it, or key and address may be wrong.
        """
        known = await self.persist(self.work.ledger.read_batches, self.work.run_id, self.key)
        for each in known:
            batch, age = await self._find(each), utc_now() - each.submitted_at
            said = f"{self.key[0]} does not know the batch {each.batch_id or each.submission_id}."
            if batch is not None:
                await self._read(each, batch)
            elif age >= (UNLISTED_AFTER if each.batch_id is None else GONE_AFTER):
                said += " It may be billed. Request its items again with --retry-lost."
                self._report(each, {}, fault("lost", said))
            elif each.batch_id is not None:
                said += (
                    " Set api_key (RLHF_API_KEY) and base_url (RLHF_BASE_URL) as they were then."
                )
                self.closed = fault("unknown_model", said)

    async def _find(self, each: LedgerBatch) -> "Batch | None":
        """The provider's batch; one whose submission was interrupted is looked for in its list."""
        from openai import NotFoundError

        batches = self._backend.open_client().batches
        if each.batch_id is not None:
            with suppress(NotFoundError):
                return await batches.retrieve(each.batch_id)
            return None
        async for batch in batches.list(limit=100):
            if (batch.metadata or {}).get(SUBMISSION) == each.submission_id:
                return batch
        return None

    async def _read(self, each: LedgerBatch, batch: "Batch") -> None:
        """Report a batch that is over, unless the provider has more lines than it gives out."""
        from openai import NotFoundError

        if batch.status not in OVER:
            return
        replies, n_answered = dict[str, Reply](), 0
        for file_id in filter(None, (batch.error_file_id, batch.output_file_id)):
            with suppress(NotFoundError):  # deleted: its requests get the reply of a missing line
                content = await self._backend.open_client().files.content(file_id)
                # Not `splitlines`, which also splits within texts, such as at U+2028.
                lines = content.text.strip().split("\n")
                replies |= self._backend.parse_batch(lines)
                n_answered = len(lines) if file_id == batch.output_file_id else 0
        counts = batch.request_counts
        ended_s = batch.completed_at or batch.expired_at or batch.cancelled_at or batch.created_at
        if counts is not None and n_answered < counts.completed and time() - ended_s < DAY_S:
            return
        kind = "garbled" if batch.status == "completed" else "server_error"
        why = f"The batch {batch.id} is {batch.status}, and has no readable line for it"
        for error in (batch.errors and batch.errors.data) or ():
            why += f"; {self._backend.redact(error.message)}"
        self._report(each, replies, fault(kind, f"{why}."))

    def _report(self, each: LedgerBatch, replies: Mapping[str, Reply], missing: Reply) -> None:
        plan, params, name = self.work.plan, self.work.params, each.submission_id
        for claim in each.claims:
            reply = replies.get(str(claim.item_no), missing)
            self.closed = self.closed or (reply if reply.closes else None)
            self.attempts.append(
                build_attempt(self.key, plan, claim, reply, params, utc_now(), submission_id=name)
            )

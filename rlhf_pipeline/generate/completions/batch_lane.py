"""Completes items by OpenAI's Batch API: many requests in a file, answered within a day.

The ledger has a row for each batch before it is submitted, and the provider receives our id of it
as metadata. So a batch whose submission was interrupted is found in the provider's list, or its
items are lost: possibly billed, and requested again only with `retry_lost`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.processes import make_owner
from rlhf_pipeline.core.protocols import BATCH_SUFFIX, Claim, LedgerBatch
from rlhf_pipeline.core.records import content_id, utc_now
from rlhf_pipeline.generate.completions.attempts import build_attempt
from rlhf_pipeline.generate.completions.base import HostedBackend, Reply
from rlhf_pipeline.generate.completions.faults import fault
from rlhf_pipeline.generate.completions.hosted_lane import AT_ONCE, HostedLane
from rlhf_pipeline.generate.completions.openai_compatible import (
    BATCH_ENDPOINT,
    OpenAICompatibleBackend,
)
from rlhf_pipeline.generate.completions.work import CompletionWork

if TYPE_CHECKING:
    from openai.types import Batch

SUBMISSION = "rlhf_submission"  # key of our own id in a batch's metadata
OVER = ("completed", "failed", "expired", "cancelled")
REFUSED = ("rate_limited", "overloaded", "unreachable")  # no batch was made
GONE_AFTER = timedelta(days=2)  # of its submission: a batch that is not found is lost
UNLISTED_AFTER = timedelta(minutes=10)  # longer than a call that submits one may take


class BatchLane(HostedLane):
    """Submits what is claimed as a batch, and polls all batches of the run. A closed lane leaves
    what its batches hold to a later run.
    """

    _backend: OpenAICompatibleBackend

    def __init__(self, work: CompletionWork, backend: HostedBackend) -> None:
        if not isinstance(backend, OpenAICompatibleBackend):
            raise ConfigurationError(
                f"The backend {backend.name} has no Batch API here. Set batch to false, or use "
                "openai_compatible."
            )
        super().__init__(work, backend)
        self.owner = make_owner() + BATCH_SUFFIX

    async def _complete(self) -> None:
        params, began, n_failed = self.work.params, monotonic(), 0
        while not self.work.is_stopping and self.closed is None:
            turn = await self._turn(AT_ONCE)
            claims, wait_s = turn.claimed[self.key], params.batch_poll_s
            why = "A batch may take a day."
            if not (claims or self.attempts) and turn.n_open == turn.n_leased == 0:
                return
            try:
                await self._poll()
                if claims and self.closed is None:
                    await self._submit(claims)
                n_failed = 0
            except self._backend.error_types() as cause:
                await self._release()
                reply, claims, n_failed = self._backend.classify_error(cause), [], n_failed + 1
                wait_s, why = max(reply.wait_s or 0.0, params.backoff(n_failed)), str(reply.error)
                self.closed = self.closed or (reply if reply.outcome == "terminal" else None)
            if self.attempts or len(claims) == AT_ONCE or self.closed is not None:
                continue
            is_late = monotonic() + wait_s - began > params.max_pause_s
            if is_late or n_failed >= params.max_attempts:
                self._suspend(why, wait_s)
            else:
                await self._wait(wait_s)

    async def _submit(self, claims: Sequence[Claim]) -> None:
        work, ledger, name = self.work, self.work.ledger, self.owner
        client = self._backend.open_client()
        content = self._backend.encode_batch(
            {str(claim.item_no): work.plan.request(claim.item_no) for claim in claims}
        )
        file = await client.files.create(
            file=("requests.jsonl", content, "application/jsonl"), purpose="batch"
        )
        n_held = await self._persist(ledger.begin_batch, work.run_id, name)
        self.owner = make_owner() + BATCH_SUFFIX
        if n_held < len(claims):  # a lease ended, and another process may call
            await self._persist(ledger.release, work.run_id, name)
            return
        try:
            batch = await client.batches.create(
                input_file_id=file.id,
                endpoint=BATCH_ENDPOINT,
                completion_window="24h",
                metadata={SUBMISSION: content_id(name)},
            )
        except self._backend.error_types() as cause:
            reply = self._backend.classify_error(cause)
            if reply.outcome == "terminal" or reply.kind in REFUSED or reply.status == 503:
                await self._persist(ledger.release, work.run_id, name)
            raise
        await self._persist(ledger.name_batch, name, batch.id)

    async def _poll(self) -> None:
        """Report batches that are over, or lost. One that is missing for long is lost: before,
        another process may be submitting it, or key and address may be wrong.
        """
        for row in await self._persist(self.work.ledger.read_batches, self.work.run_id):
            batch, age = await self._find(row), utc_now() - row.submitted_at
            message = f"{self.key[0]} does not know the batch {row.batch_id or row.submission_id}."
            if batch is not None:
                if batch.status in OVER:
                    await self._read(row, batch)
            elif age >= (UNLISTED_AFTER if row.batch_id is None else GONE_AFTER):
                message += " It may be billed. Request its items again with --retry-lost."
                self._report(row, {}, fault("lost", message))
            elif row.batch_id is not None:
                message += (
                    " Set api_key (RLHF_API_KEY) and base_url (RLHF_BASE_URL) as they were then."
                )
                self.closed = fault("unknown_model", message)

    async def _find(self, row: LedgerBatch) -> "Batch | None":
        """The provider's batch; one whose submission was interrupted is looked for in its list."""
        from openai import NotFoundError

        batches = self._backend.open_client().batches
        if row.batch_id is not None:
            with suppress(NotFoundError):
                return await batches.retrieve(row.batch_id)
            return None
        async for batch in batches.list(limit=100):
            if (batch.metadata or {}).get(SUBMISSION) == content_id(row.submission_id):
                return batch
        return None

    async def _read(self, row: LedgerBatch, batch: "Batch") -> None:
        from openai import NotFoundError

        replies = dict[str, Reply]()
        for file_id in filter(None, (batch.error_file_id, batch.output_file_id)):
            with suppress(NotFoundError):  # deleted: its requests get the reply of a missing line
                content = await self._backend.open_client().files.content(file_id)
                replies |= self._backend.parse_batch(content.text)
        kind = "garbled" if batch.status == "completed" else "server_error"
        why = f"The batch {batch.id} is {batch.status}, and has no readable line for it"
        for error in (batch.errors and batch.errors.data) or ():
            why += f"; {self._backend.redact(error.message)}"
        self._report(row, replies, fault(kind, f"{why}."))

    def _report(self, row: LedgerBatch, replies: Mapping[str, Reply], missing: Reply) -> None:
        """Leave an attempt for each item; one that stays open goes into the next batch."""
        for claim in row.claims:
            reply = replies.get(str(claim.item_no), missing)
            self.closed = self.closed or (reply if reply.closes else None)
            attempt = build_attempt(
                self.key, self.work.plan, claim, reply, self.work.params, utc_now()
            )
            self.attempts.append(replace(attempt, not_before=None, submission_id=row.submission_id))

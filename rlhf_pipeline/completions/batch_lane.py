"""Completes items by OpenAI's Batch API: many requests in a file, answered within a day.

The ledger has a row for each batch before it is submitted, and the provider receives our id of it
as metadata. So a batch whose submission was interrupted is found in the provider's list, or its
items are lost: possibly billed, and requested again only with `retry_lost`.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from rlhf_pipeline.completions.attempts import build_attempt
from rlhf_pipeline.completions.base import BatchBackend, Reply
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.completions.work import AT_ONCE, CompletionWork, ProviderLane
from rlhf_pipeline.protocols import (
    BATCH_PREFIX,
    NO_CALLS_SUFFIX,
    Claim,
    Lane,
    LedgerBatch,
    LedgerTransaction,
)
from rlhf_pipeline.records import utc_now

if TYPE_CHECKING:
    from openai.types import Batch

ENDPOINT: Final = "/v1/chat/completions"
SUBMISSION = "rlhf_submission"  # key of our own id in a batch's metadata
MOST_REQUESTS = 50_000  # requests in one batch: https://platform.openai.com/docs/guides/batch
OVER = ("completed", "failed", "expired", "cancelled")
REFUSED = ("rate_limited", "overloaded", "unreachable")  # no batch was made
DAY_S = 86_400.0  # how long the lines of a batch that is over may be late
GONE_AFTER = timedelta(days=2)  # of its submission: a batch that is not found is lost
UNLISTED_AFTER = timedelta(minutes=10)  # longer than a call that submits one may take


class BatchLane(ProviderLane):
    """Submits what is claimed as a batch, and polls all batches of the lane. A closed lane leaves
    what its batches hold to a later run.
    """

    _backend: BatchBackend

    def __init__(self, work: CompletionWork, key: Lane, backend: BatchBackend) -> None:
        super().__init__(work, key, backend)
        self.owner += NO_CALLS_SUFFIX
        self._has_batches = False
        self._n_failed = 0  # polls that failed in a row

    async def complete(self) -> None:
        params, began = self.work.params, monotonic()
        while not self.work.is_stopping and self.closed is None:
            self.wake.clear()
            claims, turn = await self._claim()
            if not claims and turn.n_open == turn.n_leased == 0:
                return
            wait_s = params.batch_poll_s
            try:
                await self._poll()
                if claims and self.closed is None:
                    await self._submit(claims)
                self._n_failed = 0
                is_late = monotonic() + wait_s - began > params.max_pause_s
                if self._has_batches and self.closed is None and is_late and not self.attempts:
                    self._park(f"{self.key[0]} works on a batch, which may take a day.")
            except self._backend.error_types() as cause:
                await self.release()
                if self.closed is None:
                    wait_s = self._wait_or_close(self._backend.classify_error(cause))
            if not self.attempts and self.closed is None:
                await self.wait(wait_s)

    async def _claim(self) -> tuple[list[Claim], LedgerTransaction]:
        """Record all attempts, and claim what is open."""
        claims: list[Claim] = []
        while True:
            n_wanted = min(AT_ONCE, MOST_REQUESTS - len(claims))
            turn = await self.turn(n_wanted)
            more = turn.claimed[self.key]
            claims += more
            if not self.attempts and (len(more) < n_wanted or n_wanted == 0):
                return claims, turn

    async def _poll(self) -> None:
        known = await self.persist(self.work.ledger.read_batches, self.work.run_id, self.key)
        self._has_batches = bool(known)
        for each in known:
            await self._read(each)

    def _wait_or_close(self, reply: Reply) -> float:
        """After a failed poll: seconds until the next, unless the provider is given up for now."""
        params = self.work.params
        self._n_failed += 1
        wait_s = max(reply.wait_s or 0.0, params.backoff(self._n_failed))
        is_last = self._n_failed >= params.max_attempts
        if reply.outcome == "terminal" or (is_last and not self._has_batches):
            self.closed = reply
        elif is_last:
            self._park(
                f"{self.key[0]} failed {self._n_failed} times in a row: {reply.error}.", wait_s
            )
        elif wait_s > params.max_pause_s:
            self._park(f"{self.key[0]} asks for a wait of {wait_s:,.0f} s.", wait_s)
        return wait_s

    def _park(self, why: str, wait_s: float = 0.0) -> None:
        params = self.work.params
        wait_s = max(wait_s, params.max_pause_s, params.batch_poll_s)
        self.parked_until = utc_now() + timedelta(seconds=wait_s)
        self.closed = fault("long_wait", why)

    async def _submit(self, claims: Sequence[Claim]) -> None:
        work, ledger, client = self.work, self.work.ledger, self._backend.open_client()
        lines = [
            {
                "custom_id": str(claim.item_no),
                "method": "POST",
                "url": ENDPOINT,
                "body": self._backend.build_body(work.plan.request(claim.item_no)),
            }
            for claim in claims
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = await client.files.create(
            file=("requests.jsonl", content, "application/jsonl"), purpose="batch"
        )
        submission_id = f"{BATCH_PREFIX}{uuid.uuid4()}"
        held = await self.persist(
            ledger.begin_batch, work.run_id, self.owner, self.key, submission_id
        )
        self._has_batches = is_whole = len(held) == len(lines)
        if not is_whole:  # a lease ended, and another process may call
            await self.persist(ledger.return_batch, work.run_id, submission_id)
            return
        try:
            batch = await client.batches.create(
                input_file_id=file.id,
                endpoint=ENDPOINT,
                completion_window="24h",
                metadata={SUBMISSION: submission_id},
            )
        except self._backend.error_types() as cause:
            reply = self._backend.classify_error(cause)
            if reply.outcome == "terminal" or reply.kind in REFUSED or reply.status == 503:
                await self.persist(ledger.return_batch, work.run_id, submission_id)
            raise
        await self.persist(ledger.name_batch, submission_id, batch.id)

    async def _read(self, each: LedgerBatch) -> None:
        """Report a batch that is over, or lost."""
        from openai import NotFoundError

        batch = await self._find(each)
        if batch is None or batch.status not in OVER:
            return
        replies: dict[str, Reply] = {}
        n_answered = 0
        for file_id in filter(None, (batch.error_file_id, batch.output_file_id)):
            with suppress(NotFoundError):  # deleted: its requests get the reply of a missing line
                content = await self._backend.open_client().files.content(file_id)
                # Not `splitlines`, which also splits within texts, such as at U+2028.
                lines = content.text.strip().split("\n")
                replies |= self._parse_lines(lines)
                if file_id == batch.output_file_id:
                    n_answered = len(lines)
        counts = batch.request_counts
        ended_s = batch.completed_at or batch.expired_at or batch.cancelled_at or batch.created_at
        if counts is not None and n_answered < counts.completed and time() - ended_s < DAY_S:
            return  # the provider has more lines than it gives out by now
        errors = batch.errors.data if batch.errors is not None else None
        if errors and not replies:
            said = "; ".join(self._backend.redact(error.message) for error in errors)
            self.closed = fault("bad_request", f"{self.key[0]} refused a batch as a whole: {said}")
            missing = self.closed
        elif batch.status == "completed":
            missing = fault("garbled", f"The batch {batch.id} has no readable line for it.")
        else:
            said = f"The batch {batch.id} is {batch.status}, and did not process it."
            missing = fault("server_error", said)
        self._report(each, replies, missing)

    async def _find(self, each: LedgerBatch) -> "Batch | None":
        """The provider's batch. One whose submission was interrupted is looked for in its list. One
        that is missing for long is lost: before, another process may be submitting it, or key and
        address may be wrong.
        """
        from openai import NotFoundError

        client, age = self._backend.open_client(), utc_now() - each.submitted_at
        if each.batch_id is None:
            async for batch in client.batches.list(limit=100):
                if (batch.metadata or {}).get(SUBMISSION) == each.submission_id:
                    await self.persist(self.work.ledger.name_batch, each.submission_id, batch.id)
                    return batch
            is_lost = age >= UNLISTED_AFTER
            said = f"does not list the batch {each.submission_id}, whose submission was interrupted"
        else:
            try:
                return await client.batches.retrieve(each.batch_id)
            except NotFoundError:
                is_lost = age >= GONE_AFTER
                said = f"does not know the batch {each.batch_id}"
        said = f"{self.key[0]} {said}."
        if is_lost:
            again = "It may be billed. Request its items again with --retry-lost."
            self._report(each, {}, fault("lost", f"{said} {again}"))
        elif each.batch_id is not None:
            cure = "Set api_key (RLHF_API_KEY) and base_url (RLHF_BASE_URL) as they were then."
            self.closed = fault("unknown_model", f"{said} {cure}")
        return None

    def _parse_lines(self, lines: Sequence[str]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        for line in lines:
            try:
                told = json.loads(line)
                name, answer = told["custom_id"], told["response"]
                replies[name] = self._backend.parse_response(answer["status_code"], answer["body"])
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # its request gets the reply of a missing line
        return replies

    def _report(self, each: LedgerBatch, replies: Mapping[str, Reply], missing: Reply) -> None:
        work = self.work
        for claim in each.claims:
            reply = replies.get(str(claim.item_no), missing)
            if reply.closes:
                self.closed = self.closed or reply
            attempt = build_attempt(
                self.key,
                work.plan.keys[claim.item_no],
                claim,
                work.plan.request(claim.item_no),
                reply,
                work.params,
                utc_now(),
                0.0,
            )
            self.attempts.append(
                replace(attempt, not_before=None, submission_id=each.submission_id)
            )

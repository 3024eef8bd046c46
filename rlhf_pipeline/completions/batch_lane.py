"""Completes claims by OpenAI's Batch API: many requests in a file, answered within a day.

The ledger has a row for each batch before it is submitted, and the provider receives our id of it
as metadata. So a batch whose submission was interrupted is found in the provider's list, or its
items are lost: possibly billed, and requested again only with `retry_lost`.
"""

import json
import math
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

from rlhf_pipeline.completions.attempts import build_attempt
from rlhf_pipeline.completions.base import BatchBackend, Reply
from rlhf_pipeline.completions.drive import AT_ONCE, CompletionWork, WorkLane, persist_with_retry
from rlhf_pipeline.completions.faults import fault
from rlhf_pipeline.protocols import (
    BATCH_PREFIX,
    NO_CALLS_SUFFIX,
    Attempt,
    Claim,
    Lane,
    LedgerBatch,
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


class BatchLane(WorkLane):
    """The batches of one provider and model, in the thread of `drive`: submitted and polled when
    attempts are taken. A closed lane leaves what its batches hold to a later run.
    """

    waits_when_closed = False

    def __init__(
        self, work: CompletionWork, key: Lane, backend: BatchBackend, rng: random.Random
    ) -> None:
        super().__init__(work, key)
        if not work.owner.endswith(NO_CALLS_SUFFIX):
            work.owner += NO_CALLS_SUFFIX
        self._backend = backend
        self._client = backend.open_client()
        self._rng = rng
        self._waiting: list[Claim] = []
        self._is_ready = False  # waiting claims are submitted next
        self._has_batches = False
        self._attempts: list[Attempt] = []
        self._n_failed = 0  # looks at the provider that failed in a row
        self._began = self._due = monotonic()

    @property
    def n_wanted(self) -> int:
        if self.closed is not None or self._is_ready:
            return 0
        return min(AT_ONCE, MOST_REQUESTS - len(self._waiting))

    @property
    def is_busy(self) -> bool:
        """Claims that are in a batch belong to the batch."""
        return bool(self._waiting or self._attempts)

    @property
    def paused_s(self) -> float:
        return max(0.001, self._due - monotonic())  # 0 would mean that it is not paused

    def stop(self) -> None:
        self._due = math.inf
        self._client.close()

    def add(self, claims: Sequence[Claim], *, is_all: bool) -> None:
        self._waiting += claims
        self._is_ready = bool(self._waiting) and (is_all or len(self._waiting) >= MOST_REQUESTS)
        if self._is_ready and not self._n_failed:
            self._due = monotonic()

    def withdraw(self, items: set[int] | None = None) -> list[int]:
        gone = [c.item_no for c in self._waiting if items is None or c.item_no in items]
        self._waiting = [c for c in self._waiting if c.item_no not in gone]
        return gone

    def take_attempts(self, most: int) -> list[Attempt]:
        """Poll the batches and submit waiting claims if it is time, and return finished calls."""
        if self.closed is None and not self._attempts and monotonic() >= self._due:
            try:
                self._look()
            except self._backend.error_types() as cause:
                if self.closed is None:
                    self._wait_or_close(self._backend.classify_error(cause))
        taken, self._attempts = self._attempts[:most], self._attempts[most:]
        return taken

    def _look(self) -> None:
        params = self.work.params
        known = self._persist(self.work.ledger.read_batches, self.work.run_id, self.key)
        self._has_batches = bool(known)
        for each in known:
            self._read(each)
        if self._is_ready and self.closed is None:
            self._submit()
        self._n_failed, self._due = 0, monotonic() + params.batch_poll_s
        is_late = self._due - self._began > params.max_pause_s
        if self._has_batches and self.closed is None and is_late:
            self._park(f"{self.key[0]} works on a batch, which may take a day.")

    def _wait_or_close(self, reply: Reply) -> None:
        """After a failed look: try again later, or give the provider up for this run."""
        params = self.work.params
        self._n_failed += 1
        wait_s = max(reply.wait_s or 0.0, params.backoff(self._n_failed, self._rng))
        self._due = monotonic() + wait_s
        is_last = self._n_failed >= params.max_attempts
        if reply.outcome == "terminal" or (is_last and not self._has_batches):
            self.closed = reply
        elif is_last:
            self._park(
                f"{self.key[0]} failed {self._n_failed} times in a row: {reply.error}.", wait_s
            )
        elif wait_s > params.max_pause_s:
            self._park(f"{self.key[0]} asks for a wait of {wait_s:,.0f} s.", wait_s)

    def _park(self, why: str, wait_s: float = 0.0) -> None:
        params = self.work.params
        wait_s = max(wait_s, params.max_pause_s, params.batch_poll_s)
        self.parked_until = utc_now() + timedelta(seconds=wait_s)
        self.closed = fault("long_wait", why)

    def _submit(self) -> None:
        work, ledger = self.work, self.work.ledger
        lines = [
            {
                "custom_id": str(claim.item_no),
                "method": "POST",
                "url": ENDPOINT,
                "body": self._backend.build_body(work.requests[claim.item_no]),
            }
            for claim in self._waiting
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self._client.files.create(
            file=("requests.jsonl", content, "application/jsonl"), purpose="batch"
        )
        submission_id = f"{BATCH_PREFIX}{uuid.uuid4()}"
        held = self._persist(ledger.begin_batch, work.run_id, work.owner, self.key, submission_id)
        is_whole = len(held) == len(lines)  # else a lease ended, and another process may call
        self._waiting, self._is_ready, self._has_batches = [], False, is_whole
        if not is_whole:
            self._persist(ledger.return_batch, work.run_id, submission_id)
            return
        try:
            batch = self._client.batches.create(
                input_file_id=file.id,
                endpoint=ENDPOINT,
                completion_window="24h",
                metadata={SUBMISSION: submission_id},
            )
        except self._backend.error_types() as cause:
            reply = self._backend.classify_error(cause)
            if reply.outcome == "terminal" or reply.kind in REFUSED or reply.status == 503:
                self._persist(ledger.return_batch, work.run_id, submission_id)
            raise
        self._persist(ledger.name_batch, submission_id, batch.id)

    def _read(self, each: LedgerBatch) -> None:
        """Report a batch that is over, or lost."""
        from openai import NotFoundError

        batch = self._find(each)
        if batch is None or batch.status not in OVER:
            return
        replies: dict[str, Reply] = {}
        n_answered = 0
        for file_id in filter(None, (batch.error_file_id, batch.output_file_id)):
            with suppress(NotFoundError):  # deleted: its requests get the reply of a missing line
                # Not `splitlines`, which also splits within texts, such as at U+2028.
                lines = self._client.files.content(file_id).text.strip().split("\n")
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

    def _find(self, each: LedgerBatch) -> "Batch | None":
        """The provider's batch. One whose submission was interrupted is looked for in its list. One
        that is missing for long is lost: before, another process may be submitting it, or key and
        address may be wrong.
        """
        from openai import NotFoundError

        age = utc_now() - each.submitted_at
        if each.batch_id is None:
            for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get(SUBMISSION) == each.submission_id:
                    self._persist(self.work.ledger.name_batch, each.submission_id, batch.id)
                    return batch
            is_lost = age >= UNLISTED_AFTER
            said = f"does not list the batch {each.submission_id}, whose submission was interrupted"
        else:
            try:
                return self._client.batches.retrieve(each.batch_id)
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
        for claim in each.claims:
            item, request = self.work.items[claim.item_no], self.work.requests[claim.item_no]
            reply = replies.get(str(claim.item_no), missing)
            if reply.closes:
                self.closed = self.closed or reply
            attempt = build_attempt(
                item, claim, request, reply, self.work.params, utc_now(), 0.0, self._rng
            )
            self._attempts.append(
                replace(attempt, not_before=None, submission_id=each.submission_id)
            )

    def _persist(self, do: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return persist_with_retry(self.work.ledger, do, *args, **more)

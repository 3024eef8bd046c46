"""Checks and casts votes."""

import json
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, select

from rlhf_pipeline.core.errors import (
    AlreadyVoted,
    IdempotencyConflict,
    InvalidVote,
    NotFound,
    PipelineError,
    UnknownComparison,
)
from rlhf_pipeline.core.records import (
    Choice,
    NewVote,
    Record,
    Vote,
    VoteDetails,
    content_hash,
    content_id,
)
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.casting import (
    VoteRow,
    date_error,
    insert_votes,
)
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import votes
from rlhf_pipeline.store.vote_log import VoteLog

VOTES_PER_TRANSACTION = MAX_ROWS
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
# last date of Python: a later time may have no UTC
END_OF_CALENDAR = datetime(9999, 12, 30, tzinfo=UTC)
# of one vote, whatever stands beside it
REFUSALS = (UnknownComparison, InvalidVote, IdempotencyConflict, AlreadyVoted, NotFound)
_STORED_FIELDS = tuple(NewVote.model_fields)


class CastCount(Record):
    """Number of new votes, and of those recorded before under the same key."""

    n_new: int
    n_known: int


class Votes(VoteLog):
    """Append-only. `seq` counts a project's votes in commit order, without gaps."""

    def __init__(self, database: Database):
        super().__init__(database)
        # of the threads of this process: those that wait for the turn, and the one that has it
        self._waiting: list[tuple[VoteRow, Future[VoteRow]]] = []
        self._turn = threading.Lock()

    def cast(self, vote: NewVote) -> Vote:
        """Record one vote with its audit link, in one transaction with the votes of other threads
        that wait at that moment: at 4 ms for an fsync each alone would reach 300 votes a second,
        just above the bar (benchmarks/bench_votes.py).

        The same idempotency key with the same body returns the stored vote. Raises
        UnknownComparison; InvalidVote (time without zone, strength without a or b, superseding
        anything but the annotator's own standing vote on the comparison); IdempotencyConflict (same
        key, another body). A second vote of an annotator on a comparison that supersedes nothing is
        a repeat pass: kept, and the last pass counts. Raises StoreError where the database does not
        answer within the busy timeout.
        """
        mine: Future[VoteRow] = Future()
        self._waiting.append((prepare_row(vote), mine))
        with self._turn:
            if not mine.done():
                self._record_waiting()
        return Vote.from_row(mine.result())

    def _record_waiting(self) -> None:
        """Record the waiting votes and resolve their futures, whatever happens: a thread whose
        future stays open would wait for nothing.
        """
        n = len(self._waiting)  # more may come meanwhile
        group, self._waiting[:n] = self._waiting[:n], []
        answers: Sequence[VoteRow | BaseException]
        try:
            answers = self._record_each([row for row, _ in group])
        except BaseException as error:  # noqa: BLE001 (raised by each of the waiting threads)
            answers = [error] * n
        for (_, future), answer in zip(group, answers, strict=True):
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _record_each(self, prepared: Sequence[VoteRow]) -> list[VoteRow | PipelineError]:
        """Each vote as stored, or why it was refused."""
        try:
            return [*self._record(prepared)[0]]
        except REFUSALS as refusal:
            if len(prepared) == 1:
                return [refusal]
        return [self._record_each([row])[0] for row in prepared]

    def cast_each(self, new_votes: Sequence[NewVote]) -> list[Vote | PipelineError]:
        """`cast` for several votes, each with its own result: the stored vote, or why it was
        refused. One transaction if none is refused.
        """
        try:
            return [*self.cast_many(new_votes)]
        except REFUSALS as refusal:
            if len(new_votes) == 1:
                return [refusal]
        return [answer for vote in new_votes for answer in self.cast_each([vote])]

    def cast_many(self, new_votes: Sequence[NewVote]) -> list[Vote]:
        """`cast` for many, in order, some hundred to a transaction; after an error or a kill, cast
        them all again.

        Invalid votes are refused before the first is written; one that the store refuses keeps its
        transaction and all later ones from being written.
        """
        prepared = batches([prepare_row(vote) for vote in new_votes], VOTES_PER_TRANSACTION)
        return [Vote.from_row(row) for rows, _ in self._cast(prepared) for row in rows]

    def cast_all(self, new_votes: Iterable[NewVote]) -> CastCount:
        """`cast_many` for a stream of any length: each vote is checked as it comes, none is
        returned.
        """
        n, n_new = 0, 0
        for rows, new in self._cast(batches(map(prepare_row, new_votes), VOTES_PER_TRANSACTION)):
            n, n_new = n + len(rows), n_new + new
        return CastCount(n_new=n_new, n_known=n - n_new)

    def _cast(self, prepared: Iterable[list[VoteRow]]) -> Iterator[tuple[list[VoteRow], int]]:
        """The votes of each transaction as stored, and how many of them are new."""
        for batch in self._database.with_backoff(prepared):
            yield self._record(batch)

    def _record(self, prepared: Sequence[VoteRow]) -> tuple[list[VoteRow], int]:
        """One transaction: the votes as stored, and how many of them are new."""
        with audited_transaction(self._database) as (connection, ledger):
            before = ledger.vote_seq
            rows = insert_votes(connection, ledger, self._database, prepared)
        return rows, ledger.vote_seq - before

    def get(self, vote_id: str) -> Vote:
        """Raises NotFound."""
        vote = self.find(vote_id)
        if vote is None:
            raise NotFound(f"There is no vote {vote_id!r}. Correct the id.")
        return vote

    def find(self, vote_id: str) -> Vote | None:
        return self._find_one(votes.c.vote_id == vote_id)

    def with_key(self, idempotency_key: str) -> Vote | None:
        """The vote that was cast under a key."""
        return self._find_one(votes.c.idempotency_key == idempotency_key)

    def _find_one(self, condition: ColumnElement[bool]) -> Vote | None:
        query = select(votes).where(condition)
        return next(map(Vote.from_row, self._database.fetch_mappings(query)), None)


def _check_vote(vote: NewVote) -> None:
    """Raise InvalidVote for a vote that is wrong whatever the store contains."""
    if vote.voted_at is None:
        if vote.origin != "import":
            raise InvalidVote(
                f"Vote {vote.idempotency_key!r}: voted_at is missing. Only imported votes may lack "
                "it; send the moment of the vote."
            )
    elif vote.voted_at.tzinfo is None or vote.voted_at.utcoffset() is None:
        raise InvalidVote(
            f"Vote {vote.idempotency_key!r}: voted_at {vote.voted_at} has no time zone. Send it "
            "with one, e.g. …Z for UTC."
        )
    elif not EARLIEST <= vote.voted_at < END_OF_CALENDAR:
        raise date_error(vote.idempotency_key, vote.voted_at)
    if vote.strength is not None and vote.choice not in (Choice.A, Choice.B):
        raise InvalidVote(
            f"Vote {vote.idempotency_key!r}: strength {vote.strength} with choice {vote.choice}. "
            "Rule: strength says how much a or b is preferred, so it comes with choice a or b "
            "only. Leave it out."
        )
    if vote.duration_s is not None and not math.isfinite(vote.duration_s):
        raise InvalidVote(
            f"Vote {vote.idempotency_key!r}: duration_s is {vote.duration_s}. Send finite seconds "
            "or leave it out."
        )


def prepare_row(vote: NewVote) -> VoteRow:
    """Check and hash a vote: its row without what the store adds, made before the write lock is
    taken. Raises InvalidVote.
    """
    row = _checked_columns(vote)
    at = row["voted_at"]
    body = row | {"voted_at": at and f"{at.replace(tzinfo=None).isoformat()}Z"}
    vote_id = content_id("vote", row["idempotency_key"], content_hash(body))
    return row | {"vote_id": vote_id}


def _checked_columns(vote: NewVote) -> VoteRow:
    _check_vote(vote)
    columns: VoteRow = {name: getattr(vote, name) for name in _STORED_FIELDS}
    columns["choice"] = vote.choice.value
    columns["annotator_kind"] = vote.annotator_kind.value
    columns["details"] = _encode_details(vote.details)
    columns["voted_at"] = vote.voted_at and vote.voted_at.astimezone(UTC)
    for name, value in columns.items():
        if type(value) is str and "\0" in value:
            raise InvalidVote(
                f"Vote {vote.idempotency_key!r}: {name} holds a NUL character. Remove it, then "
                "send the vote again."
            )
    return columns


def _encode_details(details: VoteDetails | None) -> str | None:
    """None for empty details, so that the same vote has one body."""
    if details is None or details.is_empty:
        return None
    return json.dumps(
        details.model_dump(mode="json", exclude_defaults=True),
        sort_keys=True,
        ensure_ascii=False,
        separators=(",", ":"),
    )

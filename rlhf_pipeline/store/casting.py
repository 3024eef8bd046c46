"""How votes enter the store: rules, idempotency, seq and audit link, within one transaction. Knows no query of readers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sqlalchemy import Connection, select

from rlhf_pipeline.errors import IdempotencyConflict, InvalidVote, UnknownComparison
from rlhf_pipeline.records import Choice, NewVote, Vote, content_hash, content_id
from rlhf_pipeline.store.audit import VOTE_CAST, Ledger, vote_digest
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import comparisons, idempotency, votes

VOTES_PER_TRANSACTION = MAX_ROWS // 3  # a vote is three rows: vote, idempotency record, audit link

VoteRow = dict[str, Any]


def check_vote(vote: NewVote) -> None:
    """Raise InvalidVote for what is wrong with a vote whatever the store holds."""
    if vote.voted_at is None:
        if vote.origin != "import":
            raise InvalidVote(
                f"Vote {vote.idempotency_key!r}: voted_at is missing. Only imported votes may lack it; send the moment of the vote."
            )
    elif vote.voted_at.tzinfo is None or vote.voted_at.utcoffset() is None:
        raise InvalidVote(f"Vote {vote.idempotency_key!r}: voted_at {vote.voted_at} has no time zone. Send it with one, e.g. …Z for UTC.")
    if vote.strength is not None and vote.choice not in (Choice.A, Choice.B):
        raise InvalidVote(
            f"Vote {vote.idempotency_key!r}: strength {vote.strength} with choice {vote.choice}. Rule: strength says how much a or b is "
            "preferred, so it comes with choice a or b only. Leave it out."
        )
    if vote.duration_s is not None and not math.isfinite(vote.duration_s):
        raise InvalidVote(f"Vote {vote.idempotency_key!r}: duration_s is {vote.duration_s}. Send finite seconds or leave it out.")


def cast_votes(connection: Connection, ledger: Ledger, database: Database, new_votes: Sequence[NewVote]) -> list[Vote]:
    """Record votes in order within the open transaction; a vote already recorded is given back as stored.

    Raises UnknownComparison, InvalidVote or IdempotencyConflict naming the vote; the transaction then keeps nothing.
    """
    booth = _Booth.opened(connection, database, new_votes)
    cast = [booth.place(vote, ledger) for vote in new_votes]
    database.insert(connection, votes, booth.new_rows)
    database.insert(connection, idempotency, booth.new_keys)
    return cast


def _body_hash(vote: NewVote) -> str:
    """Of what was sent; the same whatever zone its time was written in."""
    body = vote.model_copy(update={"voted_at": vote.voted_at.astimezone(UTC)} if vote.voted_at else {}).model_dump(mode="json")
    if body["task_id"] is None:  # votes from before there were tasks keep their hash
        del body["task_id"]
    return content_hash(body)


def vote_of(row: VoteRow) -> Vote:
    """The record of a stored vote."""
    return Vote.model_validate({name: row[name] for name in Vote.model_fields})


@dataclass
class _Booth:
    """What one transaction must know of the store to judge its votes, kept up to date as they are placed."""

    database: Database
    published: set[str]
    recorded: dict[str, tuple[str, VoteRow]]  # idempotency key -> body hash, vote
    turns: dict[tuple[str, str], list[VoteRow]]  # (comparison, annotator) -> votes in seq order
    superseded: dict[str, str]  # vote id -> the vote that superseded it
    strangers: dict[str, VoteRow]  # votes that new votes want to supersede, whoever cast them
    new_rows: list[VoteRow] = field(default_factory=list)
    new_keys: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def opened(cls, connection: Connection, database: Database, new_votes: Sequence[NewVote]) -> "_Booth":
        ids = sorted({vote.comparison_id for vote in new_votes})
        keys = [vote.idempotency_key for vote in new_votes]
        targets = [vote.supersedes for vote in new_votes if vote.supersedes]
        known = select(comparisons.c.comparison_id).where(database.mine(comparisons), comparisons.c.comparison_id.in_(ids))
        earlier = select(votes).where(database.mine(votes), votes.c.comparison_id.in_(ids)).order_by(votes.c.seq)
        replays = (
            select(idempotency.c.body_hash, votes)
            .join(votes, idempotency.c.vote_id == votes.c.vote_id)
            .where(database.mine(votes), database.mine(idempotency), idempotency.c.idempotency_key.in_(keys))
        )
        booth = cls(database, set(connection.execute(known).scalars()), {}, {}, {}, {})
        for row in connection.execute(replays).mappings():
            booth.recorded[row["idempotency_key"]] = (row["body_hash"], dict(row))
        for row in connection.execute(earlier).mappings():
            booth._remember(dict(row))
        if targets:
            wanted = select(votes).where(database.mine(votes), votes.c.vote_id.in_(targets))
            booth.strangers = {row["vote_id"]: dict(row) for row in connection.execute(wanted).mappings()}
        return booth

    def place(self, vote: NewVote, ledger: Ledger) -> Vote:
        body_hash = _body_hash(vote)
        if vote.idempotency_key in self.recorded:
            return self._replayed(vote, body_hash)
        if vote.comparison_id not in self.published:
            raise UnknownComparison(
                f"Vote {vote.idempotency_key!r}: comparison {vote.comparison_id!r} was never published in project "
                f"{self.database.project!r}. Publish it first, or correct the id."
            )
        row = self._row(vote, ledger, content_id("vote", vote.idempotency_key, body_hash))
        self._remember(row)
        self.recorded[vote.idempotency_key] = (body_hash, row)
        self.new_rows.append(row)
        self.new_keys.append(
            {
                "idempotency_key": vote.idempotency_key,
                "body_hash": body_hash,
                "vote_id": row["vote_id"],
                "recorded_at": row["received_at"],
            }
        )
        ledger.append(actor=vote.annotator_id, action=VOTE_CAST, object_id=row["vote_id"], digest=vote_digest(row), at=row["received_at"])
        return vote_of(row)

    def _replayed(self, vote: NewVote, body_hash: str) -> Vote:
        known_hash, row = self.recorded[vote.idempotency_key]
        if known_hash != body_hash:
            raise IdempotencyConflict(
                f"Idempotency key {vote.idempotency_key!r} already stands for vote {row['vote_id']} with another body. "
                "Send a new key for a new vote, or repeat the first body unchanged."
            )
        return vote_of(row)

    def _row(self, vote: NewVote, ledger: Ledger, vote_id: str) -> VoteRow:
        turns = self.turns.get((vote.comparison_id, vote.annotator_id), [])
        target = self._superseded_vote(vote, turns) if vote.supersedes else None
        counting = target or max(turns, key=lambda row: (row["pass_no"], row["revision_no"]), default=None)
        voted_at = vote.voted_at.astimezone(UTC) if vote.voted_at else None
        received_at = self.database.clock.now().astimezone(UTC)
        return {
            **vote.model_dump(),
            "choice": vote.choice.value,
            "annotator_kind": vote.annotator_kind.value,
            "voted_at": voted_at,
            "seq": ledger.next_vote_seq(),
            "vote_id": vote_id,
            "day": (voted_at or received_at).date().isoformat(),
            "received_at": received_at,
            "pass_no": target["pass_no"] if target else (counting["pass_no"] + 1 if counting else 1),
            "revision_no": target["revision_no"] + 1 if target else 0,
            "displaced_day": counting["day"] if counting else None,
        }

    def _superseded_vote(self, vote: NewVote, turns: list[VoteRow]) -> VoteRow:
        """The annotator's own vote on the same comparison that `vote` replaces."""
        for row in turns:
            if row["vote_id"] == vote.supersedes:
                if row["vote_id"] in self.superseded:
                    raise self._refused(vote, f"it was already superseded by {self.superseded[row['vote_id']]}", "Supersede that one.")
                return row
        stranger = self.strangers.get(vote.supersedes or "")
        if stranger is None:
            raise self._refused(vote, "there is no such vote", "Correct the id.")
        if stranger["annotator_id"] != vote.annotator_id:
            raise self._refused(vote, "somebody else cast it", "Annotators supersede their own votes only.")
        raise self._refused(vote, f"it judges comparison {stranger['comparison_id']}", "Vote on the same comparison.")

    def _refused(self, vote: NewVote, why: str, cure: str) -> InvalidVote:
        return InvalidVote(f"Vote {vote.idempotency_key!r} cannot supersede vote {vote.supersedes!r}: {why}. {cure}")

    def _remember(self, row: VoteRow) -> None:
        self.turns.setdefault((row["comparison_id"], row["annotator_id"]), []).append(row)
        if row["supersedes"]:
            self.superseded[row["supersedes"]] = row["vote_id"]

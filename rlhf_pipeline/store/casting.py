"""Checks and records votes with seq and audit link, within one transaction."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    bindparam,
    cast,
    func,
    select,
)

from rlhf_pipeline.errors import (
    AlreadyVoted,
    IdempotencyConflict,
    InvalidVote,
    NotFound,
    UnknownComparison,
)
from rlhf_pipeline.records import Choice, NewVote, Vote, VoteDetails, content_hash, content_id
from rlhf_pipeline.store.audit import VOTE_CAST, Ledger, row_digest
from rlhf_pipeline.store.cards import VotedCards, is_undo
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import comparisons, votes

VOTES_PER_TRANSACTION = MAX_ROWS
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
# last date of Python: a later time may have no UTC
END_OF_CALENDAR = datetime(9999, 12, 30, tzinfo=UTC)
# of one vote, whatever stands beside it
REFUSALS = (UnknownComparison, InvalidVote, IdempotencyConflict, AlreadyVoted, NotFound)

# One row of table `votes`. Its `vote_id` follows from its idempotency key and the body as sent.
VoteRow = dict[str, Any]

_TURN_COLUMNS = (
    "comparison_id",
    "annotator_id",
    "vote_id",
    "supersedes",
    "pass_no",
    "revision_no",
    "day",
    "assignment_id",
    "details",
)
_STORED_FIELDS = tuple(NewVote.model_fields)


def check_vote(vote: NewVote) -> None:
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
        raise _date_error(vote.idempotency_key, vote.voted_at)
    if vote.strength is not None and vote.choice not in (Choice.A, Choice.B):
        raise InvalidVote(
            f"Vote {vote.idempotency_key!r}: strength {vote.strength} with choice {vote.choice}. "
            "Rule: strength says how much a or b is preferred, so it comes with choice a or b "
            "only. Leave it out."
        )
    for name in _STORED_FIELDS:
        value = getattr(vote, name)
        if type(value) is str and "\0" in value:
            raise InvalidVote(
                f"Vote {vote.idempotency_key!r}: {name} holds a NUL character. Remove it, then "
                "send the vote again."
            )
    if vote.duration_s is not None and not math.isfinite(vote.duration_s):
        raise InvalidVote(
            f"Vote {vote.idempotency_key!r}: duration_s is {vote.duration_s}. Send finite seconds "
            "or leave it out."
        )


def _date_error(key: str, voted_at: datetime) -> InvalidVote:
    return InvalidVote(
        f"Vote {key!r}: voted_at is {voted_at}. Votes are dated from "
        "1970-01-01 to tomorrow (UTC). Correct the clock of the device, or the column of the file."
    )


def prepare_row(vote: NewVote) -> VoteRow:
    """Check and hash a vote: its row without what the store adds, made before the write lock is
    taken. Raises InvalidVote.
    """
    check_vote(vote)
    columns: VoteRow = {name: getattr(vote, name) for name in _STORED_FIELDS}
    columns |= {
        "choice": vote.choice.value,
        "annotator_kind": vote.annotator_kind.value,
        "details": _encode_details(vote.details),
    }
    body = columns
    if vote.voted_at is not None:
        voted_at = vote.voted_at.astimezone(UTC)
        columns["voted_at"] = voted_at
        body = {**columns, "voted_at": f"{voted_at.replace(tzinfo=None).isoformat()}Z"}
    vote_id = content_id("vote", vote.idempotency_key, content_hash(body))
    return {**columns, "vote_id": vote_id}


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


def cast_votes(
    connection: Connection, ledger: Ledger, database: Database, prepared: Sequence[VoteRow]
) -> list[VoteRow]:
    """Record votes in order within the open transaction; a known vote is returned as stored.

    Raises one of REFUSALS naming the vote; the transaction then keeps nothing.
    """
    transaction = _VoteTransaction.load(connection, database, prepared)
    placed = [transaction.place(vote, ledger) for vote in prepared]
    database.insert(connection, votes, transaction.new_rows)
    transaction.cards.settle(connection, transaction.new_rows)
    return placed


V = TypeVar("V", bound=Vote)


def vote_of(row: Mapping[Any, Any], record: type[V] = Vote) -> V:  # type: ignore[assignment]
    """The record of a stored vote, a Vote or one with more columns."""
    values = {name: row[name] for name in record.model_fields}
    if values["details"] is not None:
        values["details"] = VoteDetails.from_json(values["details"])
    return record.model_validate(values)


@dataclass
class _VoteTransaction:
    """The stored rows that one transaction needs to judge its votes, kept up to date as they are
    placed.
    """

    database: Database
    received_at: datetime  # one time for all, because they are committed together
    published: set[str]
    recorded: dict[str, VoteRow]  # idempotency key -> vote
    turns: dict[tuple[str, str], list[VoteRow]]  # (comparison, annotator) -> their earlier votes
    superseded: dict[str, str]  # vote id -> the vote that superseded it
    strangers: dict[str, VoteRow]  # votes to be superseded, of any annotator
    cards: VotedCards
    new_rows: list[VoteRow] = field(default_factory=list)

    @classmethod
    def load(
        cls, connection: Connection, database: Database, prepared: Sequence[VoteRow]
    ) -> "_VoteTransaction":
        keys = [vote["idempotency_key"] for vote in prepared]
        targets = [vote["supersedes"] for vote in prepared if vote["supersedes"]]
        cards = VotedCards.load(connection, database, prepared)
        # a card refers to its comparison
        published = {card["comparison_id"] for card in cards.rows.values()}
        others = sorted({vote["comparison_id"] for vote in prepared} - published)
        if others:
            published |= {
                row.comparison_id
                for row in connection.execute(_SELECT_PUBLISHED, {"values": others}).all()
            }
        transaction = cls(
            database, database.clock.now().astimezone(UTC), published, {}, {}, {}, {}, cards
        )
        for row in connection.execute(_SELECT_RECORDED, {"values": keys}).all():
            transaction.recorded[row.idempotency_key] = row._asdict()
        pairs = sorted({_judge(vote) for vote in prepared})
        for turn in read_turns(connection, pairs):
            transaction._remember(dict(zip(_TURN_COLUMNS, turn, strict=True)))
        if targets:
            found = connection.execute(_SELECT_VOTES, {"values": targets}).all()
            transaction.strangers = {row.vote_id: row._asdict() for row in found}
        return transaction

    def place(self, vote: VoteRow, ledger: Ledger) -> VoteRow:
        key, voted_at = vote["idempotency_key"], vote["voted_at"]
        if key in self.recorded:
            return self._find_stored_vote(vote)
        if vote["comparison_id"] not in self.published:
            raise UnknownComparison(
                f"Vote {key!r}: comparison {vote['comparison_id']!r} was never published. "
                "Publish it first, or correct the id."
            )
        if voted_at is not None and voted_at.date() > self.received_at.date() + timedelta(days=1):
            raise _date_error(key, voted_at)
        self.cards.check(vote)
        row = self._complete_row(vote, ledger)
        self._remember(row)
        self.recorded[key] = row
        self.new_rows.append(row)
        ledger.append(
            actor=row["annotator_id"],
            action=VOTE_CAST,
            object_id=row["vote_id"],
            digest=row_digest(votes, row),
            at=self.received_at,
        )
        return row

    def _find_stored_vote(self, vote: VoteRow) -> VoteRow:
        row = self.recorded[vote["idempotency_key"]]
        if row["vote_id"] != vote["vote_id"]:
            raise IdempotencyConflict(
                f"Idempotency key {vote['idempotency_key']!r} already belongs to vote "
                f"{row['vote_id']} with another body. Send a new key for a new vote, or repeat the "
                "first body unchanged."
            )
        return row

    def _complete_row(self, vote: VoteRow, ledger: Ledger) -> VoteRow:
        turns = self.turns.get(_judge(vote), [])
        target = (
            self._find_superseded_vote(vote, turns)
            if vote["supersedes"]
            else _find_latest_undo(vote, turns)
        )
        counting = target or max(turns, key=_turn_key, default=None)
        return {
            **vote,
            "seq": ledger.next_vote_seq(),
            "supersedes": target["vote_id"] if target else None,
            "day": (vote["voted_at"] or self.received_at).date().isoformat(),
            "received_at": self.received_at,
            "pass_no": target["pass_no"]
            if target
            else (counting["pass_no"] + 1 if counting else 1),
            "revision_no": target["revision_no"] + 1 if target else 0,
            "displaced_day": counting["day"] if counting else None,
        }

    def _find_superseded_vote(self, vote: VoteRow, turns: list[VoteRow]) -> VoteRow:
        """The annotator's own vote on the same comparison that `vote` replaces."""
        for row in turns:
            if row["vote_id"] == vote["supersedes"]:
                if row["vote_id"] in self.superseded:
                    raise self._supersede_error(
                        vote,
                        f"it was already superseded by {self.superseded[row['vote_id']]}",
                        "Supersede that one.",
                    )
                return row
        stranger = self.strangers.get(vote["supersedes"])
        if stranger is None:
            raise self._supersede_error(vote, "there is no such vote", "Correct the id.")
        if stranger["annotator_id"] != vote["annotator_id"]:
            raise self._supersede_error(
                vote, "somebody else cast it", "Annotators supersede their own votes only."
            )
        # whose ids annotators do not know
        raise self._supersede_error(
            vote, "it is on another comparison", "Vote on the same comparison."
        )

    def _supersede_error(self, vote: VoteRow, why: str, cure: str) -> InvalidVote:
        return InvalidVote(
            f"Vote {vote['idempotency_key']!r} cannot supersede vote {vote['supersedes']!r}: "
            f"{why}. {cure}"
        )

    def _remember(self, row: VoteRow) -> None:
        self.turns.setdefault(_judge(row), []).append(row)
        if row["supersedes"]:
            self.superseded[row["supersedes"]] = row["vote_id"]


def _judge(row: VoteRow) -> tuple[str, str]:
    return row["comparison_id"], row["annotator_id"]


def _turn_key(row: VoteRow) -> tuple[int, int]:
    return row["pass_no"], row["revision_no"]


def _find_latest_undo(vote: VoteRow, turns: Sequence[VoteRow]) -> VoteRow | None:
    """If the annotator's latest vote on this card is an undo, a new vote supersedes it. The
    annotator may judge the card again on another device or a day later without knowing of the undo;
    this is not a repeat pass.
    """
    newest = max(
        (row for row in turns if row["assignment_id"] == vote["assignment_id"]),
        key=_turn_key,
        default=None,
    )
    return newest if newest is not None and is_undo(newest) else None


def read_turns(connection: Connection, pairs: Sequence[tuple[str, str]]) -> Sequence[Any]:
    """_TURN_COLUMNS of the votes of these (comparison, annotator) pairs."""
    is_sqlite = connection.dialect.name == "sqlite"
    return connection.execute(_SELECT_TURNS[is_sqlite], {"pairs": json.dumps(pairs)}).all()


def _select_turns(is_sqlite: bool) -> Select[Any]:
    """_TURN_COLUMNS of the votes of the (comparison, annotator) `pairs`, not of all votes on the
    same comparisons, which may be thousands. The pairs are one parameter read as a table, because
    SQLite uses no index for row values.
    """
    pairs = bindparam("pairs", type_=String())
    if is_sqlite:
        each = func.json_each(pairs).table_valued("value")
        asked: list[ColumnElement[str]] = [
            func.json_extract(each.c.value, f"$[{i}]") for i in (0, 1)
        ]
    else:
        each = func.json_array_elements(cast(pairs, JSON)).table_valued("value")
        asked = [each.c.value.op("->>", return_type=String())(i) for i in (0, 1)]
    return (
        select(*(votes.c[name] for name in _TURN_COLUMNS))
        .select_from(each)
        .join(votes, and_(votes.c.comparison_id == asked[0], votes.c.annotator_id == asked[1]))
    )


_SELECT_TURNS = {is_sqlite: _select_turns(is_sqlite) for is_sqlite in (True, False)}
_SELECT_PUBLISHED = select(comparisons.c.comparison_id).where(
    comparisons.c.comparison_id.in_(bindparam("values", expanding=True))
)
_SELECT_RECORDED = select(votes).where(
    votes.c.idempotency_key.in_(bindparam("values", expanding=True))
)
_SELECT_VOTES = select(votes).where(votes.c.vote_id.in_(bindparam("values", expanding=True)))

"""Records votes with seq, card and audit link, within one transaction.

A vote on a card is kept whenever it arrives: in the card's place in its offer unless somebody else
has that by then, else as an additional vote. Offers want judgements of people: a machine's vote
leaves its place to others, as a skip does.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

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

from rlhf_pipeline.core.errors import (
    AlreadyVoted,
    IdempotencyConflict,
    InvalidVote,
    NotFound,
    UnknownComparison,
)
from rlhf_pipeline.core.records import AnnotatorKind, CardKind, Choice, VoteDetails
from rlhf_pipeline.store.audit import VOTE_CAST, Ledger, row_digest
from rlhf_pipeline.store.card_draw import ANYBODY, has_free_place
from rlhf_pipeline.store.cards import fill_offers
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import cards, comparisons, offers, votes

DOUBLED = timedelta(seconds=5)  # within which an equal vote is the same one, sent twice
RELEASE_S = 600.0  # for which a card whose judgement was undone stays with the annotator

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
    "choice",
    "card_id",
    "details",
    "voted_at",
    "strength",
    "reason",
    "is_swapped",
)
EQUAL = ("choice", "strength", "reason", "is_swapped", "details")  # in votes that are sent twice


def date_error(key: str, voted_at: datetime) -> InvalidVote:
    return InvalidVote(
        f"Vote {key!r}: voted_at is {voted_at}. Votes are dated from "
        "1970-01-01 to tomorrow (UTC). Correct the clock of the device, or the column of the file."
    )


def insert_votes(
    connection: Connection, ledger: Ledger, database: Database, prepared: Sequence[VoteRow]
) -> list[VoteRow]:
    """Record votes in order within the open transaction; a known vote is returned as stored.

    Raises one of REFUSALS naming the vote; the transaction then keeps nothing.
    """
    transaction = _VoteTransaction.load(connection, database, prepared)
    placed = [transaction.place(vote, ledger) for vote in prepared]
    new = transaction.new_rows
    database.insert(connection, votes, new)
    for row in new:
        ledger.append(
            actor=row["annotator_id"],
            action=VOTE_CAST,
            object_id=row["vote_id"],
            digest=row_digest(votes, row),
            at=row["received_at"],
        )
    transaction.cards.settle(connection)
    fill_offers(connection, transaction.first_judgements)
    return placed


@dataclass
class VotedCards:
    """The cards of the votes of one transaction, kept up to date as the votes are placed."""

    database: Database
    rows: dict[str, dict[str, Any]]
    touched: dict[str, None] = field(default_factory=dict)

    @classmethod
    def load(
        cls, connection: Connection, database: Database, votes: Sequence[dict[str, Any]]
    ) -> "VotedCards":
        ids = sorted({vote["card_id"] for vote in votes} - {None})
        rows = connection.execute(_SELECT_CARDS, {"values": ids}).mappings().all() if ids else ()
        return cls(
            database,
            {
                row["card_id"]: {
                    **row,
                    "is_counted": row["state"] == "voted" and row["offered_to"] is not None,
                }
                for row in rows
            },
        )

    def check(self, vote: dict[str, Any]) -> None:
        """Raises NotFound for an unknown card or another annotator's, InvalidVote for a card of
        another comparison, AlreadyVoted.
        """
        card_id, key = vote["card_id"], vote["idempotency_key"]
        if card_id is None:
            return
        card = self.rows.get(card_id)
        if card is None or card["annotator_id"] != vote["annotator_id"]:
            raise NotFound(f"Vote {key!r}: there is no card {card_id!r} of yours. Lease one first.")
        if card["kind"] == CardKind.RATING:
            raise InvalidVote(
                f"Vote {key!r}: card {card_id!r} asks for a rating. Send it to POST ratings."
            )
        if any(card[name] != vote[name] for name in ("comparison_id", "is_swapped")):
            raise InvalidVote(
                f"Vote {key!r}: card {card_id!r} shows another comparison, or other sides. "
                "Send the vote for the comparison and sides of the card."
            )
        if card["state"] in ("voted", "skipped") and vote["supersedes"] is None:
            raise AlreadyVoted(
                f"Vote {key!r}: card {card_id!r} was already judged. To change that vote, "
                "supersede it."
            )
        skipped = "leased" if is_undo(vote) else "skipped"
        card["state"] = skipped if vote["choice"] == Choice.SKIP else "voted"
        card["is_peoples"] = vote["annotator_kind"] != AnnotatorKind.MACHINE
        self.touched[card_id] = None

    def settle(self, connection: Connection) -> None:
        """Write the states of the judged cards, and count the judgements of their offers. The card
        of an undone vote is leased a while longer.
        """
        now = self.database.clock.now()
        until = now + timedelta(seconds=RELEASE_S)
        for card in (self.rows[card_id] for card_id in self.touched):
            is_back = card["state"] == "leased"
            if card["offered_to"] is not None and not self._keep_place(connection, card, now):
                card["offered_to"] = None
            new = {
                "card": card["card_id"],
                "new_state": card["state"],
                "new_offer": card["offered_to"],
                "new_settled_at": None if is_back else now,
                "new_until": until if is_back else now,
            }
            connection.execute(_SETTLE_CARD, new)

    def _keep_place(self, connection: Connection, card: dict[str, Any], now: datetime) -> bool:
        """Count a card in or out of its offer, or return False if its place went to others. A skip
        leaves the offer to anybody; undoing it reserves the offer again.
        """
        offer = {"comparison": card["comparison_id"], "offer": card["offered_to"]}
        others = {"annotator": card["annotator_id"], "now": now}
        is_counted = card["is_counted"] and card["is_peoples"]
        if is_counted:
            if card["state"] == "voted":
                return True
            connection.execute(_COUNT_OUT, offer)
        if card["state"] == "skipped":
            connection.execute(_OPEN_TO_ANYBODY, offer)
            return True
        if card["state"] == "leased":
            return bool(is_counted or connection.execute(_RESERVE, offer | others).rowcount)
        is_machines = not card["is_peoples"]  # uncounted, or it would look like a hidden card
        return bool(is_machines or connection.execute(_COUNT_IN, offer | others).rowcount)


def is_undo(vote: dict[str, Any]) -> bool:
    """The row of a vote withdraws an earlier vote."""
    return vote["details"] is not None and "undone" in VoteDetails.from_json(vote["details"]).flags


@dataclass
class _VoteTransaction:
    """The stored rows that one transaction needs to judge its votes, kept up to date as they are
    placed.
    """

    connection: Connection
    database: Database
    received_at: datetime  # one time for all, because they are committed together
    published: set[str]
    recorded: dict[str, VoteRow]  # idempotency key -> vote
    turns: dict[tuple[str, str], list[VoteRow]]  # (comparison, annotator) -> their earlier votes
    superseded: dict[str, str]  # vote id -> the vote that superseded it
    cards: VotedCards
    new_rows: list[VoteRow] = field(default_factory=list)
    first_judgements: list[VoteRow] = field(default_factory=list)  # new rows but later turns

    @classmethod
    def load(
        cls, connection: Connection, database: Database, prepared: Sequence[VoteRow]
    ) -> "_VoteTransaction":
        keys = [vote["idempotency_key"] for vote in prepared]
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
            connection, database, database.clock.now().astimezone(UTC), published, {}, {}, {}, cards
        )
        for row in connection.execute(_SELECT_RECORDED, {"values": keys}).all():
            transaction.recorded[row.idempotency_key] = row._asdict()
        pairs = json.dumps(sorted({_judge(vote) for vote in prepared}))
        turns = _SELECT_TURNS[database.is_sqlite]
        for turn in connection.execute(turns, {"pairs": pairs}).all():
            transaction._remember(dict(zip(_TURN_COLUMNS, turn, strict=True)))
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
            raise date_error(key, voted_at)
        doubled = self._find_doubled(vote)
        if doubled is not None:
            return doubled
        self.cards.check(vote)
        row = self._complete_row(vote, ledger)
        if all(turn["choice"] == Choice.SKIP for turn in self.turns.get(_judge(row), ())):
            self.first_judgements.append(row)
        self._remember(row)
        self.recorded[key] = row
        self.new_rows.append(row)
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

    def _find_doubled(self, vote: VoteRow) -> VoteRow | None:
        """The stored vote that an equal one of the same person repeats within seconds, as a second
        click or a form sent twice does: no repeat pass, which would look like consistency. A card
        is judged once anyway.
        """
        if vote["voted_at"] is None or vote["card_id"] is not None or vote["supersedes"]:
            return None
        for turn in self.turns.get(_judge(vote), ()):
            if (
                turn["voted_at"] is not None
                and abs(turn["voted_at"] - vote["voted_at"]) <= DOUBLED
                and turn["vote_id"] not in self.superseded
                and all(turn[name] == vote[name] for name in EQUAL)
            ):
                stored = select(votes).where(votes.c.vote_id == turn["vote_id"])
                row = self.connection.execute(stored).mappings().first()
                return dict(row) if row is not None else turn  # else of this transaction
        return None

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
        key, superseded_id = vote["idempotency_key"], vote["supersedes"]
        own = [row for row in turns if row["vote_id"] == superseded_id]
        if not own:  # without saying whose it is: annotators do not know the ids of others' votes
            raise InvalidVote(
                f"Vote {key!r} cannot supersede {superseded_id!r}, which is no vote of this "
                "annotator on this comparison. Correct the id."
            )
        if superseded_id in self.superseded:
            raise InvalidVote(
                f"Vote {key!r} cannot supersede {superseded_id!r}: it was already superseded by "
                f"{self.superseded[superseded_id]}. Supersede that one."
            )
        return own[0]

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
    if not turns:
        return None
    newest = max(
        (row for row in turns if row["card_id"] == vote["card_id"]),
        key=_turn_key,
        default=None,
    )
    return newest if newest is not None and is_undo(newest) else None


def _select_turns(is_sqlite: bool) -> Select[Any]:
    """_TURN_COLUMNS of the votes of the (comparison, annotator) `pairs`, not of all votes on the
    same comparisons, which may be thousands. The pairs are one parameter read as a table, because
    SQLite uses no index for row values.
    """
    pairs = bindparam("pairs", type_=String())
    if is_sqlite:
        rows = func.json_each(pairs).table_valued("value")
        pair: list[ColumnElement[str]] = [
            func.json_extract(rows.c.value, f"$[{i}]") for i in (0, 1)
        ]
    else:
        rows = func.json_array_elements(cast(pairs, JSON)).table_valued("value")
        pair = [rows.c.value.op("->>", return_type=String())(i) for i in (0, 1)]
    return (
        select(*(votes.c[name] for name in _TURN_COLUMNS))
        .select_from(rows)
        .join(votes, and_(votes.c.comparison_id == pair[0], votes.c.annotator_id == pair[1]))
    )


_SELECT_TURNS = {is_sqlite: _select_turns(is_sqlite) for is_sqlite in (True, False)}
_SELECT_PUBLISHED = select(comparisons.c.comparison_id).where(
    comparisons.c.comparison_id.in_(bindparam("values", expanding=True))
)
_SELECT_RECORDED = select(votes).where(
    votes.c.idempotency_key.in_(bindparam("values", expanding=True))
)
_SELECT_CARDS = select(cards).where(cards.c.card_id.in_(bindparam("values", expanding=True)))
_SETTLE_CARD = (
    cards.update()
    .where(cards.c.card_id == bindparam("card"))
    .values(
        state=bindparam("new_state"),
        offered_to=bindparam("new_offer"),
        settled_at=bindparam("new_settled_at"),
        leased_until=bindparam("new_until"),
    )
)
_OF_OFFER = offers.update().where(
    offers.c.comparison_id == bindparam("comparison"), offers.c.offered_to == bindparam("offer")
)
_COUNT_IN = _OF_OFFER.where(has_free_place()).values(n_done=offers.c.n_done + 1)
_COUNT_OUT = _OF_OFFER.values(n_done=offers.c.n_done - 1)
_RESERVE = _OF_OFFER.where(has_free_place()).values(reserved_for=offers.c.offered_to)
_OPEN_TO_ANYBODY = _OF_OFFER.values(reserved_for=ANYBODY)

"""Checks and settles the cards of votes, within the transaction that casts them.

A vote on a card is kept whenever it arrives: in the card's slot unless somebody else has it by
then, else as an additional vote. Slots are judgements of people: a machine's vote leaves its slot
to others, as a skip does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, String, and_, bindparam, case, func, literal_column, or_, select

from rlhf_pipeline.errors import AlreadyVoted, InvalidVote, NotFound
from rlhf_pipeline.records import AnnotatorKind, Choice, VoteDetails
from rlhf_pipeline.store.card_queue import RESERVED_SLOTS_FROM
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import assignments, slots

RELEASE_S = 600.0  # for which a card whose vote was undone stays with the annotator


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
        ids = sorted({vote["assignment_id"] for vote in votes} - {None})
        if not ids:
            return cls(database, {})
        found = connection.execute(_WITH_IDS, {"values": ids}).all()
        return cls(database, {row.assignment_id: row._asdict() for row in found})

    def check(self, vote: dict[str, Any]) -> None:
        """Raises NotFound for an unknown card or another annotator's, InvalidVote for a card of
        another comparison, AlreadyVoted.
        """
        card_id, key = vote["assignment_id"], vote["idempotency_key"]
        if card_id is None:
            return
        card = self.rows.get(card_id)
        if card is None or card["annotator_id"] != vote["annotator_id"]:
            raise NotFound(
                f"Vote {key!r}: there is no assignment {card_id!r} of yours. Lease one first."
            )
        if any(card[name] != vote[name] for name in ("comparison_id", "is_swapped")):
            raise InvalidVote(
                f"Vote {key!r}: assignment {card_id!r} dealt another comparison, or other sides. "
                "Send the vote for the comparison and sides of the assignment."
            )
        if card["state"] in ("voted", "skipped") and vote["supersedes"] is None:
            raise AlreadyVoted(
                f"Vote {key!r}: assignment {card_id!r} was already judged. To change that vote, "
                "supersede it."
            )
        is_undone = is_undo(vote)
        card["is_skip_undone"] = is_undone and card["state"] == "skipped"
        card["state"] = (
            ("leased" if is_undone else "skipped") if vote["choice"] == Choice.SKIP else "voted"
        )
        card["is_peoples"] = vote["annotator_kind"] != AnnotatorKind.MACHINE
        self.touched[card_id] = None

    def settle(self, connection: Connection, new_rows: Sequence[dict[str, Any]]) -> None:
        """Write the states of the judged cards, and of the slots that they hold or may take
        again.
        """
        if not self.touched:
            return
        now = self.database.clock.now()
        until = now + timedelta(seconds=RELEASE_S)
        cards = [self.rows[card] for card in self.touched]
        connection.execute(
            _CARD, [{**self._card_key(c), **_card_values(c["state"], now, until)} for c in cards]
        )
        held = [c for c in cards if c["slot_no"] is not None]
        if held:
            connection.execute(
                _SLOT,
                [
                    {
                        **self._slot_key(c),
                        **_slot_values(c, until),
                        "named": self._find_reserved_annotator(connection, c),
                        "now": now,
                    }
                    for c in held
                ],
            )

    def _find_reserved_annotator(self, connection: Connection, card: dict[str, Any]) -> str | None:
        """The annotator for whom the slot of an undone skip is reserved again: the first who was
        dealt it, if the slot asks for one annotator.
        """
        if not card["is_skip_undone"] or card["slot_no"] <= RESERVED_SLOTS_FROM:
            return None
        first: str | None = connection.execute(_FIRST_DEALT, self._slot_key(card)).scalar()
        return first if first == card["annotator_id"] else None

    def _card_key(self, card: dict[str, Any]) -> dict[str, Any]:
        return {"card": card["assignment_id"]}

    def _slot_key(self, card: dict[str, Any]) -> dict[str, Any]:
        return {**self._card_key(card), "comparison": card["comparison_id"], "no": card["slot_no"]}


def is_undo(vote: dict[str, Any]) -> bool:
    """The row of a vote withdraws an earlier vote."""
    return vote["details"] is not None and "undone" in VoteDetails.from_json(vote["details"]).flags


def _card_values(state: str, now: datetime, until: datetime) -> dict[str, Any]:
    return {
        "new_state": state,
        "new_settled_at": None if state == "leased" else now,
        "new_until": until if state == "leased" else now,
    }


def _slot_values(card: dict[str, Any], until: datetime) -> dict[str, Any]:
    """A skip leaves the slot to others; the card of an undone vote holds it a while longer."""
    state = card["state"]
    if state == "skipped" or not card["is_peoples"]:
        return {"new_state": "open", "new_card": None, "new_until": None}
    is_back = state == "leased"
    return {
        "new_state": "leased" if is_back else "done",
        "new_card": card["assignment_id"],
        "new_until": until if is_back else None,
    }


_WITH_IDS = select(assignments).where(
    assignments.c.assignment_id.in_(bindparam("values", expanding=True))
)
_CARD = (
    assignments.update()
    .where(
        assignments.c.assignment_id == bindparam("card"),
    )
    .values(
        state=bindparam("new_state"),
        settled_at=bindparam("new_settled_at"),
        leased_until=bindparam("new_until"),
    )
)
_SLOT = (
    slots.update()
    .where(
        slots.c.comparison_id == bindparam("comparison"),
        slots.c.slot_no == bindparam("no"),
        or_(
            slots.c.assignment_id == bindparam("card"),
            slots.c.state == "open",
            and_(slots.c.state == "leased", slots.c.leased_until <= bindparam("now")),
        ),
    )
    .values(
        state=bindparam("new_state"),
        assignment_id=bindparam("new_card"),
        leased_until=bindparam("new_until"),
        # A card that a named annotator skips is open to anybody, until they undo the skip
        # back.
        annotator_id=case(
            (bindparam("new_state") == literal_column("'open'"), None),
            else_=func.coalesce(bindparam("named", type_=String()), slots.c.annotator_id),
        ),
    )
)
_FIRST_DEALT = (
    select(assignments.c.annotator_id)
    .where(
        assignments.c.comparison_id == bindparam("comparison"),
        assignments.c.slot_no == bindparam("no"),
    )
    .order_by(assignments.c.leased_at)
    .limit(1)
)

"""Settles cards that ask for a rating; the rating itself is feedback."""

from datetime import timedelta
from typing import Literal

from sqlalchemy import select

from rlhf_pipeline.core.errors import AlreadyVoted
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.casting import RELEASE_S
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import cards


class Ratings(Repository):
    """The states of rating cards, each change an audited act."""

    def settle(
        self, card_id: str, state: Literal["rated", "skipped", "leased"], *, actor: str
    ) -> None:
        """Give a rating card its state after a rating, a skip, or the undo of one, which leases it
        a while longer. A skip may be repeated. Raises AlreadyVoted for a card that is settled
        otherwise.
        """
        now = self._database.clock.now()
        own = cards.c.card_id == card_id
        with audited_transaction(self._database) as (connection, ledger):
            old = connection.execute(select(cards.c.state).where(own)).scalar_one()
            is_undo = state == "leased"
            if old == state != "rated":
                return
            if old in ("rated", "skipped") and not is_undo:
                raise AlreadyVoted(
                    f"Card {card_id!r} was {old} already. Undo that first, or rate the next card."
                )
            values = {
                "state": state,
                "settled_at": None if is_undo else now,
                "leased_until": now + timedelta(seconds=RELEASE_S if is_undo else 0),
            }
            connection.execute(cards.update().where(own).values(values))
            ledger.append(
                actor=actor,
                action=f"card.{state}",
                object_id=card_id,
                digest=content_hash([card_id, state]),
            )

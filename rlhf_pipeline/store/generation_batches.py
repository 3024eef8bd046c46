"""Batches of the work ledger: a row before each is submitted, so that it is found after a crash."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, delete, or_, select, update
from sqlalchemy.sql import ColumnElement

from rlhf_pipeline.protocols import BATCH_PREFIX, Claim, Lane, LedgerBatch
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import generation_batches as batches
from rlhf_pipeline.store.schema import generation_items as items

RELEASED: dict[str, Any] = {"state": "open", "owner": None, "leased_until": None}


def is_held_by_batch(table: Any) -> ColumnElement[bool]:
    """Whether a leased item is in a batch; such a lease does not expire."""
    held: ColumnElement[bool] = table.c.owner.startswith(BATCH_PREFIX)
    return held


class LedgerBatches:
    """The batches of `GenerationLedger`. Items of a batch are leased to it by its submission id."""

    _database: Database
    _lease: timedelta
    _update_in_batches: Callable[..., Iterator[int]]
    _count_earlier_attempts: Callable[..., dict[int, int]]

    def prepare_batch(self, run_id: str, owner: str, lane: Lane, submission_id: str) -> list[int]:
        row = {
            "submission_id": submission_id,
            "run_id": run_id,
            "provider": lane[0],
            "model": lane[1],
            "submitted_at": None,
            "batch_id": None,
            "owner": owner,
            "leased_until": self._database.clock.now() + self._lease,
        }
        mine = and_(
            self._is_leased_to(run_id, owner), items.c.provider == lane[0], items.c.model == lane[1]
        )
        held = select(items.c.item_no).where(self._is_leased_to(run_id, submission_id))
        with self._database.write_transaction() as connection:
            self._database.insert(connection, batches, [row])
            moved = {"owner": submission_id, "leased_until": None}
            connection.execute(update(items).where(mine).values(moved))
            return list(connection.execute(held).scalars())

    def begin_batch(self, submission_id: str) -> None:
        self._update_batch(submission_id, submitted_at=self._database.clock.now())

    def name_batch(self, submission_id: str, batch_id: str) -> None:
        self._update_batch(submission_id, batch_id=batch_id)

    def return_batch(self, submission_id: str) -> None:
        is_batch = self._is_batch(submission_id)
        with self._database.read_transaction() as connection:
            run_id = connection.execute(select(batches.c.run_id).where(is_batch)).scalar_one()
        for _ in self._update_in_batches(self._is_leased_to(run_id, submission_id), RELEASED):
            pass
        with self._database.write_transaction() as connection:
            connection.execute(delete(batches).where(is_batch))

    def take_batches(
        self, run_id: str, owner: str, lane: Lane, *, is_dead: Callable[[str], bool]
    ) -> list[LedgerBatch]:
        now = self._database.clock.now()
        held = select(items.c.item_no).where(self._is_leased_to(run_id, batches.c.submission_id))
        wanted = select(batches).where(
            batches.c.run_id == run_id,
            batches.c.provider == lane[0],
            batches.c.model == lane[1],
            or_(batches.c.submitted_at.is_(None), held.exists()),
        )
        with self._database.read_transaction() as connection:
            known = connection.execute(wanted).all()
        # A lease that ends later than possible was recorded by a clock that has jumped back since.
        free = [
            row
            for row in known
            if row.owner is None
            or not now <= row.leased_until <= now + 2 * self._lease
            or (row.owner != owner and is_dead(row.owner))
        ]
        return [batch for row in free if (batch := self._take(run_id, owner, row, now)) is not None]

    def _take(self, run_id: str, owner: str, row: Any, now: datetime) -> LedgerBatch | None:
        """The batch, now followed by this owner; None if another was faster or it was never
        submitted.
        """
        is_as_read = and_(
            self._is_batch(row.submission_id),
            batches.c.owner.is_(None) if row.owner is None else batches.c.owner == row.owner,
        )
        taken = {"owner": owner, "leased_until": now + self._lease}
        with self._database.write_transaction() as connection:
            if not connection.execute(update(batches).where(is_as_read).values(taken)).rowcount:
                return None
        if row.submitted_at is None:
            self.return_batch(row.submission_id)
            return None
        wanted = (
            select(items.c.item_no, items.c.n_attempts, items.c.n_faults, items.c.settled_at)
            .where(self._is_leased_to(run_id, row.submission_id))
            .order_by(items.c.item_no)
        )
        with self._database.read_transaction() as connection:
            held = connection.execute(wanted).all()
            before = self._count_earlier_attempts(connection, run_id, held)
        claims = [
            Claim(i.item_no, i.n_attempts, i.n_faults, before.get(i.item_no, 0)) for i in held
        ]
        return LedgerBatch(row.submission_id, row.batch_id, claims, row.submitted_at)

    def _renew_batches(self, connection: Connection, owner: str, now: datetime) -> None:
        mine = batches.c.owner == owner
        connection.execute(update(batches).where(mine).values(leased_until=now + self._lease))

    def _leave_batches(self, owner: str) -> None:
        mine = batches.c.owner == owner
        with self._database.write_transaction() as connection:
            connection.execute(update(batches).where(mine).values(owner=None, leased_until=None))

    def _update_batch(self, submission_id: str, **values: Any) -> None:
        with self._database.write_transaction() as connection:
            connection.execute(update(batches).where(self._is_batch(submission_id)).values(values))

    def _is_batch(self, submission_id: str) -> ColumnElement[bool]:
        return batches.c.submission_id == submission_id

    def _is_leased_to(self, run_id: str, owner: Any) -> ColumnElement[bool]:
        return and_(
            items.c.run_id == run_id,
            items.c.state == "leased",
            items.c.owner == owner,
        )

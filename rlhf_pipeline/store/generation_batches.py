"""Batches of the work ledger: a row before each is submitted, so that it is found after a crash."""

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import and_, delete, select, update
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
    _update_in_batches: Callable[..., Iterator[int]]
    _count_earlier_attempts: Callable[..., dict[int, int]]

    def begin_batch(self, run_id: str, owner: str, lane: Lane, submission_id: str) -> list[int]:
        row = {
            "submission_id": submission_id,
            "run_id": run_id,
            "provider": lane[0],
            "model": lane[1],
            "submitted_at": self._database.clock.now(),
            "batch_id": None,
        }
        mine = and_(
            items.c.run_id == run_id,
            items.c.state == "leased",
            items.c.owner == owner,
            items.c.provider == lane[0],
            items.c.model == lane[1],
        )
        moved = {"owner": submission_id, "leased_until": None}
        with self._database.write_transaction() as connection:
            self._database.insert(connection, batches, [row])
            held = list(connection.execute(select(items.c.item_no).where(mine)).scalars())
            connection.execute(update(items).where(mine).values(moved))
        return held

    def name_batch(self, submission_id: str, batch_id: str) -> None:
        at = batches.c.submission_id == submission_id
        with self._database.write_transaction() as connection:
            connection.execute(update(batches).where(at).values(batch_id=batch_id))

    def return_batch(self, run_id: str, submission_id: str) -> None:
        mine = and_(items.c.run_id == run_id, items.c.owner == submission_id)
        for _ in self._update_in_batches(mine, RELEASED):
            pass
        with self._database.write_transaction() as connection:
            connection.execute(delete(batches).where(batches.c.submission_id == submission_id))

    def read_batches(self, run_id: str, lane: Lane) -> list[LedgerBatch]:
        held = and_(
            items.c.run_id == run_id,
            items.c.state == "leased",
            items.c.owner == batches.c.submission_id,
        )
        of_item = ("item_no", "n_attempts", "n_faults", "settled_at")
        wanted = (
            select(batches, *(items.c[name] for name in of_item))
            .join(items, held)
            .where(batches.c.provider == lane[0], batches.c.model == lane[1])
            .order_by(items.c.item_no)
        )
        with self._database.read_transaction() as connection:
            rows = connection.execute(wanted).all()
            before = self._count_earlier_attempts(connection, run_id, rows)
        claims: dict[Any, list[Claim]] = {}
        for row in rows:
            claim = Claim(row.item_no, row.n_attempts, row.n_faults, before.get(row.item_no, 0))
            claims.setdefault((row.submission_id, row.batch_id, row.submitted_at), []).append(claim)
        return [LedgerBatch(name, known, at, mine) for (name, known, at), mine in claims.items()]

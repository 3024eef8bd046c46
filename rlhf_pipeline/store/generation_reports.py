"""Reads runs, items and calls of the work ledger."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, select, true

from rlhf_pipeline.core.protocols import LedgerSettlement, Spending
from rlhf_pipeline.store.generation_spending import LedgerSpending, sum_columns
from rlhf_pipeline.store.schema import generation_attempts as calls
from rlhf_pipeline.store.schema import generation_items as items
from rlhf_pipeline.store.schema import generation_runs as runs
from rlhf_pipeline.store.schema import generation_spending as spending

PAGE = 5_000  # items read at once


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as listed: its request, and its items by state."""

    run_id: str
    asset: str
    n_items: int
    record: str
    origin: str | None
    started_at: datetime
    ended_at: datetime | None
    paused_until: datetime | None
    pause_reason: str | None
    states: Mapping[str, int]
    spent: Spending


class LedgerReports(LedgerSpending):
    """The reports of `GenerationLedger`."""

    def item_states(self, run_id: str) -> Iterator[LedgerSettlement]:
        columns = [items.c[name] for name in LedgerSettlement.__dataclass_fields__]
        last = -1
        while True:  # in pages, so that a slow reader holds no transaction open
            at = and_(self._is_of_run(items, run_id), items.c.item_no > last)
            with self._database.read_transaction() as connection:
                rows = connection.execute(
                    select(*columns).where(at).order_by(items.c.item_no).limit(PAGE)
                ).all()
            yield from (LedgerSettlement(*row) for row in rows)
            if len(rows) < PAGE:
                return
            last = rows[-1].item_no

    def read_calls(self, run_id: str) -> Iterable[dict[str, Any]]:
        """Every call of a run with its item, in order."""
        more = [items.c[name] for name in ("prompt_id", "sample_index", "params", "cache_key")]
        joined = calls.join(
            items, and_(items.c.run_id == calls.c.run_id, items.c.item_no == calls.c.item_no)
        )
        query = (
            select(*calls.c, *more)
            .select_from(joined)
            .where(self._is_of_run(calls, run_id))
            .order_by(calls.c.item_no, calls.c.attempt_no)
        )
        with self._database.read_transaction() as connection:
            for row in connection.execute(query).mappings():
                yield dict(row)

    def paused_runs(self) -> list[RunRow]:
        """Runs that wait for a provider, the one that may resume first in front."""
        return sorted(
            self.list_runs(is_paused=True), key=lambda run: run.paused_until or run.started_at
        )

    def list_runs(self, *, is_paused: bool = False) -> list[RunRow]:
        """Newest first."""
        which = runs.c.paused_until.is_not(None) if is_paused else true()
        with self._database.read_transaction() as connection:
            rows = connection.execute(
                select(runs).where(which).order_by(runs.c.started_at.desc())
            ).all()
            if not rows:
                return []
            counted = select(items.c.run_id, items.c.state, func.count()).group_by(
                items.c.run_id, items.c.state
            )
            states: dict[str, dict[str, int]] = {}
            for run_id, state, n in connection.execute(counted):
                states.setdefault(run_id, {})[state] = n
            query = select(spending.c.run_id, *sum_columns()).group_by(spending.c.run_id)
            sums = {row[0]: Spending(*map(int, row[1:])) for row in connection.execute(query)}
        return [
            RunRow(
                r.run_id,
                r.asset,
                r.n_items,
                r.record,
                r.origin,
                r.started_at,
                r.ended_at,
                r.paused_until,
                r.pause_reason,
                states.get(r.run_id, {}),
                sums.get(r.run_id, Spending()),
            )
            for r in rows
        ]

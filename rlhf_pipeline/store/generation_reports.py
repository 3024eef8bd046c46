"""Reads runs, items and calls of the work ledger, and keeps the sums of its spending."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection, Table, and_, func, select, true, update
from sqlalchemy.sql import ColumnElement

from rlhf_pipeline.core.protocols import Budget, BudgetShortfall, Lane, LedgerSettlement, Spending
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import generation_attempts as calls
from rlhf_pipeline.store.schema import generation_items as items
from rlhf_pipeline.store.schema import generation_runs as runs
from rlhf_pipeline.store.schema import generation_spending as spending

SUMS = tuple(Spending.__dataclass_fields__)


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


class LedgerReports:
    """The reports and the spending of `GenerationLedger`."""

    _database: Database

    def spending(self, run_id: str) -> dict[Lane, Spending]:
        with self._database.read_transaction() as connection:
            rows = connection.execute(
                select(spending.c.provider, spending.c.model, *sum_columns())
                .where(self._is_of_run(spending, run_id))
                .group_by(spending.c.provider, spending.c.model)
            )
            return {(row[0], row[1]): Spending(*map(int, row[2:])) for row in rows}

    def sum_spending(
        self, *by: str, day: date | None = None
    ) -> list[tuple[tuple[str, ...], Spending]]:
        """Spending of the project, by any of `asset`, `provider`, `model`, `run_id` and `day`; with
        `day`, of that day alone.
        """
        columns = [spending.c[name] for name in by]
        query = (
            select(*columns, *sum_columns())
            .where(
                *([spending.c.day == day.isoformat()] if day else []),
            )
            .group_by(*columns)
            .order_by(*columns)
        )
        with self._database.read_transaction() as connection:
            return [
                (tuple(row[: len(by)]), Spending(*(int(n or 0) for n in row[len(by) :])))
                for row in connection.execute(query)
            ]

    def _spend(
        self, connection: Connection, run_id: str, rows: Sequence[Mapping[str, Any]], now: datetime
    ) -> None:
        """Add calls to the sums of their day. Nothing else changes these, so they equal the sums
        of the calls.
        """
        by_lane: dict[Lane, dict[str, int]] = {}
        for row in rows:
            sums = by_lane.setdefault((row["provider"], row["model"]), dict.fromkeys(SUMS, 0))
            is_unknown = row["billing"] == "unknown"
            sums["n_calls"] += row["outcome"] != "lost"
            sums["n_unknown"] += is_unknown
            sums["n_prompt_tokens"] += row["n_prompt_tokens"]
            sums["n_tokens"] += row["n_tokens"]
            sums["cost_unknown" if is_unknown else "cost"] += row["cost"]
        day = now.date().isoformat()
        for (provider, model), sums in by_lane.items():
            at = and_(
                self._is_of_run(spending, run_id),
                spending.c.day == day,
                spending.c.provider == provider,
                spending.c.model == model,
            )
            added = connection.execute(
                update(spending).where(at).values({n: spending.c[n] + v for n, v in sums.items()})
            )
            if added.rowcount == 0:
                asset = connection.execute(
                    select(runs.c.asset).where(self._is_of_run(runs, run_id))
                ).scalar_one()
                row = {
                    "run_id": run_id,
                    "day": day,
                    "provider": provider,
                    "model": model,
                    "asset": asset,
                    **sums,
                }
                self._database.insert(connection, spending, [row])

    def _remaining_budgets(
        self, connection: Connection, run_id: str, lane: Lane, budget: Budget, now: datetime
    ) -> list[tuple[int, BudgetShortfall]]:
        """For each budget the remaining billionths of the currency, first less the reserves of
        running calls, then in full.
        """
        scopes: tuple[tuple[str, int | None, ColumnElement[bool], ColumnElement[bool]], ...] = (
            ("this run", budget.run, spending.c.run_id == run_id, items.c.run_id == run_id),
            (
                "this day",
                budget.day,
                spending.c.day == now.date().isoformat(),
                items.c.run_id.is_not(None),
            ),
            (
                f"provider {lane[0]}",
                budget.provider,
                spending.c.provider == lane[0],
                items.c.provider == lane[0],
            ),
        )
        rooms: list[tuple[int, BudgetShortfall]] = []
        for name, most, is_spent, is_reserved in scopes:
            if most is None:
                continue
            paid = select(func.sum(spending.c.cost + spending.c.cost_unknown)).where(is_spent)
            under_way = select(func.sum(items.c.reserved)).where(
                items.c.state == "leased", is_reserved
            )
            spent, reserved = (
                int(connection.execute(query).scalar() or 0) for query in (paid, under_way)
            )
            why = (
                f"the budget of {name} ({_format_money(most)}) has "
                f"{_format_money(max(0, most - spent))} left; the next call may cost more"
            )
            rooms.append((most - spent - reserved, BudgetShortfall(most - spent, why)))
        return rooms

    def _is_of_run(self, table: Table, run_id: str) -> ColumnElement[bool]:
        return table.c.run_id == run_id

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


def sum_columns() -> list[ColumnElement[Any]]:
    return [func.sum(spending.c[name]).label(name) for name in SUMS]


def _format_money(billionths: int) -> str:
    return f"{billionths / 1e9:.6g}"

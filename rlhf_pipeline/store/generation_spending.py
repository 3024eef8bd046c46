"""Cost accounting of the work ledger: spending by day, and remaining budgets."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection, Table, and_, func, or_, select, update
from sqlalchemy.sql import ColumnElement

from rlhf_pipeline.core.protocols import Budget, BudgetShortfall, Lane, Spending
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import generation_items as items
from rlhf_pipeline.store.schema import generation_runs as runs
from rlhf_pipeline.store.schema import generation_spending as spending

SUMS = tuple(Spending.__dataclass_fields__)


class LedgerSpending:
    """The spending of `GenerationLedger`."""

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
                items.c.state == "leased",
                # Another run's batch may take a day: do not wait for the release of its reserve.
                or_(items.c.leased_until.is_not(None), items.c.run_id == run_id),
                is_reserved,
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


def sum_columns() -> list[ColumnElement[Any]]:
    return [func.sum(spending.c[name]).label(name) for name in SUMS]


def _format_money(billionths: int) -> str:
    return f"{billionths / 1e9:.6g}"

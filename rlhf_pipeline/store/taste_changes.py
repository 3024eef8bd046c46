"""Confirmed changes of taste, recorded by a decision or a person; retracted, never deleted."""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from sqlalchemy import Connection, select

from rlhf_pipeline.core.errors import NotFound, StoreError
from rlhf_pipeline.core.records import TasteChange
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.engine import Database, Repository
from rlhf_pipeline.store.schema import comparisons, taste_changes

ADD, RETRACT = "taste_change.add", "taste_change.retract"


class TasteChangeLog(Repository):
    """Every change of taste of a project, retracted ones included; ids count from 1."""

    def all(self) -> list[TasteChange]:
        """Oldest record first."""
        query = select(taste_changes).order_by(taste_changes.c.change_id)
        return [_build_change(row) for row in self._database.fetch_mappings(query)]

    def add(
        self, change_seq: int, *, cause: str, actor: str, category: str | None = None
    ) -> TasteChange:
        """Record a change that a person reports. Raises StoreError for an unknown vote or
        category.
        """
        with audited_transaction(self._database) as (connection, ledger):
            if not 1 <= change_seq <= ledger.vote_seq:
                raise StoreError(
                    f"There is no vote {change_seq}; the last one is {ledger.vote_seq}. Name the "
                    "first vote of the new taste."
                )
            if category is not None:
                self._require_category(connection, category)
            return record_change(
                self._database,
                connection,
                ledger,
                change_seq=change_seq,
                category=category,
                cause=cause,
                actor=actor,
            )

    def retract(self, change_id: int, *, reason: str, actor: str) -> TasteChange:
        """Mark a change as a false alarm: later fits ignore it. Raises NotFound for an unknown id,
        StoreError for a retracted one.
        """
        this = taste_changes.c.change_id == change_id
        with audited_transaction(self._database) as (connection, ledger):
            row = connection.execute(select(taste_changes).where(this)).mappings().one_or_none()
            if row is None:
                raise NotFound(
                    f"There is no change of taste {change_id}. `rlhf changes list` shows all."
                )
            if row["retracted_at"] is not None:
                raise StoreError(
                    f"Change {change_id} was retracted on {row['retracted_at']:%Y-%m-%d} by "
                    f"{row['retracted_by']}: {row['retraction_reason']}."
                )
            values = {
                "retracted_at": self._database.clock.now().astimezone(UTC),
                "retracted_by": actor,
                "retraction_reason": reason,
            }
            connection.execute(taste_changes.update().where(this).values(values))
            retracted = {**row, **values}
            _link(ledger, retracted, action=RETRACT, actor=actor)
        return _build_change(retracted)

    def _require_category(self, connection: Connection, category: str) -> None:
        query = (
            select(comparisons.c.comparison_id).where(comparisons.c.category == category).limit(1)
        )
        if connection.execute(query).one_or_none() is None:
            raise StoreError(
                f"No comparison is of category {category!r}. Name one that has comparisons, or "
                "none for all categories."
            )


def record_change(
    database: Database,
    connection: Connection,
    ledger: Ledger,
    *,
    change_seq: int,
    cause: str,
    actor: str,
    category: str | None = None,
    decision_id: int | None = None,
) -> TasteChange:
    """Insert a change and its audit link within a transaction of the caller's."""
    change = TasteChange(
        change_id=database.next_number(connection, taste_changes.c.change_id),
        change_seq=change_seq,
        category=category,
        cause=cause,
        decision_id=decision_id,
        actor=actor,
        recorded_at=database.clock.now().astimezone(UTC),
    )
    row = change.model_dump()
    database.insert(connection, taste_changes, [row])
    _link(ledger, row, action=ADD, actor=actor)
    return change


def _link(ledger: Ledger, row: Mapping[str, Any], *, action: str, actor: str) -> None:
    ledger.append(
        actor=actor,
        action=action,
        object_id=str(row["change_id"]),
        digest=row_digest(taste_changes, row),
    )


def _build_change(row: Any) -> TasteChange:
    return TasteChange.model_validate({name: row[name] for name in TasteChange.model_fields})

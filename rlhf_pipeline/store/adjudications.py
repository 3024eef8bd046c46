"""Experts' decisions on disputed comparisons; undone by a further row, never changed."""

from collections.abc import Sequence
from datetime import UTC
from typing import Literal

from sqlalchemy import ColumnElement, Connection, Select, func, select

from rlhf_pipeline.core.errors import NotFound, UnknownComparison
from rlhf_pipeline.core.records import Adjudication, content_hash
from rlhf_pipeline.store.audit import Ledger, audited_transaction
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import adjudications, comparisons

Decided = Literal["a", "b", "tie", "both_bad"]


class Adjudications(Repository):
    """The newest decision on a comparison stands, unless it was undone."""

    def add(self, comparison_id: str, choice: Decided, *, reason: str, actor: str) -> Adjudication:
        """Decide on a comparison; an earlier decision no longer stands. Raises
        UnknownComparison.
        """
        with audited_transaction(self._database) as (connection, ledger):
            query = select(comparisons.c.comparison_id).where(
                comparisons.c.comparison_id == comparison_id
            )
            if connection.execute(query).one_or_none() is None:
                raise UnknownComparison(
                    f"Comparison {comparison_id!r} was never published here. Correct the id."
                )
            return self._add(connection, ledger, comparison_id, choice, reason, actor)

    def undo(self, comparison_id: str, *, reason: str, actor: str) -> Adjudication:
        """Take back the standing decision. Raises NotFound without one."""
        with audited_transaction(self._database) as (connection, ledger):
            last = connection.execute(self._select_standing([comparison_id])).one_or_none()
            if last is None:
                raise NotFound(
                    f"No decision stands on comparison {comparison_id!r}. There is nothing to undo."
                )
            return self._add(connection, ledger, comparison_id, None, reason, actor)

    def standing(
        self, comparison_ids: Sequence[str], *, up_to_seq: int | None = None
    ) -> dict[str, Adjudication]:
        """The decisions that stand on these comparisons; with `up_to_seq` as of that vote."""
        rows = self._database.fetch_among(
            self._select_standing(up_to_seq=up_to_seq),
            adjudications.c.comparison_id,
            comparison_ids,
        )
        return {row.comparison_id: Adjudication.model_validate(dict(row._mapping)) for row in rows}

    def page(self, *, before_id: int | None = None, limit: int = 50) -> list[Adjudication]:
        """The standing decisions, the newest first; the next page is `before_id` the last one's."""
        query = self._select_standing().order_by(adjudications.c.adjudication_id.desc())
        if before_id is not None:
            query = query.where(adjudications.c.adjudication_id < before_id)
        rows = self._database.fetch_mappings(query.limit(limit))
        return [Adjudication.model_validate(dict(row)) for row in rows]

    def _select_standing(
        self, comparison_ids: Sequence[str] | None = None, *, up_to_seq: int | None = None
    ) -> Select[tuple[object, ...]]:
        mine: list[ColumnElement[bool]] = []
        if up_to_seq is not None:
            mine.append(adjudications.c.at_seq <= up_to_seq)
        if comparison_ids is not None:
            mine.append(adjudications.c.comparison_id.in_(comparison_ids))
        newest = (
            select(func.max(adjudications.c.adjudication_id))
            .where(*mine)
            .group_by(adjudications.c.comparison_id)
        )
        return select(*(adjudications.c[name] for name in Adjudication.model_fields)).where(
            *mine,
            adjudications.c.adjudication_id.in_(newest),
            adjudications.c.choice.is_not(None),
        )

    def _add(
        self,
        connection: Connection,
        ledger: Ledger,
        comparison_id: str,
        choice: Decided | None,
        reason: str,
        actor: str,
    ) -> Adjudication:
        adjudication = Adjudication(
            adjudication_id=self._database.next_number(connection, adjudications.c.adjudication_id),
            comparison_id=comparison_id,
            choice=choice,
            reason=reason,
            at_seq=ledger.vote_seq,
            decided_by=actor,
            decided_at=self._database.clock.now().astimezone(UTC),
        )
        self._database.insert(connection, adjudications, [adjudication.model_dump()])
        ledger.append(
            actor=actor,
            action="consensus.decide" if choice else "consensus.undo",
            object_id=comparison_id,
            digest=content_hash(adjudication.model_dump(mode="json")),
        )
        return adjudication

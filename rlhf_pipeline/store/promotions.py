"""Decisions of the gate, and the history of champions: version, time, actor and reason."""

from sqlalchemy import select

from rlhf_pipeline.core.records import GateDecision, Promotion, content_hash
from rlhf_pipeline.store.audit import audited_transaction, row_digest
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import gates, promotions


class Promotions(Repository):
    """Append-only history per model name."""

    def record(self, promotion: Promotion) -> bool:
        """Store a promotion; returns False and stores nothing if that version is champion
        already.
        """
        with audited_transaction(self._database) as (connection, ledger):
            of_model = promotions.c.model_name == promotion.model_name
            newest = (
                select(promotions.c.version)
                .where(of_model)
                .order_by(promotions.c.promotion_id.desc())
                .limit(1)
            )
            if connection.execute(newest).scalar() == promotion.version:
                return False
            number = self._database.next_number(connection, promotions.c.promotion_id)
            columns = promotion.model_dump(include={"model_name", "version", "promoted_at"})
            record = json_of(promotion, "The promotion")
            self._database.insert(
                connection, promotions, [{**columns, "promotion_id": number, "record": record}]
            )
            label = promotion.label
            ledger.append(
                actor=promotion.actor,
                action="model.promote",
                object_id=label,
                digest=content_hash(record),
            )
        return True

    def champion(self, model_name: str) -> Promotion | None:
        """The latest promotion; None before the first."""
        return next(iter(self.history(model_name)[-1:]), None)

    def history(self, model_name: str) -> list[Promotion]:
        """Oldest first."""
        query = (
            select(promotions.c.record)
            .where(promotions.c.model_name == model_name)
            .order_by(promotions.c.promotion_id)
        )
        return [Promotion.from_json(text) for text in self._database.fetch_scalars(query)]


class Gates(Repository):
    """Append-only."""

    def record(self, decision: GateDecision) -> int:
        """Store a decision with its checks and evaluation; returns its number. Raises InvalidScores
        for NaN.
        """
        text = json_of(decision, f"Gate decision on {decision.candidate}")
        with audited_transaction(self._database) as (connection, ledger):
            number = self._database.next_number(connection, gates.c.gate_id)
            row = {
                "gate_id": number,
                "candidate": decision.candidate,
                "decided_at": decision.decided_at,
                "record": text,
            }
            self._database.insert(connection, gates, [row])
            ledger.append(
                actor="pipeline",
                action="gate.decide",
                object_id=str(number),
                digest=row_digest(gates, row),
            )
        return number

    def latest(self) -> GateDecision | None:
        query = select(gates.c.record).order_by(gates.c.gate_id.desc()).limit(1)
        text = self._database.fetch_scalar(query)
        return None if text is None else GateDecision.from_json(text)

    def all(self) -> list[GateDecision]:
        """Oldest first."""
        query = select(gates.c.record).order_by(gates.c.gate_id)
        return [GateDecision.from_json(text) for text in self._database.fetch_scalars(query)]

"""The gate's decision about each candidate."""

from sqlalchemy import select

from rlhf_pipeline.records import GateDecision, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import gates


class Gates:
    """Append-only."""

    def __init__(self, database: Database):
        self._database = database

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
                object_id=decision.candidate,
                digest=content_hash(text),
            )
        return number

    def all(self) -> list[GateDecision]:
        """Oldest first."""
        wanted = (
            select(gates.c.record).where(self._database.in_project(gates)).order_by(gates.c.gate_id)
        )
        return [GateDecision.from_json(text) for text in self._database.fetch_scalars(wanted)]

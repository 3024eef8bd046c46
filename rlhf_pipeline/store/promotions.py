"""Decisions of the gate, the history of champions, and the acts of releases."""

from sqlalchemy import Connection, func, select

from rlhf_pipeline.core.errors import NotFound, ReleaseConflict
from rlhf_pipeline.core.records import GateDecision, Promotion, content_hash
from rlhf_pipeline.core.releases import ReleaseAct
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database, Repository
from rlhf_pipeline.store.schema import gates, promotions, release_acts


class Promotions(Repository):
    """Append-only history per model name."""

    def record(self, promotion: Promotion, approval: ReleaseAct | None = None) -> bool:
        """Store a promotion and the approval behind it, or neither; returns False and stores
        nothing if that version is champion already. Raises ReleaseConflict if the champion is not
        the one that it replaces, as for the second of two approvals at once.
        """
        with audited_transaction(self._database) as (connection, ledger):
            of_model = promotions.c.model_name == promotion.model_name
            newest = (
                select(promotions.c.version)
                .where(of_model)
                .order_by(promotions.c.promotion_id.desc())
                .limit(1)
            )
            champion = connection.execute(newest).scalar()
            if champion == promotion.version and approval is None:
                return False
            if champion != promotion.previous_version:
                now = "nothing is" if champion is None else f"version {champion} is"
                raise ReleaseConflict(
                    f"{promotion.label} was to replace version {promotion.previous_version}, but "
                    f"{now} deployed now. Look at it, then deploy again."
                )
            if approval is not None:
                approval = _insert_act(self._database, connection, ledger, approval)
                promotion = promotion.model_copy(update={"request_id": approval.request_id})
            number = self._database.next_number(connection, promotions.c.promotion_id)
            columns = promotion.model_dump(include={"model_name", "version", "promoted_at"})
            record = json_of(promotion, "The promotion")
            self._database.insert(
                connection, promotions, [{**columns, "promotion_id": number, "record": record}]
            )
            label = promotion.label
            ledger.append(
                actor=promotion.actor,
                action="model.roll_back" if promotion.rolls_back else "model.promote",
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


class ReleaseActs(Repository):
    """Append-only: requests to deploy, their answers, and archived versions."""

    def add(self, act: ReleaseAct) -> ReleaseAct:
        """Returns it with its number. Raises ReleaseConflict for a second answer."""
        with audited_transaction(self._database) as (connection, ledger):
            return _insert_act(self._database, connection, ledger, act)

    def all(self, model_name: str | None = None) -> list[ReleaseAct]:
        """Of one name or of all, oldest first."""
        query = select(release_acts.c.record).order_by(release_acts.c.act_id)
        if model_name is not None:
            query = query.where(release_acts.c.model_name == model_name)
        return [ReleaseAct.from_json(text) for text in self._database.fetch_scalars(query)]

    def request(self, act_id: int) -> ReleaseAct:
        """Raises NotFound."""
        query = select(release_acts.c.record).where(
            release_acts.c.act_id == act_id, release_acts.c.act == "request"
        )
        text = self._database.fetch_scalar(query)
        if text is None:
            raise NotFound(f"There is no release request {act_id}. `rlhf models requests` lists.")
        return ReleaseAct.from_json(text)


def _insert_act(
    database: Database, connection: Connection, ledger: Ledger, act: ReleaseAct
) -> ReleaseAct:
    if act.request_id is not None:
        of_request = release_acts.c.request_id == act.request_id
        if connection.execute(select(func.count()).where(of_request)).scalar():
            raise ReleaseConflict(f"Release request {act.request_id} was answered already.")
    number = database.next_number(connection, release_acts.c.act_id)
    act = act.model_copy(update={"act_id": number})
    row = {
        **act.model_dump(include={"act_id", "model_name", "act", "request_id", "acted_at"}),
        "record": json_of(act, "The act"),
    }
    database.insert(connection, release_acts, [row])
    ledger.append(
        actor=act.actor,
        action=f"release_act.{act.act}",
        object_id=str(number),
        digest=row_digest(release_acts, row),
    )
    return act


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

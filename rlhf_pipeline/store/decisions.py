"""Decisions to retrain or to hold; one transaction reads evidence, decides and claims events."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, select

from rlhf_pipeline.core.errors import NotFound, StoreError
from rlhf_pipeline.core.records import (
    LeftToPeople,
    Quarantine,
    TriggerDecision,
    TriggerEvidence,
    utc_now,
)
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.counting import count_trainable
from rlhf_pipeline.store.engine import Database, Repository
from rlhf_pipeline.store.events import IS_OPEN, read_events
from rlhf_pipeline.store.schema import decisions, drift_events, votes
from rlhf_pipeline.store.taste_changes import record_change

Rule = Callable[[TriggerEvidence], TriggerDecision | None]
# Of the decision that a person answers and the seq of the last vote.
AnswerRule = Callable[[TriggerDecision, int], TriggerDecision]
PIPELINE = "pipeline"  # the actor of what nobody did by hand
OPEN_STATES = ("pending", "submitted")
_COLUMNS = {
    "decision_id",
    "action",
    "state",
    "attempt",
    "run_id",
    "decided_at",
    "actor",
    "remedy",
    "answers",
    "error",
}


class Decisions(Repository):
    """A hold stays held; a fire is pending until its training job takes it on (`TrainingJobs`)."""

    def apply_rule(
        self,
        rule: Rule,
        *,
        now: datetime,
        champion: str | None,
        up_to_seq: int | None = None,
    ) -> TriggerDecision | None:
        """Call `rule` with the events since the last fire, store its decision and claim the open
        events, in one transaction.

        The same transaction records the change of taste that a fire decision dates.

        With `up_to_seq` the decision is that of a replayed day: `now` is its end, and votes above
        that seq are unknown.

        Returns None if there is neither an open nor a held event, or if the rule decides nothing. A
        hold without an open event claims nothing: it is returned with decision_id None and not
        stored. `rule` must not use the store.
        """
        with audited_transaction(self._database) as (connection, ledger):
            known_seq = ledger.vote_seq if up_to_seq is None else up_to_seq
            evidence = self._build_evidence(
                connection,
                known_seq,
                now,
                champion,
                is_replayed=up_to_seq is not None,
            )
            if not evidence.open_events and not evidence.held_events:
                return None
            decision = rule(evidence)
            if decision is None:
                return None
            state = "pending" if decision.action == "fire" else "held"
            decision = decision.model_copy(
                update={"state": state, "attempt": 1, "run_id": None, "decision_id": None}
            )
            is_answer = decision.action == "fire" or decision.remedy is not None
            if not is_answer and not evidence.open_events:
                return decision
            return store_decision(self._database, connection, ledger, decision, known_seq)

    def read_evidence(
        self, *, now: datetime, champion: str | None, up_to_seq: int | None = None
    ) -> TriggerEvidence:
        """What `decide` would hand to its rule now; nothing is stored or claimed."""
        with self._database.read_transaction() as connection:
            newest = select(func.max(votes.c.seq))
            last_seq = connection.execute(newest).scalar() or 0
            return self._build_evidence(
                connection,
                last_seq if up_to_seq is None else up_to_seq,
                now,
                champion,
                is_replayed=up_to_seq is not None,
            )

    def fire_by_hand(
        self,
        reason: str,
        *,
        actor: str,
        now: datetime,
        run_id: str | None = None,
        quarantine: Quarantine | None = None,
    ) -> TriggerDecision:
        """Store a fire decision made by a person, over all votes: a retraining, or a quarantine. It
        claims no events and starts no cool-down: a change that detectors find is still decided on
        by the trigger.

        Without `run_id` it waits for a run, as every fire decision. With `run_id` that run is
        recorded, and a repeated call returns the decision that is stored. Raises StoreError for a
        quarantine of somebody without a vote that it leaves out.
        """
        with audited_transaction(self._database) as (connection, ledger):
            earlier = self._of_run(connection, run_id)
            if earlier is not None:
                return earlier
            evidence: dict[str, Any] = {"looked_at": {"max_seq": ledger.vote_seq}}
            if quarantine is not None:
                self._require_votes(connection, quarantine)
                evidence["quarantine"] = quarantine.model_dump(mode="json")
            decision = TriggerDecision(
                action="fire",
                reasons=(f"by hand: {reason}",),
                event_ids=(),
                evidence=evidence,
                decided_at=now,
                state="submitted" if run_id else "pending",
                run_id=run_id,
                actor=actor,
                remedy=None if quarantine is None else "quarantine",
            )
            return store_decision(self._database, connection, ledger, decision, ledger.vote_seq)

    def answer(self, decision_id: int, rule: AnswerRule) -> TriggerDecision:
        """Store what a person decides about a decision: one answer each. Raises NotFound for an
        unknown decision, StoreError for one that was answered before.
        """
        with audited_transaction(self._database) as (connection, ledger):
            answered = build_decision(decision_row(connection, decision_id))
            if earlier := find_answer(connection, decision_id):
                raise StoreError(
                    f"Decision {decision_id} was answered already, by decision "
                    f"{earlier.decision_id}. `rlhf triggers explain {earlier.decision_id}` "
                    "says how."
                )
            return store_decision(
                self._database, connection, ledger, rule(answered, ledger.vote_seq), ledger.vote_seq
            )

    def all(self) -> list[TriggerDecision]:
        """Oldest first."""
        return self._read()

    def fires(self) -> list[TriggerDecision]:
        """All fire decisions, oldest first."""
        return self._read(decisions.c.action == "fire")

    def held_with_remedy(self) -> list[TriggerDecision]:
        """Hold decisions about a confirmed change, oldest first: those left to people, and those
        that dismissed it.
        """
        return self._read(decisions.c.action == "hold", decisions.c.remedy.is_not(None))

    def since(self, moment: datetime) -> list[TriggerDecision]:
        """Those decided at `moment` or later, oldest first."""
        return self._read(decisions.c.decided_at >= moment)

    def latest(self, action: str | None = None) -> TriggerDecision | None:
        """With an action, the newest one of that action."""
        of_action = () if action is None else (decisions.c.action == action,)
        query = (
            select(decisions).where(*of_action).order_by(decisions.c.decision_id.desc()).limit(1)
        )
        rows = self._database.fetch_mappings(query)
        return build_decision(rows[0]) if rows else None

    def get(self, decision_id: int) -> TriggerDecision:
        """Raises NotFound."""
        with self._database.read_transaction() as connection:
            return build_decision(decision_row(connection, decision_id))

    def page(self, *, before_id: int | None = None, limit: int = 50) -> list[TriggerDecision]:
        """Newest first."""
        query = select(decisions).order_by(decisions.c.decision_id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(decisions.c.decision_id < before_id)
        return [build_decision(row) for row in self._database.fetch_mappings(query)]

    def find_answers(self) -> dict[int, int]:
        """For each decision that a person answered, lifted or cancelled: the decision that did."""
        query = select(decisions.c.answers, decisions.c.decision_id)
        rows = self._database.fetch_all(query.where(decisions.c.answers.is_not(None)))
        return {row.answers: row.decision_id for row in rows}

    def _build_evidence(
        self,
        connection: Connection,
        known_seq: int,
        now: datetime,
        champion: str | None,
        *,
        is_replayed: bool,
    ) -> TriggerEvidence:
        last = self._last_fire(connection)
        open_events, held_events = (
            tuple(read_events(connection, which)) for which in (IS_OPEN, self._is_held(connection))
        )
        closed = self._list_closed(connection) if held_events else set()
        held_events = tuple(event for event in held_events if event.event_id not in closed)
        unfinished = [
            build_decision(row)
            for row in connection.execute(
                select(decisions).where(decisions.c.state.in_(OPEN_STATES))
            ).mappings()
        ]
        n_ordered = sum(decision.order is not None for decision in unfinished)
        return TriggerEvidence(
            champion=champion,
            open_events=open_events,
            held_events=held_events,
            # On a replayed day, a fire of a later day starts no cool-down.
            last_fired_at=last["decided_at"]
            if last and not (is_replayed and last["decided_at"] > now)
            else None,
            # Without events the rule is not called, so nothing is counted.
            n_new_votes=count_trainable(connection, last["max_seq"] if last else 0, known_seq)
            if open_events or held_events
            else 0,
            max_seq=known_seq,
            n_unfinished=len(unfinished) - n_ordered,
            n_ordered=0 if is_replayed else n_ordered,
            left_to_people=tuple(self._read_left_to_people(connection, champion)),
            now=now,
        )

    def _last_fire(self, connection: Connection) -> RowMapping | None:
        """The trigger's last fire decision; those by hand start no cool-down."""
        return _find_last(connection, decisions.c.action == "fire")

    def _is_held(self, connection: Connection) -> ColumnElement[bool]:
        """Of events claimed by holds since the trigger last fired; what people decide by hand ends
        no hold.
        """
        last = self._last_fire(connection)
        return drift_events.c.decision_id > (last["decision_id"] if last else 0)

    def _list_closed(self, connection: Connection) -> set[str]:
        """The events of false alarms and of changes left to people since the last fire."""
        closing = self._holds_with_remedy(connection)
        return {event_id for _, decision in closing for event_id in decision.event_ids}

    def _holds_with_remedy(
        self, connection: Connection
    ) -> list[tuple[RowMapping, TriggerDecision]]:
        """The trigger's own holds about a confirmed change since its last fire, oldest first."""
        last = self._last_fire(connection)
        holds = select(decisions).where(
            decisions.c.decision_id > (last["decision_id"] if last else 0),
            decisions.c.actor.is_(None),
            decisions.c.remedy.is_not(None),
        )
        rows = connection.execute(holds.order_by(decisions.c.decision_id)).mappings()
        return [(row, build_decision(row)) for row in rows]

    def _read_left_to_people(
        self, connection: Connection, champion: str | None
    ) -> Iterator[LeftToPeople]:
        for row, decision in self._holds_with_remedy(connection):
            is_of_champion = decision.evidence.get("looked_at", {}).get("champion") == champion
            if decision.remedy == "dismiss" or not is_of_champion:
                continue
            answer = find_answer(connection, row["decision_id"])
            quarantines = answer is not None and answer.remedy == "quarantine"
            causes = decision.evidence.get("causes", {}).get("causes", [])
            yield LeftToPeople(
                decision_id=row["decision_id"],
                seq=row["max_seq"],
                cause=causes[0]["name"] if causes else None,
                annotator_ids=decision.quarantine.annotator_ids if decision.quarantine else (),
                is_answered=answer is not None,
                reread_from=answer.decided_at if answer and quarantines else None,
            )

    def _require_votes(self, connection: Connection, quarantine: Quarantine) -> None:
        query = select(votes.c.annotator_id).where(
            votes.c.annotator_id.in_(quarantine.annotator_ids),
            votes.c.seq >= quarantine.from_seq,
        )
        query = query.distinct()
        missing = set(quarantine.annotator_ids) - set(connection.execute(query).scalars())
        if missing:
            raise StoreError(
                f"{', '.join(sorted(missing))}: no vote from {quarantine.from_seq} on. "
                "The page Quality lists the annotators."
            )

    def _of_run(self, connection: Connection, run_id: str | None) -> TriggerDecision | None:
        if run_id is None:
            return None
        query = select(decisions).where(decisions.c.run_id == run_id)
        row = connection.execute(query).mappings().one_or_none()
        return None if row is None else build_decision(row)

    def _read(self, *conditions: Any) -> list[TriggerDecision]:
        query = select(decisions).where(*conditions).order_by(decisions.c.decision_id)
        return [build_decision(row) for row in self._database.fetch_mappings(query)]


def store_decision(
    database: Database,
    connection: Connection,
    ledger: Ledger,
    decision: TriggerDecision,
    known_seq: int,
) -> TriggerDecision:
    """Insert a decision over the votes up to `known_seq`; one of the trigger claims the open
    events. Returns it with its number.
    """
    number = database.next_number(connection, decisions.c.decision_id)
    decision = decision.model_copy(update={"decision_id": number, "recorded_at": utc_now()})
    row = {
        **decision.model_dump(include=_COLUMNS),
        "max_seq": known_seq,
        "leased_until": None,
        "record": json_of(decision, "The retraining decision"),
    }
    database.insert(connection, decisions, [row])
    if decision.actor is None:
        # Events of other changes wait for the next look, where a person is asked about one.
        asks = decision.action == "hold" and decision.remedy not in (None, "dismiss")
        claims = and_(IS_OPEN, drift_events.c.event_id.in_(decision.event_ids)) if asks else IS_OPEN
        connection.execute(drift_events.update().where(claims).values(decision_id=number))
    link_decision(ledger, row, decision.actor or PIPELINE)
    if decision.action == "fire" and decision.change_seq is not None:
        record_change(
            database,
            connection,
            ledger,
            change_seq=decision.change_seq,
            cause="; ".join(decision.reasons),
            actor=decision.actor or PIPELINE,
            category=decision.evidence.get("category"),
            decision_id=number,
        )
    return decision


def link_decision(ledger: Ledger, row: Mapping[Any, Any], actor: str = PIPELINE) -> None:
    """Link the state of a decision to the audit chain."""
    ledger.append(
        actor=actor,
        action=f"decision.{row['state']}",
        object_id=str(row["decision_id"]),
        digest=row_digest(decisions, row),
    )


def decision_row(connection: Connection, decision_id: int) -> RowMapping:
    """Raises NotFound."""
    query = select(decisions).where(decisions.c.decision_id == decision_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"There is no decision {decision_id}. Correct the id.")
    return row


def find_answer(connection: Connection, decision_id: int) -> TriggerDecision | None:
    """The decision by which a person answered, lifted or cancelled this one."""
    answer = select(decisions).where(decisions.c.answers == decision_id)
    row = connection.execute(answer).mappings().first()
    return None if row is None else build_decision(row)


def build_decision(row: RowMapping) -> TriggerDecision:
    """The decision as recorded, in its current state."""
    current = {name: row[name] for name in ("decision_id", "state", "attempt", "run_id", "error")}
    return TriggerDecision.from_json(row["record"]).model_copy(update=current)


def _find_last(connection: Connection, condition: ColumnElement[bool]) -> RowMapping | None:
    """The trigger's own last decision that meets the condition."""
    own = select(decisions).where(decisions.c.actor.is_(None), condition)
    newest = own.order_by(decisions.c.decision_id.desc()).limit(1)
    return connection.execute(newest).mappings().first()
